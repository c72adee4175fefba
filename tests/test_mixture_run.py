"""A run on a mixture, from flags to files: it resumes on other ranks and micro-batches, with losses of each source."""

import numpy as np
import pytest

from tests.checkpoint import states
from tests.kit import corpora
from tests.kit.ranks import run_ranks
from tests.kit.runs import losses, rows, run_alone
from tftrain.checkpoint import folder as checkpoints
from tftrain.prepare.preparation import prepare

pytestmark = pytest.mark.slow
SIZES = "--num_hidden_layers=1 --hidden_size=32 --num_attention_heads=2 --learning_rate=0.01 --log_every=1"


@pytest.fixture(scope="module")
def mix(prepare_config, tmp_path_factory):
    root, entries = tmp_path_factory.mktemp("mixture"), []
    for number, share in enumerate((7, 3)):
        (root / f"{number}.txt").write_text(corpora.text(60, seed=number + 10))
        prepare(prepare_config(root / str(number), input_files=f"{root}/{number}.txt", packing="greedy"))
        entries.append(f"s{number}={share}:{root / str(number)}")
    return ",".join(entries)


@pytest.fixture(scope="module")
def whole(mix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    flags = f"{SIZES} --mix={mix} --output_dir={folder} --micro_batch_size=3 --checkpoint_every=4 --max_steps=8"
    return folder, run_alone(*flags.split(), "--global_batch_size=12", "--eval_every=4", "--eval_examples=30")


def test_each_source_has_its_share_and_its_training_loss(whole):
    folder, output = whole
    assert "mix      s0 70.00% of the samples" in output
    assert "mixture: s0 70.00% of the samples" in output
    for row in rows(folder)[0]:
        low, high = sorted(row[f"mlm_loss/s{number}"] for number in range(2))
        assert low < row["mlm_loss"] < high
        assert f"s0 {row['mlm_loss/s0']:.3f} s1 {row['mlm_loss/s1']:.3f})" in output


def test_each_source_is_evaluated(whole):
    folder, output = whole
    for row in rows(folder)[1]:
        low, high = sorted(row[f"eval_mlm_loss/s{number}"] for number in range(2))
        assert low < row["eval_mlm_loss"] < high
    assert "mlm_loss/s0 " in output
    assert not (folder / "score_curve.png").exists()
    lines = run_alone("--mode=evaluate", f"--output_dir={folder}", "--eval_examples=30")
    for number in range(2):
        assert f"mlm loss/s{number}             {rows(folder)[1][-1][f'eval_mlm_loss/s{number}']:.4f}" in lines


@pytest.mark.nightly  # tests/data/test_mixture.py has the samples.
@pytest.mark.multirank
@pytest.mark.parametrize(("ranks", "micro_batch"), [(1, 12), (2, 3), (3, 2)])
def test_a_resume_on_other_ranks_reads_the_same_samples(whole, tmp_path, ranks, micro_batch):
    states.begun_from(checkpoints.find(whole[0])[0], tmp_path)
    flags = (f"--output_dir={tmp_path}", "--max_steps=8", f"--micro_batch_size={micro_batch}")
    run_ranks(ranks, ["-m", "tftrain.run", *flags])
    np.testing.assert_allclose(losses(tmp_path), losses(whole[0]), rtol=1e-5)
    for number in range(2):
        of_both = ([row[f"mlm_loss/s{number}"] for row in rows(each)[0]] for each in (tmp_path, whole[0]))
        np.testing.assert_allclose(*of_both, rtol=1e-5)
