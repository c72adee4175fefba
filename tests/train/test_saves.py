"""Saves of a run: training does not wait for the disk, failures are counted, and too many in a row end it."""

import shutil
import threading

import numpy as np
import pytest

from tests.checkpoint import states
from tests.distributed import run_ranks
from tests.test_run import SMALL, configured, losses, rows
from tftrain.checkpoint import folder, memory, save
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.reader import Reader
from tftrain.config import RunConfig
from tftrain.parallel.mesh import Mesh
from tftrain.train import loop, saves
from tftrain.train.saves import Saves

SECONDS = 20


class Trained:
    """A state that changes in place, as training changes it, and its saves."""

    def __init__(self, output_dir, **settings):
        self.value = np.zeros(5, np.float32)
        self.lines = []
        folder.of(output_dir).mkdir()
        self.saves = Saves(RunConfig(output_dir=str(output_dir), **settings), Mesh(), self.lines.append)

    def save(self, step):
        """Saves a state of the step's number, which is another one right after that."""
        self.value[:] = step
        self.saves.start(step, {}, lambda: states.whole_pieces({"master/x": self.value}))
        self.value[:] = -1


@pytest.fixture
def held(monkeypatch):
    """Writing waits for this event."""
    event, write_shard = threading.Event(), save.write_shard

    def wait(*args):
        assert event.wait(SECONDS)
        return write_shard(*args)

    monkeypatch.setattr(save, "write_shard", wait)
    return event


@pytest.fixture
def broken(monkeypatch):
    """Says for each save to come whether the disk is full; the last word counts for all that follow."""
    verdicts, write_shard = [False], save.write_shard

    def maybe(*args):
        if verdicts.pop(0) if len(verdicts) > 1 else verdicts[0]:
            raise OSError(28, "No space left on device")
        return write_shard(*args)

    monkeypatch.setattr(save, "write_shard", maybe)
    return verdicts


def values(output_dir):
    return {folder.order(path)[0]: states.stored(path)["master/x"][0] for path in folder.find(output_dir)}


def test_training_goes_on_while_a_copy_of_that_moment_is_written(tmp_path, held):
    trained = Trained(tmp_path)
    trained.save(1)
    assert values(tmp_path) == {}
    held.set()
    trained.saves.finish()
    assert values(tmp_path) == {1: 1}
    assert trained.lines == [f"checkpoint {folder.of(tmp_path)}/step_00000001"]


def test_the_first_save_copies_into_memory_that_was_prepared(tmp_path, monkeypatch):
    trained, written, prepared = Trained(tmp_path), [], []
    write_shard, arrays = save.write_shard, memory.arrays
    monkeypatch.setattr(memory, "arrays", lambda pieces: (prepared.append(arrays(pieces)), prepared[0])[1])
    monkeypatch.setattr(save, "write_shard", lambda path, owned: (written.extend(owned), write_shard(path, owned))[1])
    ((piece, _),) = states.whole_pieces({"master/x": trained.value})
    trained.saves.prepare([piece])
    trained.save(1)
    trained.saves.finish()
    ((_, copy),) = written
    assert np.shares_memory(copy, prepared[0][piece])
    assert values(tmp_path) == {1: 1}


def test_without_async_no_memory_is_taken_for_copies(tmp_path, monkeypatch):
    trained, prepared = Trained(tmp_path, checkpoint_async=False), []
    monkeypatch.setattr(memory, "arrays", prepared.append)
    trained.saves.prepare([piece for piece, _ in states.whole_pieces({"master/x": trained.value})])
    assert not prepared


def test_a_second_save_waits_for_the_first(tmp_path, held):
    trained = Trained(tmp_path)
    trained.save(1)
    second = threading.Thread(target=trained.save, args=(2,))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    held.set()
    second.join(SECONDS)
    trained.saves.finish()
    assert values(tmp_path) == {1: 1, 2: 2}


def test_without_async_the_checkpoint_is_there_when_training_goes_on(tmp_path):
    trained = Trained(tmp_path, checkpoint_async=False)
    trained.save(1)
    assert values(tmp_path) == {1: 1}


def test_a_failed_save_is_counted_and_the_older_checkpoint_stays(tmp_path, broken):
    trained = Trained(tmp_path)
    broken[:] = [False, True, False]
    for step in (1, 2, 3):
        trained.save(step)
    trained.saves.finish()
    assert values(tmp_path) == {1: 1, 3: 3}
    assert trained.saves.failed == 1
    assert "the checkpoint of step 2 has failed: rank 0: [Errno 28] No space left on device" in trained.lines
    assert sorted(path.name for path in folder.of(tmp_path).iterdir()) == ["step_00000001", "step_00000003"]


def test_too_many_failures_in_a_row_end_the_run(tmp_path, broken):
    trained = Trained(tmp_path, max_failed_saves=2)
    broken[:] = [True, False, True]
    for step in (1, 2, 3, 4):
        trained.save(step)
    with pytest.raises(CheckpointError, match=r"2 saves in a row .*--max_failed_saves.*No space left on device"):
        trained.save(5)
    assert trained.saves.failed == 3


def test_a_run_whose_last_save_fails_does_not_end_well(tmp_path, broken):
    trained = Trained(tmp_path)
    broken[:] = [True]
    trained.save(1)
    with pytest.raises(CheckpointError, match=r"the last save has failed: .*No space left on device"):
        trained.saves.finish()


def test_any_error_in_the_background_is_a_failed_save(tmp_path, monkeypatch):
    trained = Trained(tmp_path)
    monkeypatch.setattr(save, "commit", lambda attempt: 1 / 0)
    trained.save(1)
    trained.saves.settle()
    assert trained.saves.failed == 1
    assert "ZeroDivisionError" in trained.lines[0]


def test_a_disk_that_does_not_answer_is_a_failed_save(tmp_path, held, monkeypatch):
    monkeypatch.setattr(saves, "WRITE_SECONDS", 0.05)
    monkeypatch.setattr(saves, "COMPLETE_SECONDS", 0.05)
    trained = Trained(tmp_path, max_failed_saves=2)
    trained.save(1)
    trained.save(2)  # over memory of its own, in case the first still reads its copy
    assert trained.saves.failed == 1
    held.set()
    monkeypatch.undo()
    trained.saves.settle()
    assert values(tmp_path)[2] == 2
    assert values(tmp_path).get(1, 1) == 1


def test_failed_saves_stand_in_the_metrics_and_training_goes_on(tmp_path, broken):
    broken[:] = [False, True, True, False]
    loop.train(
        configured(f"--output_dir={tmp_path}", "--global_batch_size=4", "--max_steps=6", "--checkpoint_every=1"), Mesh()
    )
    # Of the save after step k one knows at step k + 1, after its row.
    assert [row["failed_saves"] for row in rows(tmp_path)[0]] == [0, 0, 0, 1, 2, 2]
    assert [folder.order(path)[0] for path in folder.find(tmp_path)] == [4, 5, 6]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four steps with a checkpoint after each second."""
    output_dir = tmp_path_factory.mktemp("trained")
    loop.train(configured(*settings(output_dir), "--checkpoint_every=2"), Mesh())
    return output_dir


def settings(output_dir):
    return (f"--output_dir={output_dir}", "--global_batch_size=4", "--max_steps=4")


def copied(trained, output_dir):
    shutil.copytree(trained, output_dir, dirs_exist_ok=True)
    return folder.find(output_dir)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_it_is_used(trained, tmp_path, capsys):
    damaged = copied(trained, tmp_path)[-1]
    flip(damaged / "shard_00000_000.safetensors")
    loop.train(configured(*settings(tmp_path)), Mesh())
    output = capsys.readouterr().out
    assert f"this checkpoint can't be used: {damaged}/shard_00000_000.safetensors: damaged" in output
    assert "continuing after step 2" in output
    assert (folder.of(tmp_path) / "set_aside_1" / damaged.name).is_dir()
    assert losses(tmp_path) == losses(trained)


def test_a_damaged_checkpoint_that_is_named_is_refused(trained, tmp_path):
    damaged = copied(trained, tmp_path)[-1]
    flip(damaged / "shard_00000_000.safetensors")
    with pytest.raises(CheckpointError, match=rf"--resume={damaged}: .*shard_00000_000.*damaged"):
        loop.train(configured(*settings(tmp_path), f"--resume={damaged}"), Mesh())


def test_if_all_are_damaged_nobody_starts_over_unasked(trained, tmp_path):
    for path in copied(trained, tmp_path):
        flip(path / "shard_00000_000.safetensors")
    with pytest.raises(CheckpointError, match=r"none of its 2 checkpoints .*--resume=none"):
        loop.train(configured(*settings(tmp_path)), Mesh())


def test_another_recipe_must_be_asked_for_and_a_longer_run_is_told_of(trained, tmp_path, capsys):
    copied(trained, tmp_path)
    longer = (*settings(tmp_path), "--max_steps=5")
    with pytest.raises(CheckpointError, match=r"--decay_power=2.0, saved with 1.0; .*--change_on_resume=decay_power"):
        loop.train(configured(*longer, "--decay_power=2"), Mesh())
    loop.train(configured(*longer), Mesh())
    assert "resuming with --max_steps=5, saved with 4" in capsys.readouterr().out
    assert len(losses(tmp_path)) == 5


def test_the_manifest_says_what_a_reader_wants_to_know(trained):
    manifest = Reader(folder.find(trained)[-1]).manifest
    assert manifest.step == 4
    assert manifest.run["progress"]["consumed_samples"] == 16
    assert manifest.run["config"]["run"]["max_steps"] == 4
    assert (manifest.run["seed"], manifest.run["loss_scale"]) == (1, 1.0)
    assert manifest.run["schedule"]["updates"] == 4


@pytest.mark.slow
@pytest.mark.multirank
def test_ranks_of_another_layout_go_on_where_two_have_stopped(tmp_path):
    args = ["-m", "tftrain.run", *SMALL, "--nouse_bias_in_keys", "--global_batch_size=8", "--max_steps=4"]
    args += [f"--output_dir={tmp_path}", "--checkpoint_every=2", "--keep_last=1", "--keep_every=2", "--cpu_threads=1"]
    run_ranks(2, [*args, "--split_opt_state"])
    before, (second, last) = losses(tmp_path), folder.find(tmp_path)
    shard = last / "shard_00001_000.safetensors"
    flip(shard)
    output = run_ranks(2, [*args, "--tensor_parallel_size=2"])
    assert f"this checkpoint can't be used: {shard}: damaged" in output
    assert f"continuing after step 2 of {second}" in output
    np.testing.assert_allclose(losses(tmp_path), before, rtol=1e-5)
