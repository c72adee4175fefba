"""Parts step, levers and models of tools/gpu_check.py: training steps on one GPU, as `tftrain.run` takes them."""

import os
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpu_page import PartError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
RUN = "--synthetic_data --precision=bf16 --grad_accum_steps=1"
LARGE = "--flagfile=configs/large.flags --max_seq_length=512 --micro_batch_size=32"
GPT = "--flagfile=configs/gpt2_medium.flags --vocab_size=50257 --max_seq_length=1024 --micro_batch_size=16"
MODERN = "--flagfile=configs/modernbert_large.flags --vocab_size=50368"
FUSED = "--flagfile=configs/fused.flags"
FLASH = f"{FUSED} --attn_impl=flash"
CUDNN = f"{FUSED} --attn_impl=cudnn --attention_probs_dropout_prob=0"
NO_BIAS = FLASH.replace(FUSED, "--ln_impl=fused --attn_softmax_impl=fused --gelu_impl=fused --optimizer=fused_lamb")
PLAIN = "--ln_impl=reference --attn_softmax_impl=reference --gelu_impl=reference --dropout_add_impl=reference"
# A run on a GPU allows cuBLASLt, in which a product may add its bias; see docs/kernels.md.
NO_CUBLAS_LT = "--xla_gpu_enable_cublaslt=false"
# The log says which graphs XLA has recorded again, and why.
GRAPH_LOG = (("TF_CPP_MIN_LOG_LEVEL", "0"), ("TF_CPP_VMODULE", "command_buffer_thunk=3,command_buffer_cmd=1"))


class StepRow(NamedTuple):
    """What a row trains; `seconds` are those of its start, its compilation and its steps, by estimate."""

    flags: str
    model: str = LARGE
    seconds: int = 65
    steps: int = 50
    log_every: int = 10  # a run waits for the device in each step that it logs
    xla: str = ""
    environ: tuple[tuple[str, str], ...] = ()


# Each part ends within 8 minutes; its rows are in the order in which they inform.
PARTS = {
    "step": {
        "flash": StepRow(FLASH),
        "flash, each step logged": StepRow(FLASH, steps=25, log_every=1),
        "flash, without graphs": StepRow(f"{FLASH} --cuda_graphs=false"),
        "flash, log of graphs": StepRow(FLASH, steps=20, environ=GRAPH_LOG),
        "cudnn": StepRow(CUDNN),
        "flash, 128 samples": StepRow(f"{FLASH} --micro_batch_size=128", seconds=75),
    },
    "levers": {
        "flash, no cuBLASLt": StepRow(FLASH, xla=NO_CUBLAS_LT),
        "cudnn, 128 samples": StepRow(f"{CUDNN} --micro_batch_size=128", seconds=75),
        "cudnn, no cuBLASLt": StepRow(CUDNN, xla=NO_CUBLAS_LT),
        "fused": StepRow(FUSED),
        "plain": StepRow(f"{PLAIN} --optimizer=reference_lamb"),
        "fused, graph mode": StepRow(f"{FUSED} --jit_compile=false", seconds=50),
    },
    "models": {
        "gpt medium": StepRow(FLASH, GPT, seconds=80),
        "gpt medium, cudnn": StepRow(CUDNN, GPT, seconds=80),
        "modernbert large, 1024": StepRow(NO_BIAS, f"{MODERN} --max_seq_length=1024 --micro_batch_size=16", seconds=80),
        "modernbert large, 8192": StepRow(NO_BIAS, f"{MODERN} --max_seq_length=8192 --micro_batch_size=2", seconds=90),
    },
}
COLUMNS = ["row", "flags", "step_ms", "samples_per_s", "tflops", "mfu", "peak_gb", "first_loss", "last_loss", "graphs"]


def arguments(row: StepRow, logs: Path, name: str) -> tuple[list[str], dict[str, str]]:
    """Returns the flags of tftrain.run for a row, and its variables.

    XLA writes its choices of products and their times to files in `logs`. The row's flags for XLA come after those of
    the variable XLA_FLAGS.
    """
    file = path_of(logs, name)
    dumps = (
        f"--xla_gpu_dump_autotune_logs_to={file}_products.txt --xla_gpu_dump_autotune_results_to={file}_autotune.txt"
    )
    environ = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {dumps} {row.xla}".strip(), **dict(row.environ)}
    return [*row.model.split(), *RUN.split(), *row.flags.split(), f"--log_every={row.log_every}"], environ


def path_of(logs: Path, name: str) -> Path:
    """Returns the beginning of the paths of a row's files."""
    return logs.resolve() / re.sub(r"\W+", "_", name)


def recorded_graphs(output: str, steps: int) -> str:
    """Returns how often a step records CUDA graphs again, how many addresses have changed and the ms that it takes.

    The lines are those of XLA's command_buffer_thunk.cc; the first recording of a graph does not count.
    """
    update = r"Update command buffer on device #.* after (\d+) executions.*updated_allocs=(\d+)"
    updates = [int(changed) for runs, changed in re.findall(update, output) if int(runs)]
    times = [int(microseconds) for microseconds in re.findall(r"Updated command buffer in (\d+)", output)][
        -len(updates) :
    ]
    if not updates:
        return ""
    changed, ms = statistics.median(updates), sum(times) / steps / 1000
    return f"{len(updates) / steps:.1f} a step, {changed:.0f} addresses, {ms:.1f} ms"


def measure(make_page: Callable, rows: dict[str, StepRow], logs: Path):
    """Trains for some steps with the flags of each row, and returns the page; see `Page` of tools/gpu_check.py."""
    try:
        from tftrain.bench.training import run
        from tftrain.host import devices

        found = devices.has_gpu()
    except ImportError as error:
        raise PartError(f"step: {error}; it needs the environment of `make setup GPU=1`") from error
    if not found:
        raise PartError("step: TensorFlow finds no GPU; `make setup GPU=1` installs what it needs")
    page = make_page(COLUMNS)
    page.device = f"{devices.device_name()}, each row with {RUN}"
    logs.mkdir(parents=True, exist_ok=True)

    def train(name, row):
        given, environ = arguments(row, logs, name)
        trained, output = run.train(given, 1, row.steps, page.left - 5, environ=environ)
        Path(f"{path_of(logs, name)}.log").write_text(output)
        trained = [each for each in trained if "step_time_s" in each]
        seconds, samples, rate, share = (
            statistics.median(each[key] or 0 for each in trained if each["step"] > 10)
            for key in ("step_time_s", "samples_per_sec", "tflops_per_device", "mfu")
        )
        numbers = [f"{1000 * seconds:.1f}", f"{samples:.0f}", f"{rate:.0f}", f"{share:.0%}"]
        losses = [f"{each['loss']:.3f}" for each in (trained[0], trained[-1])]
        flags = f"{row.xla} {row.model} {row.flags}".strip()
        graphs = recorded_graphs(output, row.steps)
        return [name, flags, *numbers, f"{trained[-1]['peak_memory_gb']:.1f}", *losses, graphs]

    page.fill((name, lambda name=name, row=row: train(name, row)) for name, row in rows.items())
    return page
