"""A run on a mixture, from flags to files: it resumes on other ranks and micro-batches, with losses of each source."""

import numpy as np
import pytest

from tests.checkpoint import states
from tests.kit import corpora
from tests.kit.ranks import run_ranks
from tests.kit.runs import losses, rows
from tftrain.checkpoint import folder as checkpoints
from tftrain.prepare.preparation import prepare

pytestmark = [pytest.mark.slow, pytest.mark.multirank]
SIZES = "--num_hidden_layers=1 --hidden_size=32 --num_attention_heads=2 --learning_rate=0.01 --log_every=1"


def run(ranks, flags, code=0):
    return run_ranks(ranks, ["-m", "tftrain.run", *flags.split()], expected_code=code)


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
    flags = f"{SIZES} --mix={mix} --output_dir={folder} --micro_batch_size=12 --checkpoint_every=4 --max_steps=8"
    output = run(1, f"{flags} --global_batch_size=12 --eval_every=4 --eval_examples=30")
    return folder, output


def test_the_log_has_share_and_epochs_of_each_source(whole):
    _, output = whole
    assert "mix      s0 70.00% of the samples" in output
    assert "mixture: s0 70.00% of the samples" in output


def test_each_source_has_its_training_loss(whole):
    folder, output = whole
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
    lines = run(1, f"--mode=evaluate --output_dir={folder} --eval_examples=30")
    for number in range(2):
        assert f"mlm loss/s{number}             {rows(folder)[1][-1][f'eval_mlm_loss/s{number}']:.4f}" in lines


@pytest.mark.parametrize(
    ("ranks", "micro_batch"), [(1, 3), *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((2, 3), (3, 2)))]
)
def test_a_resume_on_other_ranks_and_micro_batches_reads_the_same_samples(whole, tmp_path, ranks, micro_batch):
    folder, _ = whole
    states.begun_from(checkpoints.find(folder)[0], tmp_path)
    run(ranks, f"--output_dir={tmp_path} --micro_batch_size={micro_batch} --max_steps=8")
    np.testing.assert_allclose(losses(tmp_path), losses(folder), rtol=1e-5)
    for number in range(2):
        of_both = ([row[f"mlm_loss/s{number}"] for row in rows(each)[0]] for each in (tmp_path, folder))
        np.testing.assert_allclose(*of_both, rtol=1e-5)


def test_a_resume_with_another_mixture_must_be_meant(whole, mix, tmp_path):
    states.begun_from(checkpoints.find(whole[0])[0], tmp_path)
    other = mix.replace("s0=7", "s0=6")
    refused = run(1, f"--output_dir={tmp_path} --mix={other} --max_steps=5", code=1)
    assert "--change_on_resume=mix" in refused
    output = run(1, f"--output_dir={tmp_path} --mix={other} --max_steps=5 --change_on_resume=mix")
    assert "resuming with the source s0: 0.666667" in output
