"""Part step of tools/gpu_check.py: a training step of BERT large on one GPU, as `tftrain.run` takes it."""

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_page import PartError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
LARGE = "--flagfile=configs/large.flags --synthetic_data --max_seq_length=512 --micro_batch_size=32 --precision=bf16"
FUSED = "--flagfile=configs/fused.flags"
PLAIN = "--ln_impl=reference --attn_softmax_impl=reference --gelu_impl=reference --dropout_add_impl=reference"
# In the order in which they inform.
ROWS = {
    "fused": FUSED,
    "flash": f"{FUSED} --attn_impl=flash",
    "flash, epilogues": f"{FUSED} --attn_impl=flash",
    "cudnn": f"{FUSED} --attn_impl=cudnn --attention_probs_dropout_prob=0",
    "plain": f"{PLAIN} --optimizer=reference_lamb",
    "fused, graph mode": f"{FUSED} --jit_compile=false",
}
# XLA's flags of a row; with cuBLASLt, a product may add its bias itself, see docs/kernels.md.
XLA_FLAGS = {"flash, epilogues": "--xla_gpu_enable_cublaslt=true"}
WARM_UP, STEPS = 5, 20
COLUMNS = ["row", "flags", "step_ms", "samples_per_s", "tflops", "mfu", "peak_gb", "first_loss", "last_loss"]


def measure(make_page: Callable, names: Sequence[str] = tuple(ROWS)):
    """Trains for some steps with the flags of each named row, and returns the page; see `Page` of tools/gpu_check.py.

    A row's XLA flags come after those of the variable XLA_FLAGS.
    """
    try:
        from tftrain.bench.training import run
        from tftrain.host import devices

        found = devices.has_gpu()
    except ImportError as error:
        raise PartError(f"step: {error}; it needs the environment of `make setup GPU=1`") from error
    if not found:
        raise PartError("step: TensorFlow finds no GPU; `make setup GPU=1` installs what it needs")
    page = make_page(COLUMNS)
    page.device = f"{devices.device_name()}, each row with {LARGE}"

    def row(name):
        given = [*LARGE.split(), "--grad_accum_steps=1", *ROWS[name].split()]
        environ = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS.get(name, '')}".strip()}
        rows, _ = run.train(given, 1, WARM_UP + STEPS, page.left - 5, environ=environ)
        rows = [each for each in rows if "step_time_s" in each]
        seconds, samples, rate, share = (
            statistics.median(each[key] or 0 for each in rows[WARM_UP:])
            for key in ("step_time_s", "samples_per_sec", "tflops_per_device", "mfu")
        )
        numbers = [f"{1000 * seconds:.1f}", f"{samples:.0f}", f"{rate:.0f}", f"{share:.0%}"]
        losses = [f"{each['loss']:.3f}" for each in (rows[0], rows[-1])]
        given = f"{XLA_FLAGS.get(name, '')} {ROWS[name]}".strip()
        return [name, given, *numbers, f"{rows[-1]['peak_memory_gb']:.1f}", *losses]

    page.fill((name, lambda name=name: row(name)) for name in names)
    return page
