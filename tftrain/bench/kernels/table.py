"""The rows of table `kernels`: all passes of an op, in one dtype at the shapes of one model; one process per row."""

import os

from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.kernels.traffic import TRAFFIC, UPDATE_BYTES
from tftrain.bench.table import BenchTable, Record, Say, TableRow, cases, columns, each_row
from tftrain.bench.worker import Worker
from tftrain.host.huge_pages import with_kept_memory
from tftrain.page.bars import MEANING, speed_panel

STEPS = 21
CACHE_MULTIPLE = 8

# The sizes of the models whose tensors are measured: BERT base in its first phase, BERT large in its second.
SIZES = {
    "base": {"hidden": 768, "heads": 12, "layers": 12, "seq": 128, "vocab": 30522},
    "large": {"hidden": 1024, "heads": 16, "layers": 24, "seq": 512, "vocab": 30522},
}
# The causal softmax also has the sizes of longer sequences: GPT-2 medium, and GPT with 1.3 billion parameters.
CAUSAL_SIZES = {
    "gpt2_medium": {"hidden": 1024, "heads": 16, "layers": 24, "seq": 1024, "vocab": 50257},
    "gpt_1p3b": {"hidden": 2048, "heads": 16, "layers": 24, "seq": 2048, "vocab": 50257},
}


def rows() -> tuple[TableRow, ...]:
    """Returns every op in every dtype and size; an optimizer's dtype is that of gradients and weights."""
    names = [(op, dtype, size) for op in TRAFFIC for dtype in ("fp32", "bf16") for size in SIZES]
    names += [("attention_softmax_causal", dtype, size) for dtype in ("fp32", "bf16") for size in CAUSAL_SIZES]
    names += [(op, dtype, size) for op, dtypes in UPDATE_BYTES.items() for dtype in dtypes for size in SIZES]
    sizes = SIZES | CAUSAL_SIZES
    settings = ({"op": op, "dtype": dtype, "size": size, "sizes": sizes[size]} for op, dtype, size in names)
    return cases(settings, name="{op}/{dtype}/{size}", group="{op}/{dtype}/{size}")


def records(row: TableRow, config: BenchConfig, say: Say) -> list[Record]:
    """Measures a row in a process of its own."""
    working_set = config.working_set_mb * 1e6 if config.working_set_mb else CACHE_MULTIPLE * host.last_level_cache()
    settings = {
        **row.settings,
        "steps": config.steps or STEPS,
        "threads": host.threads(config.cpu_threads),
        "working_set": working_set,
    }
    with Worker("tftrain.bench.kernels.worker", settings, environ=with_kept_memory(os.environ)) as worker:
        measured = worker.ask("measure")
    for record in measured:
        say(
            f"{record['pass']:8} {record['implementation']:9} {record['time_us']:10.1f} us "
            f"({record['time_us_low']:.1f} to {record['time_us_high']:.1f}), {record['gb_per_s']:.1f} GB/s of "
            f"{record['copy_gb_per_s']:.1f} ({record['copy_gb_per_s_low']:.1f} to "
            f"{record['copy_gb_per_s_high']:.1f}) in a copy; at best {record['time_us_min']:.1f} us, "
            f"and {record['copy_gb_per_s_max']:.1f} GB/s in a copy"
        )
    return measured


measure = each_row(records)
KERNELS = BenchTable(
    "kernels",
    "each fused op beside TensorFlow's composition in graph mode, on the CPU",
    columns("op pass dtype shape device implementation time_us:1 gb_per_s:2 share_of_copy:3 speedup_over_tf:2"),
    rows(),
    measure,
    panels=(speed_panel("Speed of the fused op: change, %"),),
    chart_note=MEANING.format(
        base="the faster implementation in plain TensorFlow", spread="the distance between the quartiles of its times"
    ),
)
