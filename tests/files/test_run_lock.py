"""The lock of an output folder: who holds it, when it is free, and that a second run is refused."""

import errno
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import time

import pytest

from tests.kit.ranks import ROOT, started_ranks
from tests.kit.runs import SMALL
from tftrain import run
from tftrain.files.run_lock import NAME, RunLock
from tftrain.host.exit_codes import ExitCode
from tftrain.train import process

HOLD = """
import sys, time
from tftrain.files.run_lock import RunLock
lock = RunLock(sys.argv[1])
print(lock.acquire(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process, which holds the lock of the folder."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "None\n"
        yield process
        process.kill()


def test_the_holder_is_named_with_host_process_and_time(tmp_path, holder):
    found = RunLock(tmp_path).acquire()
    assert found.startswith(f"process {holder.pid} on host {platform.node()}, started 20")


def test_a_crash_of_the_holder_frees_the_folder(tmp_path, holder):
    lock = RunLock(tmp_path)
    assert lock.acquire()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert lock.acquire() is None
    assert json.loads((tmp_path / NAME).read_text())["process"] == os.getpid()


def test_a_holder_that_is_about_to_end_is_awaited(tmp_path, holder):
    holder.send_signal(signal.SIGSTOP)
    os.kill(holder.pid, signal.SIGKILL)
    assert RunLock(tmp_path).acquire(wait_seconds=20) is None


def test_waiting_has_an_end(tmp_path, holder):
    begin = time.monotonic()
    assert RunLock(tmp_path).acquire(wait_seconds=0.3)
    assert 0.3 <= time.monotonic() - begin < 10


@pytest.mark.parametrize(("host", "seconds"), [(platform.node(), 0.0), ("node7", 0.6)])
def test_a_holder_on_another_host_is_awaited_as_if_it_were_dead(tmp_path, holder, monkeypatch, host, seconds):
    monkeypatch.setattr("tftrain.files.run_lock.LEASE_SECONDS", 0.6)
    (tmp_path / NAME).write_text(json.dumps({"host": host, "process": 4711, "started": "2026-01-01"}))
    begin = time.monotonic()
    assert RunLock(tmp_path).acquire() == f"process 4711 on host {host}, started 2026-01-01"
    assert seconds <= time.monotonic() - begin < seconds + 0.5


def test_a_name_that_is_shorter_than_the_last_one_can_be_read(tmp_path, holder):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / NAME).write_text("x" * 1000)
    lock = RunLock(tmp_path / "other")
    assert lock.acquire() is None
    assert json.loads((tmp_path / "other" / NAME).read_text())["process"] == os.getpid()
    lock.release()
    lock.release()


def test_a_name_that_can_not_be_read_is_no_error(tmp_path, holder, monkeypatch):
    monkeypatch.setattr("tftrain.files.run_lock.NAME_SECONDS", 0.0)
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    assert RunLock(tmp_path).acquire() == "a process whose name can't be read"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, capsys, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert RunLock(tmp_path).acquire() is None
    expected = f"{NAME}: can't be locked here: {os.strerror(code)}; nothing keeps a second run out of this folder"
    assert expected in capsys.readouterr().err


@pytest.mark.multirank
def test_a_second_run_is_refused_on_every_rank(tmp_path, holder):
    settings = [*SMALL, "--global_batch_size=4", f"--output_dir={tmp_path}", "--max_steps=9"]
    with started_ranks(2, ["-m", "tftrain.run", *settings]) as second:
        assert second.codes([0, 1], 60) == [ExitCode.WRONG_FLAGS] * 2
        said = f"--output_dir={tmp_path}: another run writes there: process {holder.pid} on host {platform.node()}, "
        assert said in second.output(0)


@pytest.mark.parametrize(("mode", "is_locked"), [("train", True), ("evaluate", False)])
def test_a_run_holds_the_lock_of_its_folder_unless_it_reads_alone(ramped, monkeypatch, mode, is_locked):
    (ramped / NAME).unlink(missing_ok=True)
    found = []
    monkeypatch.setattr(process, "run", lambda *_: found.append((ramped / NAME).exists()) or 0)
    monkeypatch.setattr(run, "prepare_process", lambda *_, **__: None)
    assert run.main(["tftrain.run", f"--mode={mode}", f"--output_dir={ramped}"]) == 0
    assert found == [is_locked]
