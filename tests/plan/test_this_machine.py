"""Planned beside measured memory and time of BERT base on this machine's processor, in runs of their own.

Memory does not depend on what else the machine does. Time does, and so it is compared by hand, in half an hour:
`python -m pytest tests/plan/test_this_machine.py -m quiet -s` measures the machine and prints a line for every row of
docs/results/data/planner_cpu.csv; `-k bert`, `-k llama` and `-k modernbert` are parts of it.
"""

import csv

import pytest

from tests.kit.ranks import ROOT
from tftrain.bench.training import run
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.plan import forecast, machine
from tftrain.plan.cluster import CLUSTERS
from tftrain.plan.system import systems
from tftrain.plan.workload import reference_levers

REFERENCE = " ".join(f"--{flag}={value}" for flag, value in reference_levers().items())
BASE = f"--synthetic_data --flagfile=configs/base.flags --vocab_size=30522 --output_dir=unused {REFERENCE}"
MODELS = {
    "bert": "",
    "llama": "--model_family=llama --num_key_value_heads=4 --intermediate_size=2048",
    "modernbert": "--flagfile=configs/modernbert_base.flags --num_hidden_layers=12",
    # Two thirds of the weights are the token embedding.
    "xlm_r": "--flagfile=configs/roberta_base.flags --vocab_size=250002",
}


def published(name):
    """Returns the flags and ranks of the rows of a file of docs/results/data."""
    cases = []
    for row in csv.DictReader((ROOT / "docs/results/data" / name).read_text().splitlines()):
        model = row.get("family", "xlm_r")
        cases.append(pytest.param(f"{MODELS[model]} {row['flags']}", int(row["ranks"]), id=f"{model} {row['flags']}"))
    return cases


FUSED = "--flagfile=configs/fused.flags"
# The nightly cases repeat test_saved_tensors.py (exact in the graph) and test_plan_memory.py (state by formulas).
MEMORY_CASES = (
    "--max_seq_length=128 --micro_batch_size=4",
    f"--max_seq_length=128 --micro_batch_size=16 {FUSED}",
    f"--max_seq_length=128 --micro_batch_size=8 --checkpoint_every=2 {FUSED}",
    f"{MODELS['llama']} --max_seq_length=512 --micro_batch_size=2 --attn_softmax_impl=fused --optimizer=fused_lamb",
)
MEMORY, TIME = 0.10, 0.15


@pytest.fixture
def measured_machine(tmp_path):
    """The machine as it is right before a run: others may use it, too."""
    path = tmp_path / "machine.json"
    machine.measure(path)
    return machine.read(path)


def plan(levers, ranks, cluster):
    given = flags.parse(TrainConfig, ["tftrain.run", *BASE.split(), *levers.split()]).resolve(ranks)
    return forecast.of_run(given, ranks, machine.shared(cluster, ranks), systems()["tftrain_cpu"])


def measure(levers, ranks):
    return run.measure([*BASE.split(), *levers.split()], ranks, steps=2)


def line(levers, ranks, *pairs):
    """A line of docs/results/data/planner_cpu.csv without the family: planned, measured and error of each pair."""
    figures = ",".join(f"{plan:.2f},{found:.2f},{100 * (plan / found - 1):+.1f}" for plan, found in pairs)
    return f"\n{levers},{ranks},{figures}"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("levers", "ranks"), [*((levers, 1) for levers in MEMORY_CASES), *published("planner_xlm_r.csv")]
)
def test_planned_memory_is_near_the_peak_of_a_run(levers, ranks, capsys):
    # The size of the machine and its rates do not change the memory of a plan.
    planned, found = plan(levers, ranks, CLUSTERS["a64fx"]).memory.total / 1e9, measure(levers, ranks).peak_gb
    with capsys.disabled():
        print(line(levers, ranks, (planned, found)))
    assert planned == pytest.approx(found, rel=MEMORY)


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize(("levers", "ranks"), published("planner_cpu.csv"))
def test_planned_memory_and_time_are_near_those_of_a_run(levers, ranks, measured_machine, capsys):
    planned, found = plan(levers, ranks, measured_machine), measure(levers, ranks)
    memory, seconds = planned.memory.total / 1e9, min(found.step_seconds)
    with capsys.disabled():
        print(line(levers, ranks, (memory, found.peak_gb), (planned.seconds, seconds)))
    assert memory == pytest.approx(found.peak_gb, rel=MEMORY)
    assert planned.seconds == pytest.approx(seconds, rel=TIME)
