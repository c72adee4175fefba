"""A save that fails or dies at any moment leaves whole checkpoints, and the next one is not disturbed."""

import contextlib
import itertools
import os
import shutil
import sys
import threading

import numpy as np
import pytest

from tests.checkpoint import states
from tftrain.checkpoint import folder, save, shard
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.reader import Reader
from tftrain.checkpoint.save import Attempt
from tftrain.checkpoint.tensor_slice import TensorData, TensorSlice
from tftrain.files import durable

pytestmark = pytest.mark.slow


def state(step):
    return {"master/a": np.full((3, 2), step, np.float32), "progress/step": np.array(step)}


def steps(output_dir):
    """The steps of all checkpoints, each of which is whole."""
    found = folder.find(output_dir)
    for path in found:
        Reader(path).verify()
        tensors = states.stored(path)
        for name, value in state(folder.order(path)[0]).items():
            np.testing.assert_array_equal(tensors[name], value)
    return [folder.order(path)[0] for path in found]


def test_the_newest_and_every_so_manieth_are_kept(tmp_path):
    for step in (1, 2, 4, 5, 8, 9, 10):
        states.saved(tmp_path, state(step), step, keep_last=2, keep_every=4)
    assert steps(tmp_path) == [4, 8, 9, 10]


def test_a_step_that_is_saved_again_replaces_the_old_checkpoint(tmp_path):
    first = states.saved(tmp_path, state(2), 2).path
    second = states.saved(tmp_path, state(2), 2).path
    third = states.saved(tmp_path, state(2), 2).path
    assert [path.name for path in (first, second, third)] == [
        "step_00000002",
        "step_00000002_again_2",
        "step_00000002_again_3",
    ]
    assert folder.find(tmp_path) == [third]


def test_names_that_are_no_checkpoints_are_left_alone(tmp_path):
    states.saved(tmp_path, state(1), 1)
    home = folder.checkpoint_folder(tmp_path)
    (home / "step_00000002").mkdir()
    (home / "step_1").mkdir()
    (home / "step_00000003").symlink_to(home / "step_00000001")
    assert steps(tmp_path) == [1]
    assert states.saved(tmp_path, state(2), 2, keep_last=1).path.name == "step_00000002_again_2"
    assert steps(tmp_path) == [2]


class Killed(BaseException):
    """What no code catches."""


class Killer:
    """Raises before the n-th time that a file is opened, made, renamed or removed."""

    EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")

    def __init__(self):
        self.left = None
        sys.addaudithook(self)

    def __call__(self, event, args):
        if self.left is not None and event in self.EVENTS:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Killed

    def stop(self):
        """Returns whether it has come to that."""
        died, self.left = self.left is None, None
        return died


KILLER = Killer()


@pytest.mark.parametrize("step", [3, 2], ids=["the next step", "the same step again"])
def test_a_save_that_dies_at_any_moment_leaves_whole_checkpoints(tmp_path, step):
    before = tmp_path / "before"
    before.mkdir()
    for old in (1, 2):
        states.saved(before, state(old), old)
    newest = []
    for moment in itertools.count():
        run = tmp_path / "run"
        shutil.copytree(before, run)
        KILLER.left = moment
        with contextlib.suppress(Killed):
            states.saved(run, state(step), step, keep_last=2, number=2)
        died = KILLER.stop()
        found = steps(run)
        assert found
        assert found[-1] in (2, step), f"at moment {moment}"
        newest.append(folder.find(run)[-1].name)
        states.saved(run, state(4), 4, keep_last=2, number=3)
        assert steps(run)[-1] == 4
        assert len(list(folder.checkpoint_folder(run).iterdir())) == 2, "something was left behind"
        shutil.rmtree(run)
        if not died:
            break
    assert moment > 15
    # First the old one, from some moment on the new one.
    assert len(list(itertools.groupby(newest))) == 2


@pytest.mark.parametrize("phase", ["write_shard", "announce", "write_manifest", "commit"])
def test_an_error_in_any_phase_is_reported_and_the_older_checkpoint_stays(tmp_path, monkeypatch, phase):
    states.saved(tmp_path, state(1), 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(save, phase, full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            states.saved(tmp_path, state(2), 2)
    assert steps(tmp_path) == [1]
    states.saved(tmp_path, state(3), 3, keep_last=1)
    assert [path.name for path in folder.checkpoint_folder(tmp_path).iterdir()] == ["step_00000003"]


def test_a_checkpoint_counts_even_if_older_ones_can_t_be_removed(tmp_path, monkeypatch, capsys):
    states.saved(tmp_path, state(1), 1)

    def refused(*_):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(save, "clean_up", refused)
    states.saved(tmp_path, state(2), 2, keep_last=1)
    assert steps(tmp_path) == [1, 2]
    assert "can't be removed: [Errno 13] Permission denied" in capsys.readouterr().err


def test_a_folder_that_has_vanished_is_not_made_again(tmp_path):
    states.saved(tmp_path, state(1), 1)
    folder.checkpoint_folder(tmp_path).rename(tmp_path / "unmounted")
    with pytest.raises(CheckpointError, match="No such file"):
        save.write(Attempt(tmp_path, 2, 1), states.whole_pieces(state(2)))
    assert [path.name for path in tmp_path.iterdir()] == ["unmounted"]


def two_ranks(output_dir, number=1):
    """Both ranks' attempts, and the pieces that each saves."""
    folder.checkpoint_folder(output_dir).mkdir(exist_ok=True)
    value = np.arange(6, dtype=np.float32)
    cuts = ((0, 2), (2, 6))
    tensors = [[TensorData(TensorSlice.block("x", (6,), "F32", elements=cut), value[slice(*cut)])] for cut in cuts]
    return [Attempt(output_dir, 1, number, rank, 2) for rank in range(2)], tensors


def complete(attempt, seconds=5.0, given_up=lambda: False):
    return save.complete(attempt, {}, states.keep(3), seconds, given_up)


def test_each_rank_flushes_the_names_of_its_shards_before_it_announces_them(tmp_path, monkeypatch):
    """Each rank's host keeps names of its own in memory, so what the chief flushes later says nothing of them."""
    attempts, owned = two_ranks(tmp_path)
    done, announce = [], save.announce
    flush = durable.flush
    monkeypatch.setattr(durable, "flush", lambda path: done.append((path, sorted(os.listdir(path)))) or flush(path))
    monkeypatch.setattr(save, "announce", lambda attempt, files: done.append(sorted(files)) or announce(attempt, files))
    for attempt, tensors in zip(attempts, owned, strict=True):
        done.clear()
        save.write(attempt, tensors)
        (files,) = [entry for entry in done if isinstance(entry, list)]
        flushed = dict(done[: done.index(files)])
        assert set(files) <= set(flushed[attempt.folder])
        assert attempt.folder.name in flushed[attempt.folder.parent]


def test_the_chief_waits_for_a_late_rank(tmp_path):
    (chief, other), owned = two_ranks(tmp_path)
    save.write(chief, owned[0])
    late = threading.Timer(0.2, save.write, (other, owned[1]))
    late.start()
    np.testing.assert_array_equal(states.stored(complete(chief))["x"], np.arange(6))
    late.join()


def test_a_rank_that_fails_says_so_to_the_chief(tmp_path, monkeypatch):
    (chief, other), owned = two_ranks(tmp_path)
    save.write(chief, owned[0])
    with monkeypatch.context() as patch:
        patch.setattr(shard, "write", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(CheckpointError):
            save.write(other, owned[1])
    with pytest.raises(CheckpointError, match=r"rank 1: .*Input/output error"):
        complete(chief)


def test_a_rank_that_is_silent_is_named_in_time(tmp_path):
    (chief, _), owned = two_ranks(tmp_path)
    save.write(chief, owned[0])
    with pytest.raises(CheckpointError, match="rank 1 has not written its shards"):
        complete(chief, seconds=0.05)
    with pytest.raises(CheckpointError, match="another rank"):
        complete(chief, given_up=lambda: True)


def test_what_an_earlier_attempt_has_left_is_not_taken_for_this_one_s(tmp_path):
    for attempt, owned in zip(*two_ranks(tmp_path, number=1), strict=True):
        save.write(attempt, owned)
    (chief, other), owned = two_ranks(tmp_path, number=2)
    save.write(chief, owned[0])
    with pytest.raises(CheckpointError, match="rank 1 has not written"):
        complete(chief, seconds=0.05)
    save.write(other, owned[1])
    complete(chief)
    assert [path.name for path in folder.checkpoint_folder(tmp_path).iterdir()] == ["step_00000001"]


def test_pieces_that_are_not_a_whole_are_never_a_checkpoint(tmp_path):
    (chief, other), owned = two_ranks(tmp_path)
    save.write(chief, owned[0])
    save.write(other, owned[0])
    with pytest.raises(CheckpointError, match="twice"):
        complete(chief)
    assert folder.find(tmp_path) == []


def test_each_file_is_checked_by_one_of_the_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(shard, "SHARD_BYTES", 100)
    reader = states.saved(tmp_path, {f"master/{index}": np.ones(40, np.float32) for index in range(5)})
    for name in reader.manifest.files:
        path = reader.path / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"\xff")
        found = 0
        for rank in range(3):
            try:
                reader.verify(rank, 3)
            except CheckpointError as error:
                assert name in str(error)  # noqa: PT017 - exactly one of three raises
                found += 1
        assert found == 1
        path.write_bytes(content)


def test_starting_over_moves_the_reports_of_the_old_run_even_if_it_saved_nothing(tmp_path):
    folder.checkpoint_folder(tmp_path).mkdir()
    assert folder.set_aside(tmp_path, -1) is None
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events").write_text("old")
    for name in ("metrics.jsonl", "log.txt", "config.json"):
        (tmp_path / name).write_text(name)
    (folder.checkpoint_folder(tmp_path) / "not_finite_step_00000007").mkdir()
    aside = folder.set_aside(tmp_path, -1)
    assert aside.name == "set_aside_1"
    expected = ["log.txt", "metrics.jsonl", "not_finite_step_00000007", "tensorboard"]
    assert sorted(path.name for path in aside.iterdir()) == expected
    assert (aside / "tensorboard" / "events").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "config.json"]
    assert folder.set_aside(tmp_path, -1) is None


def test_later_checkpoints_are_set_aside_with_damaged_ones(tmp_path):
    for step in (1, 2, 3):
        states.saved(tmp_path, state(step), step)
    (folder.checkpoint_folder(tmp_path) / "step_00000003" / "manifest.json").unlink()
    (tmp_path / "metrics.jsonl").write_text("x")
    aside = folder.set_aside(tmp_path, 1)
    assert sorted(path.name for path in aside.iterdir()) == ["metrics.jsonl", "step_00000002", "step_00000003"]
    assert steps(tmp_path) == [1]
    assert folder.set_aside(tmp_path, 1) is None
