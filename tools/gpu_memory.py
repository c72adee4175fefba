"""Memory of a block's and a head's activations on a GPU: what XLA assigns, and the plan. It needs no GPU.

    .venv/bin/python tools/gpu_memory.py                                      # all rows, a minute each
    .venv/bin/python tools/gpu_memory.py --rows='bert, plain;gpt, plain'

XLA compiles forward and backward with two and with four blocks (tools/gpu_compiler.py), and assigns all tensors to one
temporary buffer. The difference of its sizes is that of two blocks. With two blocks and a large vocabulary, the buffer
has its largest size in the output head. It needs CUDA's ptxas.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gpu_budget import RUN
from gpu_compiler import clusters, compiled
from gpu_epilogues import FUSED, LARGE, PLAIN

from tftrain.bench.config import run_config
from tftrain.host.units import GB
from tftrain.plan.cluster import CLUSTERS
from tftrain.plan.forecast import of_run
from tftrain.plan.system import of_trainer

FLASH = f"{FUSED} --attn_impl=flash"
NO_BIAS = FLASH.replace("--dropout_add_impl=fused", "")  # a residual add without bias has no fused op
ROWS = {
    "bert, plain": f"--model_family=bert {PLAIN}",
    "bert, fused": f"--model_family=bert {FUSED}",
    "bert, flash": f"--model_family=bert {FLASH}",
    "bert, plain, no dropout": f"--model_family=bert {PLAIN} --hidden_dropout_prob=0 --attention_probs_dropout_prob=0",
    "gpt, plain": f"--model_family=gpt {PLAIN}",
    "gpt, flash": f"--model_family=gpt {FLASH}",
    "llama, plain": f"--model_family=llama --num_key_value_heads=4 {PLAIN}",
    "llama, flash": f"--model_family=llama --num_key_value_heads=4 {NO_BIAS}",
    "modernbert, plain": f"--model_family=modernbert {PLAIN}",
    "modernbert, flash": f"--model_family=modernbert {NO_BIAS}",
}
CARD, BLOCKS = "h200", (2, 4)
# Rows that are compiled with a large vocabulary, and their words.
WORDS = {"bert, flash": 30522, "gpt, flash": 50257, "llama, flash": 128256, "modernbert, flash": 50368}


def block_gb(size: Callable[[str], float], row: str) -> float:
    """Returns the GB of a block of a row; `size` returns the bytes of a step with flags of tftrain.run."""
    few, many = (size(f"{LARGE} {ROWS[row]} --num_hidden_layers={blocks}") for blocks in BLOCKS)
    return (many - few) / (BLOCKS[1] - BLOCKS[0]) / GB


def with_head_gb(size: Callable[[str], float], row: str) -> float:
    """Returns the GB of two blocks and the output head of a row; for `size`, see `block_gb`."""
    return size(f"{LARGE} {ROWS[row]} --vocab_size={WORDS[row]}") / GB


def temporary_bytes(flags: str) -> int:
    """Returns the size of the temporary buffer of a step with flags of tftrain.run."""
    with tempfile.TemporaryDirectory() as folder:
        compiled(clusters(flags.split())[0], f'{RUN} xla_dump_to: "{folder}"', CARD)
        (report,) = Path(folder).glob("*buffer-assignment.txt")
        return int(re.search(r"size (\d+), preallocated-temp", report.read_text())[1])


def planned_bytes(flags: str) -> float:
    """Returns the planner's activations of a step with flags of tftrain.run."""
    return of_run(run_config(flags.split()), 1, CLUSTERS[CARD], of_trainer(gpu=True, card="h100")).memory.activations


def main() -> None:
    """Prints a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help='names of rows, separated by ";"; by default all')
    names = (parser.parse_args().rows or ";".join(ROWS)).split(";")
    if unknown := set(names) - set(ROWS):
        parser.error(f"--rows: expected some of {'; '.join(ROWS)}, given {'; '.join(sorted(unknown))}")
    print("| step | GB, by XLA | planned | error |\n| --- | ---: | ---: | ---: |", flush=True)
    parts = [(name, "", block_gb) for name in names]
    parts += [(name, ", two blocks and the head", with_head_gb) for name in names if name in WORDS]
    for name, what, gb in parts:
        by_xla, planned = gb(temporary_bytes, name), gb(planned_bytes, name)
        print(f"| {name}{what} | {by_xla:.3f} | {planned:.3f} | {planned / by_xla - 1:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
