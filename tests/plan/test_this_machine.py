"""Planned beside measured memory and time of BERT base on this machine's processor, in runs of their own.

Memory does not depend on what else the machine does. Time does, and so it is compared by hand, in half an hour:
`python -m pytest tests/plan/test_this_machine.py -m quiet -s` measures the machine and prints a line for every lever;
`-k sizes`, `-k levers`, `-k ranks` and `-k families` are parts of it.
"""

import pytest

from tftrain.bench.training import run
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.plan import forecast, machine
from tftrain.plan.cluster import CLUSTERS
from tftrain.plan.system import systems
from tftrain.plan.workload import reference_levers, reference_optimizer

FUSED = "--flagfile=configs/fused.flags"
REFERENCE = " ".join(f"--{flag}={value}" for flag, value in reference_levers().items())
BASE = f"--synthetic_data --flagfile=configs/base.flags --vocab_size=30522 --output_dir=unused {REFERENCE}"
SIZES = tuple(
    f"--max_seq_length={length} --micro_batch_size={samples}{impl}"
    for length, batches in ((128, (4, 8, 16)), (512, (1, 2, 4)))
    for samples in batches
    for impl in ("", f" {FUSED}")
)
LEVERS = (
    "--activation_checkpointing=selective",
    "--activation_checkpointing=full",
    f"--activation_checkpointing=selective {FUSED}",
    f"--activation_checkpointing=full {FUSED}",
    "--precision=bf16",
    f"--precision=bf16 {FUSED}",
    f"--grad_accum_steps=2 {FUSED}",
    f"--grad_accum_steps=2 --grad_accum_dtype=bf16 {FUSED}",
    "--ln_impl=fused",
    "--attn_softmax_impl=fused",
    "--gelu_impl=fused",
    "--dropout_add_impl=fused",
    "--optimizer=fused_lamb",
    f"--optimizer={reference_optimizer('adamw')}",
    "--activation=geglu",
    "--hidden_dropout_prob=0 --attention_probs_dropout_prob=0",
    "--memory_optimization=recomputation",
    "--suppress_grappler",
    "--jit_compile=true",
    "--sparse_as_dense=false",
    "--checkpoint_every=2",
)
RANKS = (
    "--micro_batch_size=4",
    f"--micro_batch_size=4 {FUSED}",
    f"--micro_batch_size=4 --split_opt_state {FUSED}",
    f"--micro_batch_size=4 --grad_accum_steps=2 --split_grad_accum {FUSED}",
    f"--micro_batch_size=4 --hvd_fp16_compression {FUSED}",
    "--micro_batch_size=8 --tensor_parallel_size=2",
    f"--micro_batch_size=8 --tensor_parallel_size=2 {FUSED}",
)
FUSED_FAMILY = "--ln_impl=fused --attn_softmax_impl=fused --gelu_impl=fused --optimizer=fused_lamb"
LLAMA = "--model_family=llama --num_key_value_heads=4 --intermediate_size=2048"
MODERN = "--flagfile=configs/modernbert_base.flags --num_hidden_layers=12"
FAMILIES = (
    (f"{LLAMA} --max_seq_length=512 --micro_batch_size=1", 1),
    (f"{LLAMA} --max_seq_length=512 --micro_batch_size=1 {FUSED_FAMILY}", 1),
    (f"{LLAMA} --max_seq_length=512 --micro_batch_size=2 --attn_impl=flash {FUSED_FAMILY}", 1),
    (f"{LLAMA} --max_seq_length=512 --micro_batch_size=2 --activation_checkpointing=full {FUSED_FAMILY}", 1),
    (f"{LLAMA} --max_seq_length=512 --micro_batch_size=2 --precision=bf16 {FUSED_FAMILY}", 1),
    (f"{LLAMA} --max_seq_length=1024 --micro_batch_size=1 --grad_accum_steps=2 {FUSED_FAMILY}", 1),
    (f"{LLAMA} --max_seq_length=256 --micro_batch_size=2 --split_opt_state {FUSED_FAMILY}", 2),
    (f"{LLAMA} --max_seq_length=512 --micro_batch_size=2 --tensor_parallel_size=2 {FUSED_FAMILY}", 2),
    (f"{MODERN} --max_seq_length=512 --micro_batch_size=2", 1),
    (f"{MODERN} --max_seq_length=512 --micro_batch_size=2 {FUSED_FAMILY}", 1),
    (f"{MODERN} --max_seq_length=1024 --micro_batch_size=2 --attn_impl=flash {FUSED_FAMILY}", 1),
    (f"{MODERN} --max_seq_length=4096 --micro_batch_size=1 --attn_impl=flash {FUSED_FAMILY}", 1),
    (f"{MODERN} --max_seq_length=1024 --micro_batch_size=2 --activation_checkpointing=full {FUSED_FAMILY}", 1),
    (f"{MODERN} --max_seq_length=512 --micro_batch_size=4 --precision=bf16 {FUSED_FAMILY}", 1),
    (f"{MODERN} --max_seq_length=256 --micro_batch_size=2 --split_opt_state {FUSED_FAMILY}", 2),
    (f"{MODERN} --max_seq_length=512 --micro_batch_size=2 --tensor_parallel_size=2 {FUSED_FAMILY}", 2),
)
CASES = (
    *(pytest.param(levers, 1, id=f"sizes {levers}") for levers in SIZES),
    *(
        pytest.param(f"--max_seq_length=128 --micro_batch_size=8 {levers}", 1, id=f"levers {levers}")
        for levers in LEVERS
    ),
    *(pytest.param(f"--max_seq_length=128 {levers}", 2, id=f"ranks {levers}") for levers in RANKS),
    *(pytest.param(levers, ranks, id=f"families {levers}") for levers, ranks in FAMILIES),
)
# The nightly cases repeat test_saved_tensors.py (exact in the graph) and test_plan_memory.py (state by formulas).
MEMORY_CASES = (
    ("--max_seq_length=128 --micro_batch_size=4", 1),
    pytest.param(f"--max_seq_length=128 --micro_batch_size=16 {FUSED}", 1, marks=pytest.mark.nightly),
    pytest.param(
        f"--max_seq_length=128 --micro_batch_size=8 --checkpoint_every=2 {FUSED}", 1, marks=pytest.mark.nightly
    ),
    pytest.param(
        "--model_family=llama --num_key_value_heads=4 --max_seq_length=512 --micro_batch_size=2 "
        "--attn_softmax_impl=fused --optimizer=fused_lamb",
        1,
        marks=pytest.mark.nightly,
    ),
)
# Two thirds of the weights are the token embedding.
XLM_R = "--flagfile=configs/roberta_base.flags --vocab_size=250002"
MEMORY_CASES += tuple(
    pytest.param(f"{XLM_R} --max_seq_length={levers}", ranks, marks=pytest.mark.nightly, id=f"250002 {levers}")
    for levers, ranks in (
        ("128 --micro_batch_size=4", 1),
        (f"128 --micro_batch_size=8 {FUSED}", 1),
        (f"128 --micro_batch_size=8 --precision=bf16 {FUSED}", 1),
        (f"128 --micro_batch_size=4 --grad_accum_steps=2 {FUSED}", 1),
        (f"512 --micro_batch_size=2 --attn_impl=flash {FUSED}", 1),
        (f"512 --micro_batch_size=2 --activation_checkpointing=full {FUSED}", 1),
        (f"128 --micro_batch_size=4 --split_opt_state {FUSED}", 2),
        (f"128 --micro_batch_size=8 --tensor_parallel_size=2 {FUSED}", 2),
        # No constant was chosen on these.
        (f"256 --micro_batch_size=4 --activation_checkpointing=selective {FUSED}", 1),
        ("384 --micro_batch_size=2 --optimizer=fused_adamw", 1),
    )
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
@pytest.mark.parametrize(("levers", "ranks"), MEMORY_CASES)
def test_planned_memory_is_near_the_peak_of_a_run(levers, ranks, capsys):
    # The size of the machine and its rates do not change the memory of a plan.
    planned, found = plan(levers, ranks, CLUSTERS["a64fx"]).memory.total / 1e9, measure(levers, ranks).peak_gb
    with capsys.disabled():
        print(line(levers, ranks, (planned, found)))
    assert planned == pytest.approx(found, rel=MEMORY)


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize(("levers", "ranks"), CASES)
def test_planned_memory_and_time_are_near_those_of_a_run(levers, ranks, measured_machine, capsys):
    planned, found = plan(levers, ranks, measured_machine), measure(levers, ranks)
    memory, seconds = planned.memory.total / 1e9, min(found.step_seconds)
    with capsys.disabled():
        print(line(levers, ranks, (memory, found.peak_gb), (planned.seconds, seconds)))
    assert memory == pytest.approx(found.peak_gb, rel=MEMORY)
    assert planned.seconds == pytest.approx(seconds, rel=TIME)
