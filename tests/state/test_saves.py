"""Saves of a run: training does not wait for the disk, failures are counted, and too many in a row end it."""

import shutil
import threading
import time

import numpy as np
import pytest

from tests.checkpoint import states
from tests.kit import runs
from tests.kit.ranks import run_ranks, started_ranks
from tests.kit.runs import SMALL, configured, losses, rows, train_alone
from tftrain.checkpoint import folder, memory, save
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.reader import Reader
from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.host.exit_codes import ExitCode
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.state import saves
from tftrain.state.saves import Saves
from tftrain.train import phases
from tftrain.train.step import TrainStep

pytestmark = pytest.mark.slow

SECONDS = 20
ALONE = Mesh()


class Trained:
    """A state and its saves. What a save is given stays as it is, as that of variables does."""

    def __init__(self, output_dir, mesh=ALONE, **settings):
        self.value = np.zeros(5, np.float32)
        folder.checkpoint_folder(output_dir).mkdir()
        settings = {"checkpoint_every": 1, "output_dir": str(output_dir), **settings}
        config = changed(TrainConfig(), settings)
        self.saves = Saves(config.checkpoint, config.run, config.limits.save_timeout_seconds, mesh, lambda: None)

    def save(self, step):
        """Saves a state of the step's number."""
        value = np.full_like(self.value, step)
        self.saves.start(step, {}, lambda: states.whole_pieces({"master/x": value}))


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


def test_training_goes_on_while_a_copy_of_that_moment_is_written(tmp_path, held, capsys):
    trained = Trained(tmp_path)
    trained.save(1)
    assert values(tmp_path) == {}
    held.set()
    trained.saves.finish()
    assert values(tmp_path) == {1: 1}
    assert capsys.readouterr().out == f"checkpoint {folder.checkpoint_folder(tmp_path)}/step_00000001\n"


def test_the_first_save_copies_into_memory_that_was_prepared(tmp_path, monkeypatch):
    trained, written, prepared = Trained(tmp_path, checkpoint_every=1), [], []
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


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        ({"checkpoint_every": 2, "max_steps": 3}, 1),
        ({"checkpoint_every": 2, "max_steps": 3, "checkpoint_async": False}, 0),
        ({"checkpoint_every": 3, "max_steps": 3}, 0),
        ({"checkpoint_every": 0, "checkpoint_minutes": 1}, 0),
    ],
)
def test_memory_for_copies_is_kept_where_training_goes_on_behind_a_save(tmp_path, settings, copies):
    trained = Trained(tmp_path, **settings)
    trained.saves.prepare([piece for piece, _ in states.whole_pieces({"master/x": trained.value})])
    assert trained.saves.copy_bytes == copies * trained.value.nbytes


def test_the_last_save_writes_the_state_itself(tmp_path, held):
    trained = Trained(tmp_path, checkpoint_every=1)
    trained.value[:] = 1
    trained.saves.start(1, {}, lambda: states.whole_pieces({"master/x": trained.value}), last=True)
    trained.value[:] = 2
    held.set()
    trained.saves.finish()
    assert values(tmp_path) == {1: 2}


def save_when_written(trained, step, held):
    """Saves a step; asserts that training waits until writing goes on."""
    training = threading.Thread(target=trained.save, args=(step,))
    training.start()
    training.join(0.2)
    assert training.is_alive()
    held.set()
    training.join(SECONDS)


def test_training_waits_for_a_save_by_time_alone_and_holds_no_copy_of_its_state(tmp_path, held):
    trained = Trained(tmp_path, checkpoint_every=0)
    save_when_written(trained, 1, held)
    assert values(tmp_path) == {1: 1}
    assert trained.saves.copy_bytes == 0


def test_a_second_save_waits_for_the_first(tmp_path, held):
    trained = Trained(tmp_path)
    trained.save(1)
    save_when_written(trained, 2, held)
    trained.saves.finish()
    assert values(tmp_path) == {1: 1, 2: 2}


def test_without_async_the_checkpoint_is_there_when_training_goes_on(tmp_path):
    trained = Trained(tmp_path, checkpoint_async=False)
    trained.save(1)
    assert values(tmp_path) == {1: 1}


def test_a_failed_save_is_counted_and_the_older_checkpoint_stays(tmp_path, broken, capsys):
    trained = Trained(tmp_path)
    broken[:] = [False, True, False]
    for step in (1, 2, 3):
        trained.save(step)
    trained.saves.finish()
    assert values(tmp_path) == {1: 1, 3: 3}
    assert trained.saves.failed == 1
    assert "the checkpoint of step 2 has failed: rank 0: [Errno 28] No space left on device" in capsys.readouterr().err
    assert sorted(path.name for path in folder.checkpoint_folder(tmp_path).iterdir()) == [
        "step_00000001",
        "step_00000003",
    ]


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


def test_any_error_in_the_background_is_a_failed_save(tmp_path, monkeypatch, capsys):
    trained = Trained(tmp_path)
    monkeypatch.setattr(save, "commit", lambda attempt: 1 / 0)
    trained.save(1)
    trained.saves.settle()
    assert trained.saves.failed == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_disk_that_does_not_answer_is_a_failed_save(tmp_path, held, monkeypatch):
    trained = Trained(tmp_path, max_failed_saves=2, save_timeout_seconds=1)
    trained.save(1)
    trained.save(2)  # over memory of its own, in case the first still reads its copy
    assert trained.saves.failed == 1
    held.set()
    trained.saves.settle()
    assert values(tmp_path)[2] == 2
    assert values(tmp_path).get(1, 1) == 1


def test_ranks_wait_for_a_slow_disk_in_rounds_shorter_than_a_collective_may_take(tmp_path, held, monkeypatch):
    """Another rank that is done would else wait in one collective, until Horovod ends the run."""
    states_seen, gather = [], collectives.gather_numbers

    def recorded(group, value, name):
        if name == "save.written":
            states_seen.append((time.monotonic(), value))
            if len(states_seen) == 4:
                held.set()
        return gather(group, value, name)

    monkeypatch.setattr(collectives, "gather_numbers", recorded)
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "1")
    trained = Trained(tmp_path)
    trained.save(1)
    trained.saves.finish()
    times, values_seen = zip(*states_seen, strict=True)
    assert values_seen[:4] == (saves.WAITING,) * 4
    assert values_seen[-1] == saves.DONE
    assert np.diff(times)[:3].max() < 0.9, "a round takes a tenth of a second"
    assert values(tmp_path) == {1: 1}


def test_a_run_that_fails_lets_its_save_finish(tmp_path, held):
    trained = Trained(tmp_path)
    trained.save(1)
    threading.Timer(0.2, held.set).start()
    with pytest.raises(ZeroDivisionError), trained.saves:
        raise ZeroDivisionError
    assert values(tmp_path) == {1: 1}


def test_the_shards_of_a_rank_that_is_gone_are_not_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(saves.collectives, "gather_numbers", lambda group, value, name: np.array([value, 0.0]))
    trained = Trained(tmp_path, Mesh(rank=0, size=2))
    trained.save(1)
    with pytest.raises(ConnectionError), trained.saves:
        raise ConnectionError("gloo/transport/tcp/pair.cc:589] Read error")
    failure = "the checkpoint of step 1 has failed: another rank can't write its shards"
    assert f"tftrain.run: rank 0: {failure}" in capsys.readouterr().err
    assert list(folder.checkpoint_folder(tmp_path).iterdir()) == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four steps with a checkpoint after each second."""
    output_dir = tmp_path_factory.mktemp("trained")
    train_alone(*settings(output_dir), "--checkpoint_every=2")
    return output_dir


def settings(output_dir):
    return (f"--output_dir={output_dir}", "--global_batch_size=4", "--max_steps=4", "--eval_every=-1")


def test_a_copy_is_of_its_moment_although_updates_come_before_it_is_made(trained, tmp_path, monkeypatch):
    """The fused update writes into the variables themselves, which is the hardest."""
    updated, move, moved = threading.Event(), memory.move, []

    class Going(TrainStep):
        def __call__(self, batch, requests):
            info = super().__call__(batch, requests)
            if int(self._run.progress.step) == 3:
                updated.set()
            return info

    def late(*args):
        moved.append(updated.wait(SECONDS))
        move(*args)

    monkeypatch.setattr(phases, "TrainStep", Going)
    monkeypatch.setattr(memory, "move", late)
    train_alone(*settings(tmp_path / "late"), "--checkpoint_every=2")
    assert moved == [True]
    paths = [folder.checkpoint_folder(each) / "step_00000002" for each in (tmp_path / "late", trained)]
    ours, theirs = map(states.stored, paths)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def copied(trained, output_dir):
    shutil.copytree(trained, output_dir, dirs_exist_ok=True)
    return folder.find(output_dir)


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_it_is_used(trained, tmp_path, capsys):
    damaged = copied(trained, tmp_path)[-1]
    states.flip(damaged / "shard_00000_000.safetensors")
    train_alone(*settings(tmp_path))
    output = capsys.readouterr()
    assert f"this checkpoint can't be used: {damaged}/shard_00000_000.safetensors: damaged" in output.err
    assert "continuing after step 2" in output.out
    assert (folder.checkpoint_folder(tmp_path) / "set_aside_1" / damaged.name).is_dir()
    assert losses(tmp_path) == losses(trained)


def test_a_damaged_checkpoint_that_is_named_is_refused(trained, tmp_path):
    damaged = copied(trained, tmp_path)[-1]
    states.flip(damaged / "shard_00000_000.safetensors")
    with pytest.raises(CheckpointError, match=rf"--resume={damaged}: .*shard_00000_000.*damaged"):
        train_alone(*settings(tmp_path), f"--resume={damaged}")


def test_if_all_are_damaged_nobody_starts_over_unasked(trained, tmp_path):
    for path in copied(trained, tmp_path):
        states.flip(path / "shard_00000_000.safetensors")
    with pytest.raises(CheckpointError, match=r"none of its 2 checkpoints .*--resume=none") as caught:
        train_alone(*settings(tmp_path))
    assert "shard_00000" not in str(caught.value), "the warnings have said why"
    with pytest.raises(CheckpointError, match=r"none of its 2 checkpoints .*expected another --output_dir") as caught:
        runs.evaluate(configured(*settings(tmp_path), "--mode=evaluate"))
    assert "--resume=none" not in str(caught.value)


def test_another_recipe_must_be_asked_for_and_a_longer_run_is_told_of(trained, tmp_path, capsys):
    copied(trained, tmp_path)
    other = (*settings(tmp_path), "--max_steps=5", "--learning_rate=0.02")
    with pytest.raises(CheckpointError, match=r"=0.02, saved with 0.01; .*--change_on_resume=learning_rate"):
        train_alone(*other)
    train_alone(*other, "--change_on_resume=learning_rate")
    output = capsys.readouterr().out
    assert "resuming with --max_steps=5, saved with 4" in output
    # Linear decay without warm-up: 1 of 4 updates is left at the last one, then 1 of 5, from twice the rate.
    assert "learning rate 2.5e-03 at step 4 -> 4.0e-03: the schedule is stretched to 5 steps" in output
    assert len(losses(tmp_path)) == 5


def test_the_manifest_says_what_a_reader_wants_to_know(trained):
    manifest = Reader(folder.find(trained)[-1]).manifest
    assert manifest.step == 4
    assert manifest.run["progress"]["consumed_samples"] == 16
    assert manifest.run["config"]["run"]["max_steps"] == 4
    assert (manifest.run["seed"], manifest.run["loss_scale"]) == (1, 1.0)
    assert manifest.run["schedule"]["updates"] == 4


@pytest.mark.multirank
def test_what_one_of_two_ranks_can_not_see_or_write_both_know_and_count(tmp_path):
    program = f"""
import os, resource, sys
from tftrain import run
from tftrain.checkpoint.errors import CheckpointError
from tftrain.data import pipeline
from tftrain.state import resume

is_second = os.environ["HOROVOD_RANK"] == "1"
require_shared, ramped_batches = resume.require_shared, pipeline.ramped_batches

def apart_first(output_dir, mesh):
    try:
        require_shared(output_dir + "_elsewhere" * is_second, mesh)
    except CheckpointError as error:
        print("refused:", error, flush=True)
    require_shared(output_dir, mesh)

def full_from_step_3(*args):
    for number, batch in enumerate(ramped_batches(*args), 1):
        if number == 3 and is_second:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        yield batch

resume.VISIBLE_SECONDS = 1
resume.require_shared, pipeline.ramped_batches = apart_first, full_from_step_3
settings = {[*SMALL, "--num_hidden_layers=1", "--global_batch_size=8", "--max_steps=8", f"--output_dir={tmp_path}"]}
saves = ["--checkpoint_every=1", "--nocheckpoint_async", "--max_failed_saves=2", "--keep_last=9"]
sys.exit(run.main(["tftrain.run", *settings, *saves]))
"""
    with started_ranks(2, ["-c", program]) as ranks:
        assert ranks.codes([0, 1], 240) == [ExitCode.SAVES_FAILED] * 2, ranks.output()
        outputs = [ranks.output(rank) for rank in (0, 1)]
    for rank, output in enumerate(outputs):
        refused = f"refused: --output_dir={tmp_path}{'_elsewhere' * rank}"
        assert f"{refused}: rank 0 writes files there that these ranks do not see: 1; " in output
        # Both end because of it, and the chief alone says so.
        assert ("2 saves in a row have failed, as many as --max_failed_saves permits" in output) == (rank == 0)
    assert "the checkpoint of step 3 has failed: rank 1: [Errno 27] File too large" in outputs[0]
    assert [row["failed_saves"] for row in rows(tmp_path)[0]] == [0, 0, 0, 1]
    assert [folder.order(path)[0] for path in folder.find(tmp_path)] == [1, 2]


@pytest.mark.slow
@pytest.mark.multirank
@pytest.mark.nightly  # tests/checkpoint/test_layouts.py reads every pair of layouts without ranks.
def test_ranks_of_another_layout_go_on_where_two_have_stopped(tmp_path):
    args = ["-m", "tftrain.run", *SMALL, "--nouse_bias_in_keys", "--global_batch_size=8", "--max_steps=4"]
    args += [f"--output_dir={tmp_path}", "--checkpoint_every=2", "--keep_last=1", "--keep_every=2", "--cpu_threads=1"]
    run_ranks(2, [*args, "--split_opt_state"])
    before, (second, last) = losses(tmp_path), folder.find(tmp_path)
    shard = last / "shard_00001_000.safetensors"
    states.flip(shard)
    output = run_ranks(2, [*args, "--tensor_parallel_size=2"])
    assert f"this checkpoint can't be used: {shard}: damaged" in output
    assert f"continuing after step 2 of {second}" in output
    np.testing.assert_allclose(losses(tmp_path), before, rtol=1e-5)
