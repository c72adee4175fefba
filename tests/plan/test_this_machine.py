"""Planned beside measured memory of BERT base on this machine's processor, in a run of its own for each line.

`python -m pytest tests/plan/test_this_machine.py -m slow -s` prints the lines. Memory does not depend on what else the
machine does; time does, and is not compared.
"""

import dataclasses

import pytest

from tftrain import flags
from tftrain.bench.training.run import measure
from tftrain.plan import memory, workload
from tftrain.plan.config import PlanConfig
from tftrain.plan.system import systems

FUSED = "--flagfile=configs/fused.flags"
BASE = "--synthetic_data --flagfile=configs/base.flags --vocab_size=30522 --max_seq_length=128"
PERCENT = 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "levers", [f"--micro_batch_size={size}{impl}" for size in (4, 16) for impl in ("", f" {FUSED}")]
)
def test_memory_is_near_what_a_run_takes(levers, capsys):
    given = [*BASE.split(), *levers.split()]
    train = flags.parse(PlanConfig, ["plan", *given]).train
    train = dataclasses.replace(train, batch=train.batch.resolve(1))
    planned = memory.of(workload.from_config(train, 1, gpu=False), systems()["tftrain_cpu"]).total / 1e9
    measured = measure(given, ranks=1, steps=1, warm_up=2).peak_gb
    with capsys.disabled():
        print(f"\n| {levers} | {planned:.2f} | {measured:.2f} | {100 * (planned / measured - 1):+.1f} |")
    assert planned == pytest.approx(measured, rel=PERCENT / 100)
