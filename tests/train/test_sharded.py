"""A run with sharded weights (ZeRO-3) goes on with whole ones and back; `layouts` compares the updates."""

import pytest

from tests.kit.ranks import run_ranks
from tests.kit.runs import read_rows
from tftrain.prepare.preparation import prepare

SMALL = ("--num_hidden_layers=2", "--hidden_size=32", "--num_attention_heads=2", "--global_batch_size=4")


@pytest.mark.multirank
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_run_goes_on_in_other_layouts_and_back_and_is_evaluated_and_predicted(prepare_config, tmp_path):
    """Its evaluations equal those of one rank, which reads the same checkpoints."""
    folder, data = tmp_path / "run", tmp_path / "data"
    prepare(prepare_config(data))
    given = (*SMALL, f"--data_dir={data}", f"--output_dir={folder}", "--ema_decay=0.5", "--eval_every=1")
    for steps, (ranks, flags) in enumerate(
        [
            (2, ("--tensor_parallel_size=1", "--split_weights")),
            (2, ("--tensor_parallel_size=2", "--split_weights=false")),
            (2, ("--tensor_parallel_size=1", "--split_weights")),
            (1, ("--tensor_parallel_size=1", "--split_weights")),
        ],
        start=1,
    ):
        output = run_ranks(ranks, ["-m", "tftrain.run", *given, *flags, f"--max_steps={steps}"])
        assert ("have no effect" in output) == (ranks == 1)
        assert steps == 1 or f"continuing after step {steps - 1}" in output
        alone = run_ranks(1, ["-m", "tftrain.run", *given[:-1], "--mode=evaluate"])
        rows = read_rows(folder)
        loss = next(row["eval_mlm_loss"] for row in reversed(rows) if "eval_mlm_loss" in row)
        assert f"{loss:.4f} nats" in alone
    for flags in ((), ("--weights=averaged",)):
        evaluation = ["-m", "tftrain.run", *given[:-1], "--mode=evaluate", "--ema_decay=0.5", *flags]
        lines = [line for line in run_ranks(1, evaluation).splitlines() if "  " in line and "goodput" not in line]
        sharded = run_ranks(2, [*evaluation, "--split_weights"])
        assert "each rank holds one of 2 shards" in sharded
        assert [line for line in lines if line in sharded] == lines
        assert len(lines) >= 5
    assert "[MASK]" in run_ranks(1, ["-m", "tftrain.predict", f"--output_dir={folder}", "[MASK]"])
