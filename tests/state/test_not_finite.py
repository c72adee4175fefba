"""A state that is not finite, or that gives no finite loss, never takes the place of a good checkpoint."""

import numpy as np
import pytest

from tests.checkpoint import states
from tests.kit.runs import rows, train_alone
from tftrain.checkpoint import folder, memory
from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.host.exit_codes import NotFiniteError
from tftrain.parallel.mesh import Mesh
from tftrain.state.saves import Saves

SETTINGS = ("--global_batch_size=4", "--checkpoint_every=2", "--keep_last=2", "--eval_every=-1", "--warmup_steps=0")


@pytest.mark.parametrize("size", [1, 2, memory.CACHED_ELEMENTS, 3 * memory.CACHED_ELEMENTS + 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_bad_element_anywhere_is_found(size, dtype):
    random = np.random.default_rng(size)
    values = random.uniform(-1, 1, size).astype(dtype) * np.finfo(dtype).max
    assert memory.is_finite(values)
    for bad in (np.nan, np.inf, -np.inf):
        for place in {0, size - 1, int(random.integers(size))}:
            spoiled = values.copy()
            spoiled[place] = bad
            assert not memory.is_finite(spoiled)


def test_integers_are_finite_and_so_is_nothing():
    assert memory.is_finite(np.array([-(2**62)]))
    assert memory.is_finite(np.zeros(0, np.float32))


def made(output_dir, **settings):
    config = changed(TrainConfig(), {"output_dir": str(output_dir), "keep_last": 1, **settings})
    return Saves(config.checkpoint, config.run, 60.0, Mesh(), lambda: None)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_state_with_a_bad_element_is_refused_and_nothing_is_written(tmp_path, bad, last):
    value = np.ones(5, np.float32)
    folder.checkpoint_folder(tmp_path).mkdir()
    saves = made(tmp_path, checkpoint_every=1)
    tensors = lambda: states.whole_pieces({"adam_v/x": value})  # noqa: E731
    saves.start(1, {}, tensors)
    saves.settle()
    value[3] = bad

    def save():
        saves.start(2, {}, tensors, last)
        saves.finish()

    with pytest.raises(NotFiniteError, match=r"after step 2 the state on rank 0 is not finite \(adam_v/x\)"):
        save()
    (path,) = folder.checkpoint_folder(tmp_path).iterdir()
    assert states.stored(path)["adam_v/x"].tolist() == [1] * 5


def test_a_doubtful_checkpoint_stands_beside_the_others_and_can_be_read(tmp_path):
    folder.checkpoint_folder(tmp_path).mkdir()
    saves = made(tmp_path)
    tensors = lambda: states.whole_pieces({"master/x": np.ones(5, np.float32)})  # noqa: E731
    saves.start(1, {}, tensors, last=True)
    for _ in range(2):
        saves.start(2, {}, tensors, last=True, is_good=False)
    saves.finish()
    assert [path.name for path in folder.find(tmp_path)] == ["step_00000001"]
    names = {path.name for path in folder.checkpoint_folder(tmp_path).iterdir()}
    assert names == {"step_00000001", "not_finite_step_00000002", "not_finite_step_00000002_again_2"}
    assert states.stored(folder.checkpoint_folder(tmp_path) / "not_finite_step_00000002").keys() == {"master/x"}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Four good steps with two checkpoints."""
    output_dir = tmp_path_factory.mktemp("good")
    train_alone(*SETTINGS, f"--output_dir={output_dir}", "--max_steps=4")
    return output_dir


def contents(output_dir):
    return {path.name: states.stored(path) for path in folder.find(output_dir)}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensors in expected.items():
        for tensor, value in tensors.items():
            np.testing.assert_array_equal(found[name][tensor], value, err_msg=f"{name}: {tensor}")


@pytest.mark.slow
def test_a_run_whose_weights_explode_ends_with_76_and_leaves_the_good_checkpoints(good):
    before = contents(good)
    explode = ("--learning_rate=1e30", "--change_on_resume=learning_rate", "--max_steps=15")
    message = "the run does not end with finite numbers: in step 15 the loss on rank 0 was not"
    with pytest.raises(NotFiniteError, match=message):
        train_alone(*SETTINGS, f"--output_dir={good}", *explode)
    assert NotFiniteError.exit_code == 76
    # Step 5 gave a finite loss and weights of 1e30, which step 6 found out.
    assert_same(contents(good), before)
    doubtful = folder.checkpoint_folder(good) / "not_finite_step_00000015"
    assert max(np.abs(value).max() for value in states.stored(doubtful).values()) > 1e20
    assert rows(good)[0][-1]["loss"] is None
