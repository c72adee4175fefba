"""Ways of dividing work among ranks that can't be, refused before anything starts, in one line each."""

import pytest

from tftrain import run
from tftrain.cli.flags import read
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.launcher import Launch

GIVEN = ["tftrain.run", "--synthetic_data", "--vocab_size=90", "--micro_batch_size=2", "--num_attention_heads=12"]


@pytest.mark.parametrize(
    ("ranks", "given", "expected"),
    [
        (6, "--tensor_parallel_size=4", "--tensor_parallel_size=4: expected a divisor of the 6 ranks, such as 3 or 6"),
        (8, "--tensor_parallel_size=8", "--tensor_parallel_size=8: expected a divisor of --num_attention_heads=12"),
        (5, "--tensor_parallel_size=5 --num_attention_heads=15 --hidden_size=60", "intermediate_size=240 ok"),
        (
            7,
            "--tensor_parallel_size=7 --num_attention_heads=7 --hidden_size=63 --intermediate_size=100",
            "--tensor_parallel_size=7: expected a divisor of --intermediate_size=100",
        ),
        (
            12,
            "--tensor_parallel_size=2 --pipeline_parallel_size=4",
            "--pipeline_parallel_size=4: expected a divisor of 6, which is 12 ranks / --tensor_parallel_size=2",
        ),
        (8, "--pipeline_parallel_size=2 --num_hidden_layers=3", "--pipeline_parallel_size=2 ok"),
        (
            8,
            "--pipeline_parallel_size=8 --num_hidden_layers=7",
            "--pipeline_parallel_size=8 x --virtual_pipeline_size=1 are 8 model chunks: "
            "expected at most --num_hidden_layers=7",
        ),
        (
            8,
            "--tensor_parallel_size=2 --pipeline_parallel_size=2 --split_grad_accum",
            "--split_grad_accum=true: expected --split_opt_state instead with --pipeline_parallel_size > 1",
        ),
        (
            4,
            "--pipeline_parallel_size=2 --split_weights",
            "--split_weights=true: expected --split_opt_state instead with --pipeline_parallel_size > 1",
        ),
        (
            4,
            "--split_weights --split_group=host --state_split_strategy=greedy:4",
            "--state_split_strategy=greedy:4: expected even with --split_group=host",
        ),
        (4, "--split_group=host", "--split_group=host: remove this flag, or add --split_weights"),
        (4, "--split_grad_accum --prefetch_blocks=2", "--prefetch_blocks=2: remove this flag, or add --split_weights"),
        (
            4,
            "--split_weights --backward_segments=2",
            "--backward_segments=2: remove this flag: with --split_weights, backward runs block by block",
        ),
        (4, "--sequence_parallel", "--sequence_parallel=true: remove this flag, or add --tensor_parallel_size > 1"),
        (
            4,
            "--tensor_parallel_size=2 --sequence_parallel --max_seq_length=31",
            "--max_seq_length=31: expected a multiple of --tensor_parallel_size=2 with --sequence_parallel",
        ),
        (
            8,
            "--tensor_parallel_size=2 --split_opt_state --state_split_strategy=greedy:5",
            "--state_split_strategy=greedy:5: expected at most the 4 data parallel ranks",
        ),
        (4, "--state_split_strategy=naive", "--state_split_strategy=naive: remove this flag, or add --split_opt_state"),
        (4, "--split_opt_state --state_split_strategy=greedy", "--state_split_strategy=greedy: expected even, naive"),
        (
            4,
            "--tensor_parallel_size=2 --pipeline_parallel_size=2 --pipeline_schedule=zero_bubble --jit_compile=true",
            "--jit_compile=true: expected auto or false with --tensor_parallel_size > 1 and --pipeline_schedule=zero",
        ),
        (4, "--global_batch_size=12", "--global_batch_size=12: expected a"),
        (4, "--tensor_parallel_size=0", "--tensor_parallel_size=0: expected"),
        (4, "--pipeline_parallel_size=0", "--pipeline_parallel_size=0: expected"),
        (4, "--virtual_pipeline_size=2", "--virtual_pipeline_size=2: expected 1 with --pipeline_schedule=1f1b"),
        (1, "--pipeline_schedule=dualpipe", "--pipeline_schedule=dualpipe: expected one of 1f1b, gpipe"),
    ],
)
def test_what_does_not_divide_is_refused_in_one_line(ranks, given, expected, tmp_path):
    config, misread, _ = read(TrainConfig, [*GIVEN, f"--output_dir={tmp_path}", *given.split()])
    found = [
        str(problem) for problem in run.all_problems(config, misread, Inputs.open(config), Launch(0, ranks, 0, ranks))
    ]
    if expected.endswith(" ok"):
        assert found == []
        return
    (line,) = found
    assert expected in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--grad_accum_steps=8", ""),
        (
            "--grad_accum_steps=6",
            "expected the number of micro-batches to be a multiple of --pipeline_parallel_size=4, such as 4 or 8",
        ),
        # The smaller batches of a ramp are 4 and 6 micro-batches.
        ("--global_batch_size=16 --batch_rampup=8:4:100", "such as 4 or 8, not 6"),
        (
            "--grad_accum_steps=8 --num_hidden_layers=7",
            "--pipeline_parallel_size=4 x --virtual_pipeline_size=2 are 8 model chunks: "
            "expected at most --num_hidden_layers=7",
        ),
    ],
)
def test_interleaved_stages_need_layers_and_micro_batches(given, expected, tmp_path):
    stages = ["--pipeline_parallel_size=4", "--pipeline_schedule=interleaved", "--virtual_pipeline_size=2"]
    config, misread, _ = read(TrainConfig, [*GIVEN, f"--output_dir={tmp_path}", *stages, *given.split()])
    assert misread == []
    found = [str(problem) for problem in config.problems(4)]
    assert len(found) == bool(expected)
    assert expected in "".join(found)


def test_batches_are_shared_by_the_ranks_that_split_no_layer():
    parallel = ParallelConfig(tensor_parallel_size=4, pipeline_parallel_size=2)
    assert parallel.data_parallel_size(32) == 4
    assert BatchConfig(micro_batch_size=2, global_batch_size=24).resolve(4).grad_accum_steps == 3
