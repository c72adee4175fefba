"""Elastic training: a run that goes on when horovodrun's elastic launcher loses or gains hosts.

The process that the launcher starts trains nothing. It supervises: it starts the same command again as its child,
which is a run like any other, with a fixed number of ranks. When ranks are lost, or hosts come or go, the children end,
the supervisors ask the driver for their new places, and new children resume from the newest checkpoint.

- Hosts came or went: rank 0's supervisor alone is told. It has its child stop as by a signal, which saves first, on all
  ranks: nothing is lost.
- A child died, or ended because another did: its supervisor leaves a note in the launcher's store. Children that have
  not ended by themselves a little later are killed, also those that hang. The steps since the last checkpoint are done
  again. If the supervisor lives, its rank is started anew; if it is gone too, the driver gives up its host.
- A child ended for a reason of its own, such as wrong flags, data or too many bad numbers: it would do so again. A note
  ends all others.

Why not Horovod's own way, which connects again inside the training process, nor the same with the process replacing
itself by exec: when a rank dies under several process sets, Gloo throws where nobody catches, so no survivor can go on;
without process sets, the last survivor is told after 30 seconds. A process of its own survives whatever Horovod and
TensorFlow do, hears of changes at any time, and leaves nothing behind of the run before: no graphs, threads, memory, or
groups of another size. It costs the start of TensorFlow at each change.
"""

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tftrain import log
from tftrain.checkpoint import folder
from tftrain.config import TrainConfig
from tftrain.exit_codes import ExitCode
from tftrain.fields import Problem
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.membership import Membership, is_elastic
from tftrain.parallel.rendezvous import STORE_ERRORS

logger = logging.getLogger(__name__)

PARENT = "TFTRAIN_SUPERVISOR"
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
MAX_RANKS = 4096  # that anybody will start
HOST_SECONDS = 600  # as the driver waits for the fewest ranks
POLL_SECONDS = 0.5
# What a child has to notice that its peers are gone, and to say what it knows.
GRACE_SECONDS = 5.0
FINAL_SECONDS = 5.0
MAX_LOSSES = 3
# Notes in the store.
CHANGED, LOST, FINAL = "changed", "lost", "final"
STOPS = (ExitCode.STOPPED, ExitCode.NOT_SAVED)
FAULTS_OF_OTHERS = (ExitCode.PEER_ENDED, ExitCode.STALLED)
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Supervisor:
    """Starts a run again and again until it ends for good; see the module."""

    def __init__(
        self,
        membership: Membership,
        environ: Mapping[str, str],
        command: Sequence[str],
        output_dir: str,
        problems: Callable[[int], list[Problem]],
        host_seconds: float = HOST_SECONDS,
        log_level: str = "info",
    ):
        """Prepares the first start.

        Args:
            membership: of this process in the elastic job.
            environ: for the children, with this process's first place; PARENT is added, and tells them what they are.
            command: of the children.
            output_dir: of the run; all supervisors see the checkpoints in it.
            problems: from a number of ranks to the reasons why so many can't share the work.
            host_seconds: how long to wait for other hosts where there are such reasons.
            log_level: of this process, whose rank in the log changes with its place.
        """
        self._membership, self._environ = membership, {**environ, PARENT: str(os.getpid())}
        self._command, self._output_dir = list(command), output_dir
        self._problems, self._host_seconds, self._log_level = problems, host_seconds, log_level
        self._launch = launch_from_environment(environ)
        self._child: subprocess.Popen | None = None
        self._has_resumed = self._is_stopping = False
        self._losses, self._saved = 0, None

    def run(self) -> int:
        """Returns the exit code of the run, which is the last child's."""
        try:
            while (code := self._once()) is None:
                if not self._rejoin():
                    return ExitCode.DONE
            if code != ExitCode.DONE:
                self._membership.store.put(FINAL, str(int(code)))
            return code
        except STORE_ERRORS as error:
            logger.warning(f"elastic: horovodrun's driver has ended: {error}")
            return ExitCode.FAILED
        finally:
            self._end_child()

    def forward(self, number: int, _) -> None:
        """Hands a signal on to the child, with which the run ends; without a child, this process ends."""
        self._is_stopping = True
        if self._child is None or self._child.poll() is not None:
            raise SystemExit(ExitCode.STOPPED)
        self._child.send_signal(number)

    def _rejoin(self) -> bool:
        """Takes this process's new place; False if it has none."""
        before = self._launch
        if (place := self._membership.ask()) is None:
            logger.warning("elastic: this rank left: its host or slot is no longer part of the job")
            return False
        self._environ.update(place)
        self._launch, self._has_resumed = launch_from_environment(self._environ), True
        log.configure(self._launch.rank, self._log_level)
        if self._launch.rank == 0:
            where, reached = self._newest() or "the start", last_logged_step(self._output_dir)
            size = f"{self._launch.size} ranks, before {before.size}"
            logger.warning(f"elastic: {size}, go on from {where}; step {reached} was logged")
        return True

    def _once(self) -> int | None:
        """Runs one child to its end, and returns the run's exit code, None if it goes on."""
        if problems := self._problems(self._launch.size):
            return self._await_hosts(problems)
        # Whatever the first start was to resume, the run's own checkpoints are newer.
        resume = ["--resume=auto"] if self._has_resumed and self._newest() else []
        self._child = subprocess.Popen([*self._command, *resume], env=self._environ, stdin=subprocess.DEVNULL)
        code = self._watch(self._child)
        exit_code = code if code >= 0 else ExitCode.SIGNALLED - code
        if code == ExitCode.DONE or self._is_stopping:
            return exit_code
        if code in STOPS and self._membership.store.get(CHANGED):
            return None
        if (code >= 0 and code not in FAULTS_OF_OTHERS) or self._is_final():
            return exit_code
        self._note_loss(f"rank {self._launch.rank} ended with exit code {exit_code}")
        return self._count_loss()

    def _watch(self, child: subprocess.Popen) -> int:
        """Returns how a child has ended, by itself or because another's end made it useless."""
        store, is_asked, deadline = self._membership.store, False, None
        while (code := _wait(child)) is None:
            if self._membership.changed.is_set() and not is_asked:
                logger.warning("elastic: hosts or slots have changed; the run saves and starts again")
                store.put(CHANGED, "yes")
                child.send_signal(signal.SIGUSR1)
                is_asked = True
            if deadline is None and (store.get(LOST) or store.get(FINAL)):
                deadline = time.monotonic() + GRACE_SECONDS
            elif deadline is not None and time.monotonic() > deadline:
                child.kill()
        return code

    def _await_hosts(self, problems: list[Problem]) -> int | None:
        """Waits until hosts have changed; returns the exit code if they do not."""
        store, last = self._membership.store, time.monotonic() + self._host_seconds
        if self._launch.rank == 0:
            reasons = "; ".join(map(str, problems))
            logger.warning(f"elastic: waiting up to {self._host_seconds:g} s for other hosts: {reasons}")
        while time.monotonic() < last:
            if self._membership.changed.wait(POLL_SECONDS):
                store.put(CHANGED, "yes")
            if store.get(CHANGED) or store.get(LOST):
                return None
            if store.get(FINAL):
                return ExitCode.PEER_ENDED
        return ExitCode.WRONG_FLAGS

    def _is_final(self) -> bool:
        """Whether a rank has ended for good: that may be why others end, and it may be a little later than they."""
        store, last = self._membership.store, time.monotonic() + FINAL_SECONDS
        while not (final := store.get(FINAL)) and not store.get(LOST) and time.monotonic() < last:
            time.sleep(POLL_SECONDS)
        return final is not None

    def _note_loss(self, what: str) -> None:
        """Has all ranks start again."""
        if not self._membership.store.get(LOST):
            logger.warning(f"elastic: {what}; all ranks start again")
            self._membership.store.put(LOST, what)

    def _count_loss(self) -> int | None:
        """Returns FAILED if ranks are lost again and again without a checkpoint in between, else None."""
        newest = self._newest()
        self._losses = self._losses + 1 if newest == self._saved else 1
        self._saved = newest
        if self._losses <= MAX_LOSSES:
            return None
        lost = f"ranks were lost {self._losses} times, and no checkpoint was written in between"
        logger.warning(f"elastic: {lost}; the run ends")
        return ExitCode.FAILED

    def _newest(self) -> Path | None:
        found = folder.find(self._output_dir)
        return found[-1] if found else None

    def _end_child(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()


def last_logged_step(output_dir: str) -> int:
    """Returns the last step in metrics.jsonl, 0 if there is none."""
    try:
        lines = (Path(output_dir) / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["step"]
    except (OSError, ValueError, LookupError):
        return 0


def arguments(argv: list[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the command line as a run of a changing number of ranks takes it."""
    return [*argv, "--fit_micro_batch"] if is_elastic(environ) else argv


def supervises(config: TrainConfig, environ: Mapping[str, str]) -> bool:
    """Whether this process is to call `supervise`: not outside of elastic jobs, nor in a child.

    Nor where no number of ranks would do: a run that can't start at all says best itself what is wrong.
    """
    if not is_elastic(environ):
        return False
    if PARENT in environ:
        _end_with(int(environ[PARENT]))
        return False
    return any(not config.problems(ranks) for ranks in range(1, MAX_RANKS + 1))


def supervise(config: TrainConfig, environ: Mapping[str, str]) -> int:
    """Runs this process's command as a child until the run ends for good, and returns its exit code.

    Args:
        config: as on the command line.
        environ: what horovodrun has set.
    """
    supervisor = Supervisor(
        Membership(environ),
        environ,
        [sys.executable, *sys.orig_argv[1:]],
        config.run.output_dir,
        config.problems,
        float(environ.get("HOROVOD_ELASTIC_TIMEOUT", HOST_SECONDS)),
        config.run.log_level,
    )
    for number in FORWARDED:
        signal.signal(number, supervisor.forward)
    return supervisor.run()


def _end_with(supervisor: int) -> None:
    """Has the kernel kill this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os.kill(os.getpid(), signal.SIGKILL)


def _wait(child: subprocess.Popen) -> int | None:
    try:
        return child.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None
