"""Signals: the first is a request on which all ranks agree, the second is obeyed at once."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.kit.ranks import ROOT, started_ranks
from tests.kit.runs import SMALL
from tftrain.checkpoint import folder
from tftrain.host.exit_codes import ExitCode
from tftrain.supervise import signals
from tftrain.supervise.signals import Signals


class Listening:
    """Signals of this process that only notes what it would have done."""

    def __init__(self):
        self.asked, self.codes = [], []
        self.signals = Signals(self.asked.append, self.codes.append)


def send(number, seconds=0.2):
    os.kill(os.getpid(), number)
    time.sleep(seconds)


@pytest.fixture(autouse=True)
def interrupts():
    """A shell starts what it leaves in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_the_first_signal_is_a_request(number, capfd):
    before = signal.getsignal(number)
    listening = Listening()
    with listening.signals as heard:
        assert not heard.stop_requested(heard.received)
        send(number)
        assert heard.received == number
        assert heard.stop_requested(heard.received)
        send(signal.SIGUSR1)
    assert listening.asked == [number.name]
    assert listening.codes == []
    assert signal.getsignal(number) is before
    assert f"tftrain.run: rank 0: received {number.name}: " in capfd.readouterr().err


def test_a_request_of_another_rank_counts_as_its_own():
    listening = Listening()
    with listening.signals as heard:
        assert heard.stop_requested(signal.SIGUSR1)
        assert heard.stop_requested(signal.SIGUSR1)
    assert listening.asked == ["SIGUSR1"]


@pytest.mark.parametrize(
    ("sent", "codes"),
    [
        ([signal.SIGTERM, signal.SIGTERM], [128 + 15]),
        ([signal.SIGTERM, signal.SIGINT], [128 + 2]),
        # What Slurm sends at the end of the time that SIGUSR1 has announced.
        ([signal.SIGUSR1, signal.SIGTERM], []),
        ([signal.SIGUSR1, signal.SIGUSR1], []),
        ([signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM], [128 + 15]),
    ],
)
def test_a_second_signal_that_insists_ends_at_once(sent, codes, monkeypatch):
    monkeypatch.setattr(signals, "SAME_SIGNAL_SECONDS", 0.1)
    listening = Listening()
    with listening.signals:
        for number in sent:
            send(number)
    assert listening.codes == codes


def test_a_signal_that_comes_twice_at_once_is_one():
    listening = Listening()
    with listening.signals:
        send(signal.SIGINT)
        send(signal.SIGINT)
    assert listening.codes == []


def test_what_the_parent_has_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Listening().signals as heard:
            send(signal.SIGINT)
            assert heard.received == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_signal_ends_a_process_whose_main_thread_stands_in_native_code():
    program = """
import ctypes
from tftrain.supervise.signals import Signals
mutex, library = ctypes.create_string_buffer(128), ctypes.CDLL(None)
with Signals(lambda name: print("asked by", name, flush=True)):
    print("listening", flush=True)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # for ever
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "listening\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked by SIGTERM\n"
        assert process.poll() is None
        time.sleep(1.2 * signals.SAME_SIGNAL_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM


def test_ctrl_c_while_tensorflow_loads_ends_a_run_without_a_traceback(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import time\nopen(__file__ + '.loads', 'w')\ntime.sleep(60)\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tftrain.run", *SMALL, "--global_batch_size=8", f"--output_dir={tmp_path}"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "tensorflow.py.loads").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_save_that_takes_too_long_ends_with_a_code_of_its_own(tmp_path):
    program = f"""
import sys, time
from tftrain import run
from tftrain.state.checkpoints import Checkpoints
save = Checkpoints.save
def slow(self, last, is_good):
    if int(self._run.progress.step) > 1:
        time.sleep(600)
    save(self, last, is_good)
Checkpoints.save = slow
settings = {[*SMALL, "--global_batch_size=8", "--max_steps=1000000", f"--output_dir={tmp_path}"]}
sys.exit(run.main(["tftrain.run", *settings, "--checkpoint_every=1", "--preempt_save_seconds=1"]))
"""
    with started_ranks(1, ["-c", program]) as ranks:
        ranks.wait_for("checkpoint ")
        ranks.processes[0].send_signal(signal.SIGTERM)
        assert ranks.codes([0], 60) == [ExitCode.NOT_SAVED]
        said = ranks.output(0)
        assert "stopping after SIGTERM took longer than --preempt_save_seconds=1 seconds" in said
        assert said.strip().splitlines()[-1].endswith("the last checkpoint is " + str(folder.find(tmp_path)[-1]))
