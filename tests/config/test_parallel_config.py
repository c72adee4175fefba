"""Ways of dividing work among ranks that can't be, refused before anything starts, in one line each."""

import pytest

from tftrain import run
from tftrain.cli.flags import read
from tftrain.config.train import TrainConfig
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.launcher import Launch

GIVEN = ["tftrain.run", "--synthetic_data", "--vocab_size=90", "--micro_batch_size=2", "--num_attention_heads=12"]
T, P = "--tensor_parallel_size", "--pipeline_parallel_size"
XLA = "--gradient_transport=xla"
STAGES = f"{P}=4 --pipeline_schedule=interleaved --virtual_pipeline_size=2"


@pytest.mark.parametrize(
    ("ranks", "given", "expected"),
    [
        (6, f"{T}=4", f"{T}=4: expected a divisor of the 6 ranks, such as 3 or 6"),
        (8, f"{T}=8", f"{T}=8: expected a divisor of --num_attention_heads=12"),
        (5, f"{T}=5 --num_attention_heads=15 --hidden_size=60", ""),
        (7, f"{T}=7 --num_attention_heads=7 --hidden_size=63 --intermediate_size=99", "of --intermediate_size=99"),
        (12, f"{T}=2 {P}=4", f"{P}=4: expected a divisor of 6, which is 12 ranks / {T}=2"),
        (8, f"{P}=2 --num_hidden_layers=3", ""),
        (8, f"{P}=8 --num_hidden_layers=7", "are 8 model chunks: expected at most --num_hidden_layers=7"),
        (4, f"{P}=2 --split_weights", f"--split_weights=true: expected --split_opt_state instead with {P} > 1"),
        (4, "--split_weights --split_group=host --state_split_strategy=greedy:4", "even with --split_group=host"),
        (4, "--split_group=host", "--split_group=host: remove this flag, or add --split_weights"),
        (4, "--split_grad_accum --prefetch_blocks=2", "--prefetch_blocks=2: remove this flag, or add --split_weights"),
        (4, "--split_weights --backward_segments=2", "--backward_segments=2: remove this flag: with --split_weights"),
        (8, f"{T}=2 --split_opt_state --state_split_strategy=greedy:5", "expected at most the 4 data parallel ranks"),
        (4, f"{XLA} {T}=2", f"{XLA}: expected horovod with {T} > 1: each layer has sums of its own"),
        (4, f"{XLA} {P}=2", f"{XLA}: expected horovod with {P} > 1: a stage is several programs"),
        (4, f"{XLA} --split_weights", f"{XLA}: expected horovod with partitioned state"),
        (4, "--virtual_pipeline_size=2", "--virtual_pipeline_size=2: expected 1 with --pipeline_schedule=1f1b"),
        (1, "--pipeline_schedule=dualpipe", "--pipeline_schedule=dualpipe: expected one of 1f1b, gpipe"),
        (4, f"{STAGES} --grad_accum_steps=8", ""),
        (4, f"{STAGES} --grad_accum_steps=6", f"to be a multiple of {P}=4, such as 4 or 8"),
        # The smaller batches of a ramp are 4 and 6 micro-batches.
        (4, f"{STAGES} --global_batch_size=16 --batch_rampup=8:4:100", "such as 4 or 8, not 6"),
        (4, f"{STAGES} --grad_accum_steps=8 --num_hidden_layers=7", "--virtual_pipeline_size=2 are 8 model chunks: "),
    ],
)
def test_what_does_not_divide_is_refused_in_one_line(ranks, given, expected, tmp_path):
    config, misread, _ = read(TrainConfig, [*GIVEN, f"--output_dir={tmp_path}", *given.split()])
    found = run.all_problems(config, misread, Inputs.open(config), Launch(0, ranks, 0, ranks))
    found = list(map(str, found))
    assert len(found) == bool(expected), found
    assert expected in "".join(found)
    assert "\n" not in "".join(found)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (f"{T}=2", f"{XLA}: expected horovod with {T} > 1"),
        (f"{T}=2 --mode=evaluate", ""),  # The flag may come from the checkpoint.
        ("--task=embedding", "a loss that compares samples"),
    ],
)
def test_only_a_run_that_trains_is_refused_for_its_sums(flags, expected):
    config = read(TrainConfig, [*GIVEN, XLA, "--output_dir=x", *flags.split()])[0]
    found = "".join(str(each) for each in config.problems(4) if each.flag == "gradient_transport")
    assert expected in found
    assert bool(found) == bool(expected)
