"""Copies in the memory of hosts: what is whole is gone on from, what is not is passed over, and nothing is left."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint import states
from tests.kit import runs
from tests.kit.ranks import started_ranks
from tests.kit.runs import SMALL, configured, losses, train_alone
from tests.parallel.simulated_ranks import SimulatedRanks
from tftrain.checkpoint import folder, memory_slot
from tftrain.checkpoint.memory_slot import RankCopy, newest_whole
from tftrain.checkpoint.tensor_slice import TensorData
from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.host.exit_codes import ExitCode
from tftrain.parallel import neighbour
from tftrain.parallel.mesh import Mesh
from tftrain.state import memory_checkpoints, resume
from tftrain.state.memory_checkpoints import MemoryCheckpoints
from tftrain.train import phases
from tftrain.train.step import TrainStep

SECONDS = 60
CUTS = (0, 2), (2, 5)  # where two ranks divide a tensor
SETTINGS = ("--global_batch_size=4", "--eval_every=-1", "--max_steps=9", "--memory_checkpoint_steps=2")


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    """A memory file system of this test."""
    place = tmp_path_factory.mktemp("memory")
    monkeypatch.setattr(memory_slot, "MEMORY", place)
    return place


class Run:
    """A state of one tensor, and its copies in memory."""

    def __init__(self, output_dir, mesh=None, **settings):
        folder.checkpoint_folder(output_dir).mkdir(exist_ok=True)
        settings = {"memory_checkpoint_steps": 1, "output_dir": str(output_dir), **settings}
        self.value, self.output_dir = np.zeros(5, np.float32), output_dir
        self.config = changed(TrainConfig(), settings)
        self.in_memory = MemoryCheckpoints(
            self.config.checkpoint.memory_checkpoint_steps, str(output_dir), mesh or Mesh()
        )

    def begin(self):
        self.in_memory.begin(piece for piece, _ in states.whole_pieces({"master/x": self.value}))
        self.join()
        return self

    def join(self):
        self.in_memory.wait(SECONDS)

    def save(self, step, value=None):
        value = np.full_like(self.value, step if value is None else value)
        self.in_memory.save(step, lambda: {"of": step}, lambda: states.whole_pieces({"master/x": value}))
        self.join()

    def recovered(self, **settings):
        """Returns the step and the value that the next start goes on from; None if there is nothing."""
        start = Run(self.output_dir, **settings)
        reader = resume.Search(start.config.checkpoint, start.config.run, Mesh(), dict).choose(start.in_memory.among)
        return reader and (folder.order(reader.path)[0], states.stored(reader.path)["master/x"][0])


def files(output_dir):
    """Returns the file of each copy, that of the oldest first."""
    parts = sorted(memory_slot.parts(memory_slot.home_of(output_dir), 0), key=lambda part: part.step)
    return [Path(part.path).with_suffix(".state") for part in parts]


def test_the_next_start_goes_on_from_the_newest_copy(tmp_path, capsys):
    run = Run(tmp_path).begin()
    for step in (1, 2, 3):
        run.save(step)
    assert run.recovered() == (3, 3)
    (path,) = folder.find(tmp_path)
    assert f"{path} was in memory, 3 steps after the next older checkpoint on disk" in capsys.readouterr().out
    content = json.loads((path / "manifest.json").read_text())
    assert content["run"] == {"of": 3}
    assert {len(file["sha256"]) for file in content["files"].values()} == {64}


def test_a_copy_that_is_not_newer_than_the_disk_or_of_another_session_is_left_out(tmp_path):
    run = Run(tmp_path).begin()
    run.save(3)
    states.saved(tmp_path, {"master/x": np.full(5, 7, np.float32)}, step=3)
    assert run.recovered() == (3, 7)
    run.save(5)
    run.in_memory.forget()
    assert run.recovered() == (3, 7)
    run.save(4)
    assert run.recovered() == (4, 4)


def test_a_start_that_goes_on_from_elsewhere_takes_no_copy(tmp_path):
    run = Run(tmp_path).begin()
    run.save(3)
    assert run.recovered(resume="none") is None
    (tmp_path / "other").mkdir()
    states.saved(tmp_path / "other", {"master/x": np.full(5, 7, np.float32)}, step=1)
    assert run.recovered(resume=str(folder.newest(tmp_path / "other"))) == (1, 7)
    assert folder.find(tmp_path) == []


def test_a_damaged_checkpoint_on_disk_hides_no_older_copy(tmp_path, capsys):
    run = Run(tmp_path).begin()
    run.save(2)
    run.save(3)
    for step in (1, 4):
        states.saved(tmp_path, {"master/x": np.full(5, 7, np.float32)}, step)
    states.flip(next(folder.newest(tmp_path).glob("*.safetensors")))
    assert run.recovered() == (3, 3)
    said = capsys.readouterr()
    assert "this checkpoint can't be used: " in said.err
    assert "step_00000003 was in memory, 2 steps after the next older checkpoint on disk" in said.out


def test_a_damaged_copy_is_named_and_the_older_one_is_taken_then_the_disk(tmp_path, capsys):
    run = Run(tmp_path).begin()
    states.saved(tmp_path, {"master/x": np.full(5, 7, np.float32)}, step=1)
    run.save(2)
    run.save(3)
    newest = files(tmp_path)[-1]
    states.flip(newest)
    assert run.recovered() == (2, 2)
    assert f"this copy in memory can't be used: {newest}: damaged: its xxh3_128 is" in capsys.readouterr().err
    shutil.rmtree(folder.newest(tmp_path))
    for path in files(tmp_path):
        path.unlink()
    assert run.recovered() == (1, 7)
    assert capsys.readouterr().err.count("can't be used") == 2


def test_a_copy_that_was_being_overwritten_does_not_count(tmp_path, monkeypatch):
    run = Run(tmp_path).begin()
    run.save(2)
    run.save(3)
    monkeypatch.setattr(memory_slot.Slot, "complete", lambda *_: 1 / 0)
    run.save(4)
    assert run.recovered() == (3, 3)


def test_after_a_copy_that_failed_the_one_before_it_stays(tmp_path, capsys):
    run = Run(tmp_path).begin()
    run.save(2)
    for step in (3, 4):
        run.save(step, value=np.nan)
        assert f"the copy of step {step} in memory has failed: master/x is not finite" in capsys.readouterr().err
    assert run.recovered() == (2, 2)
    run.save(5)
    run.save(6, value=np.nan)
    assert run.recovered() == (5, 5)


def test_no_step_waits_for_a_copy_that_is_under_way(tmp_path, monkeypatch, capsys):
    event, complete = threading.Event(), memory_slot.Slot.complete
    monkeypatch.setattr(memory_slot.Slot, "complete", lambda *args: event.wait(SECONDS) and complete(*args))
    run = Run(tmp_path).begin()
    monkeypatch.setattr(run, "join", lambda: None)
    for step in (1, 2, 3):
        run.save(step)
    event.set()
    Run.join(run)
    assert run.recovered() == (1, 1)
    assert capsys.readouterr().err.count("no copy of step 2 in memory: the one before is still under way") == 1


@pytest.mark.parametrize("problem", ["no such file system", "no space"])
def test_without_memory_for_copies_the_run_goes_on_and_says_so(tmp_path, home, monkeypatch, capsys, problem):
    if problem == "no space":
        monkeypatch.setattr(os, "posix_fallocate", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    else:
        monkeypatch.setattr(memory_slot, "MEMORY", home / "none")
    run = Run(tmp_path).begin()
    assert "--memory_checkpoint_steps=1 has no effect: [Errno " in capsys.readouterr().err
    run.save(1)
    assert not run.in_memory.is_on
    assert run.recovered() is None
    assert list(home.iterdir()) == []
    assert not list(folder.checkpoint_folder(tmp_path).iterdir())


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch, capsys):
    uid = os.getuid()
    Run(tmp_path).begin().save(1)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    made = memory_slot.home_of(tmp_path)
    made.mkdir()
    assert list(memory_slot.parts(made, 0)) == []
    Run(tmp_path).begin()
    assert f"another user has made it: '{made}'" in capsys.readouterr().err


class Hosts:
    """Two ranks on two hosts, in threads."""

    def __init__(self, output_dir, monkeypatch):
        self.ranks = SimulatedRanks(2, monkeypatch)
        monkeypatch.setattr(memory_checkpoints, "host_name", lambda: f"host{self.ranks.rank}")
        monkeypatch.setattr(memory_checkpoints.tensorflow_cluster, "own_address", lambda: "127.0.0.1")
        self.runs = [Run(output_dir, Mesh(rank, 2, local_size=1)) for rank in range(2)]
        self.each(lambda run, piece: run.in_memory.begin([piece.piece]))

    def each(self, act, step=0):
        """Does something with the run of each rank and its part of a state."""

        def on(group):
            run, (start, stop) = self.runs[group.rank], CUTS[group.rank]
            ((piece, values),) = states.whole_pieces({"master/x": np.full(5, step, np.float32)})
            act(run, TensorData(piece.part(start, stop), values[start:stop]))
            run.join()

        self.ranks.run(on)

    def save(self, step):
        self.each(lambda run, part: run.in_memory.save(step, lambda: {"of": step}, lambda: [part]), step)


def test_after_the_death_of_a_host_its_copies_are_on_the_next_one(tmp_path, monkeypatch):
    hosts = Hosts(tmp_path, monkeypatch)
    for step in (1, 2, 3):
        hosts.save(step)
    (place,) = memory_slot.home_of(tmp_path).iterdir()
    shutil.rmtree(place / "host0")
    assert hosts.runs[0].recovered() == (3, 3)
    assert json.loads((folder.newest(tmp_path) / "manifest.json").read_text())["run"] == {"of": 3}
    hosts.each(lambda run, _: run.in_memory.end())
    assert not place.parent.exists()


def test_a_part_that_is_damaged_on_one_host_is_taken_from_the_other(tmp_path, monkeypatch, capsys):
    hosts = Hosts(tmp_path, monkeypatch)
    hosts.save(1)
    for path in memory_slot.home_of(tmp_path).glob("*/host0/*/*.state"):
        states.flip(path)
    assert hosts.runs[0].recovered() == (1, 1)
    assert capsys.readouterr().err.count("host0/slot_1/rank_00000.state: damaged") == 1


def test_without_the_other_host_a_copy_is_on_this_one_and_a_warning_says_so_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(neighbour, "SECONDS", 0.2)
    hosts = Hosts(tmp_path, monkeypatch)
    hosts.runs[1].in_memory._server.server_close()
    for step in (1, 2):
        hosts.save(step)
    assert capsys.readouterr().err.count("this host has no copy of rank 1 of step 1: 127.0.0.1:") == 1
    (place,) = memory_slot.home_of(tmp_path).iterdir()
    shutil.rmtree(place / "host1")
    assert hosts.runs[0].recovered() is None


def test_the_newest_whole_copy_is_chosen_from_what_hosts_hold():
    def held(holder, count, *ranks):
        return [RankCopy("s", 10 * count, count, 3, rank, f"{holder}/{count}/{rank}", holder) for rank in ranks]

    def chosen(parts):
        return [part.path for part in newest_whole(parts)]

    parts = held(0, 1, 0, 1, 2) + held(0, 2, 0, 1)
    assert chosen(parts) == ["0/1/0", "0/1/1", "0/1/2"]
    assert chosen(parts + held(1, 2, 1, 2)) == ["0/2/0", "1/2/1", "1/2/2"]
    assert chosen(held(0, 2, 1, 2)) == []


class Killed(BaseException):
    """The end of a process, as far as a test in its own can have it."""


def killed_in_step(number, monkeypatch, *args):
    """Trains until a step, where the process ends without a word."""

    class Ending(TrainStep):
        def __call__(self, batch, requests):
            if int(self._run.progress.step) + 1 == number:
                raise Killed
            return super().__call__(batch, requests)

    def patient(in_memory, *args):
        in_memory.wait(SECONDS)  # These steps are shorter than what a busy machine takes for a copy.
        copy(in_memory, *args)

    config, copy = configured(*SETTINGS, *args), MemoryCheckpoints.save
    with monkeypatch.context() as patch:
        patch.setattr(phases, "TrainStep", Ending)
        patch.setattr(MemoryCheckpoints, "save", patient)
        with pytest.raises(Killed):
            runs.train(config)


def test_a_run_that_was_killed_goes_on_from_memory_bit_for_bit_and_leaves_nothing_there(
    tmp_path, home, monkeypatch, capsys
):
    train_alone(*SETTINGS, f"--output_dir={tmp_path / 'alone'}")
    assert list(home.iterdir()) == []
    args = f"--output_dir={tmp_path / 'killed'}"
    killed_in_step(8, monkeypatch, args)
    assert [path.name for path in folder.find(tmp_path / "killed")] == ["step_00000000"]
    capsys.readouterr()
    train_alone(*SETTINGS, args)
    assert "continuing after step 6 of " in capsys.readouterr().out
    states.assert_same_end(tmp_path / "killed", tmp_path / "alone")
    assert list(home.iterdir()) == []
    names = {path.name for path in folder.checkpoint_folder(tmp_path / "killed").iterdir()}
    assert names == {"step_00000000", "step_00000006", "step_00000009"}


@pytest.mark.multirank
@pytest.mark.parametrize(
    ("flags", "again"),
    [
        (("--split_opt_state",), 2),
        pytest.param(("--tensor_parallel_size=2",), 2, marks=pytest.mark.nightly),
        pytest.param(("--split_opt_state", "--split_grad_accum", "--split_weights"), 1, marks=pytest.mark.nightly),
    ],
)
def test_ranks_whose_peer_was_killed_go_on_from_memory(tmp_path, flags, again):
    every = 10
    args = ["-m", "tftrain.run", *SMALL, *SETTINGS, f"--memory_checkpoint_steps={every}", f"--output_dir={tmp_path}"]
    with started_ranks(2, [*args, *flags, "--max_steps=1000000"]) as started:
        started.wait_for(f"{4 * every}/1000000", seconds=SECONDS)
        started.processes[1].kill()
        assert started.codes([0, 1], SECONDS) == [ExitCode.PEER_ENDED, -signal.SIGKILL]
        assert "tftrain.run: rank 0: another rank ended" in started.output(0)
        assert "Traceback" not in started.output(0)
    last = len(losses(tmp_path))
    flags = flags if again > 1 else ()
    with started_ranks(again, [*args, *flags, f"--max_steps={last + 3}"]) as started:
        assert started.codes(range(again), SECONDS) == [0] * again, started.output()
        step = int(started.output(0).partition("continuing after step ")[2].split()[0])
    assert 2 * every <= step <= last  # On a busy machine, a copy may take longer than some steps.
    assert not (Path("/dev/shm") / memory_slot.home_of(tmp_path).name).exists()
