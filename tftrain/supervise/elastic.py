"""Elastic training: a run continues when horovodrun's elastic launcher loses or gains hosts.

The process that the launcher starts is a supervisor and does not train. It starts the same command again as a child,
which is an ordinary run with a fixed number of ranks. When ranks fail, or hosts come or go, all children end, the
supervisors ask the driver for their new ranks, and new children resume from the newest checkpoint.

- Hosts came or went: the driver notifies only rank 0's supervisor. It sends its child a signal, all ranks save and
  stop, and no step is lost.
- A child failed, or ended because another child failed: its supervisor leaves a note in the launcher's store. Children
  that have not ended a little later are killed, even if they hang. The steps since the last checkpoint are repeated.
  If the supervisor of the failed rank is alive, it starts the rank again; otherwise the driver gives up the host.
- A host could not be reached for a while: the driver has given up its supervisors, and may have started others there.
  They live on, and find that the store has been emptied without them: they leave no note, ask for no rank, and end.
- A child ended for a reason that would recur, such as wrong flags, bad data or too many non-finite steps: a note ends
  all other children.

Horovod's own elastic mode reconnects inside the training process. This does not work here. When a rank dies and there
are several process sets, Gloo throws an exception that nothing can catch, so no survivor can continue. Without process
sets, the last survivor notices only after 30 seconds. A separate supervisor survives a crash in Horovod or TensorFlow
and notices changes at any time. Each new child starts without the graphs, threads, memory and process sets of the last
one. The cost is that TensorFlow starts again at each change.
"""

import contextlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tftrain.checkpoint import folder
from tftrain.config.compute import ComputeConfig
from tftrain.config.fields import Problem
from tftrain.config.run import RunConfig
from tftrain.host import hardware, huge_pages, log
from tftrain.host.exit_codes import ExitCode
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.membership import Membership, is_elastic
from tftrain.parallel.rendezvous import STORE_ERRORS, LauncherStore, address_of_store, value_of_rank_0
from tftrain.supervise.signals import REQUESTS, end_with

logger = logging.getLogger(__name__)

PARENT = "TFTRAIN_SUPERVISOR"  # in the environment of a child, the number of the process that has started it
MAX_RANKS = 4096  # more than any job has
RESUME = "--resume=auto"
HOST_SECONDS = 600  # the same as the driver waits for --min-np
POLL_SECONDS = 0.5
# The time that a child has to notice that its peers are gone, and to report it.
GRACE_SECONDS = 5.0
# A child that ends for a reason that would recur says so before its peers can notice. A killed child's supervisor says
# so at once. So if there is no word, a host or a supervisor has died.
FINAL_SECONDS = 1.0
MAX_FAILURES = 3
# Names of notes in the store.
HOSTS_CHANGED, RANK_FAILED, FINAL = "hosts_changed", "rank_failed", "final"
STOPS = (ExitCode.STOPPED, ExitCode.NOT_SAVED)
CAUSED_BY_PEERS = (ExitCode.PEER_ENDED, ExitCode.STALLED)


class Supervisor:
    """Starts a run again after each change of its ranks, until it ends for good; see the module."""

    def __init__(
        self,
        membership: Membership,
        environ: Mapping[str, str],
        command: Sequence[str],
        output_dir: str,
        problems: Callable[[int], list[Problem]],
        host_seconds: float = HOST_SECONDS,
        log_level: str = "info",
        saves: bool = True,
    ):
        """Prepares the first start.

        Args:
            membership: this process's part in the elastic job.
            environ: variables of the children; they have this process's first rank, and PARENT is added to mark
                children.
            command: the command of the children.
            output_dir: the run's folder; all supervisors see its checkpoints.
            problems: returns why a number of ranks can't share the work.
            host_seconds: how long the supervisor then waits for other hosts.
            log_level: of this process.
            saves: whether the run saves checkpoints, which an evaluation does not.
        """
        self._membership, self._environ = membership, {**environ, PARENT: str(os.getpid())}
        self._command, self._output_dir = list(command), output_dir
        self._problems, self._host_seconds, self._log_level = problems, host_seconds, log_level
        self._launch = launch_from_environment(environ)
        self._child: subprocess.Popen | None = None
        self._saves, self._has_restarted, self._is_stopping = saves, False, False
        self._failures, self._newest_at_failure = 0, None
        self._token = secrets.token_hex(8)

    def run(self) -> int:
        """Returns the exit code of the run, which is the last child's."""
        try:
            while (code := self._run_child()) is None:
                if not self._rejoin():
                    return ExitCode.DONE
            if code != ExitCode.DONE:
                self._membership.store.put(FINAL, str(int(code)))
            return code
        except STORE_ERRORS as error:
            logger.warning(f"elastic: horovodrun's driver has ended: {error}")
            return ExitCode.FAILED
        finally:
            if self._child is not None and self._child.poll() is None:
                self._child.kill()
                self._child.wait()

    def forward(self, number: int, _: object) -> None:
        """Forwards a signal to the child, which then ends the run; without a child, ends this process and the run."""
        self._is_stopping = True
        if self._child is None or self._child.poll() is not None:
            self._membership.store.put(FINAL, str(int(ExitCode.STOPPED)))
            raise SystemExit(ExitCode.STOPPED)
        self._child.send_signal(number)

    def _rejoin(self) -> bool:
        """Asks for this process's new rank; returns False if it has none."""
        before = self._launch
        if not self._is_member() or (assignment := self._membership.next_assignment()) is None:
            logger.warning("elastic: this rank left: its host or slot is no longer part of the job")
            return False
        self._environ.update(assignment)
        self._launch, self._has_restarted = launch_from_environment(self._environ), True
        log.configure(self._launch.rank, self._log_level, host=self._launch.host(self._environ))
        if self._launch.rank == 0:
            where, reached = folder.newest(self._output_dir) or "the start", last_logged_step(self._output_dir)
            size = f"{self._launch.size} ranks, before {before.size}"
            logger.warning(f"elastic: {size}, continue from {where}; the last logged step is {reached}")
        return True

    def _run_child(self) -> int | None:
        """Runs one child to its end; returns the run's exit code, or None if the run continues."""
        self._membership.store.put(self._member, self._token)
        if problems := self._problems(self._launch.size):
            return self._await_hosts(problems)
        # After the first start, the run's own checkpoints are newer than what --resume names; also for a new host.
        resume = RESUME if self._saves and self._has_restarted and folder.newest(self._output_dir) else ""
        resumes = value_of_rank_0(self._launch, "resume", resume, self._environ) == RESUME
        command = [*self._command, RESUME] if resumes else self._command
        self._child = subprocess.Popen(command, env=self._environ, stdin=subprocess.DEVNULL)
        code = self._watch(self._child)
        exit_code = code if code >= 0 else ExitCode.SIGNALLED - code
        if code == ExitCode.DONE or self._is_stopping:
            return exit_code
        have_changed = self._membership.store.get(HOSTS_CHANGED)
        if not self._is_member() or (code in STOPS and have_changed):
            return None
        if would_recur(code) or self._is_final():
            return exit_code
        if not self._membership.store.get(RANK_FAILED):
            reason = f"rank {self._launch.rank} ended with exit code {exit_code}"
            logger.warning(f"elastic: {reason}; all ranks start again")
            self._membership.store.put(RANK_FAILED, reason)
        return None if have_changed else self._count_failure()  # The signal ends a child that does not listen yet.

    @property
    def _member(self) -> str:
        return f"supervisor_{self._launch.rank}"

    def _is_member(self) -> bool:
        """Returns whether the driver has not gone on without this process, which empties the store."""
        return self._membership.store.get(self._member) == self._token

    def _watch(self, child: subprocess.Popen) -> int:
        """Waits for a child and returns its exit code; kills it if another child failed and it does not end."""
        store, is_asked, deadline = self._membership.store, False, None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(POLL_SECONDS)
            if self._membership.changed.is_set() and not is_asked:
                logger.warning("elastic: hosts or slots have changed; the run saves and starts again")
                store.put(HOSTS_CHANGED, "yes")
                child.send_signal(signal.SIGUSR1)
                is_asked = True
            if deadline is None and (store.get(RANK_FAILED) or store.get(FINAL)):
                deadline = time.monotonic() + GRACE_SECONDS
            elif deadline is not None and time.monotonic() > deadline:
                child.kill()

    def _await_hosts(self, problems: list[Problem]) -> int | None:
        """Waits until hosts change and returns None, or an exit code if they do not."""
        store, last = self._membership.store, time.monotonic() + self._host_seconds
        if self._launch.rank == 0:
            reasons = "; ".join(map(str, problems))
            logger.warning(f"elastic: waiting up to {self._host_seconds:g} s for other hosts: {reasons}")
        while time.monotonic() < last:
            if self._membership.changed.wait(POLL_SECONDS):
                store.put(HOSTS_CHANGED, "yes")
            if store.get(HOSTS_CHANGED) or store.get(RANK_FAILED):
                return None
            if store.get(FINAL):
                return ExitCode.PEER_ENDED
        return ExitCode.WRONG_FLAGS

    def _is_final(self) -> bool:
        """Returns whether a rank has ended the run for good; waits until it is known why this child has ended."""
        store, last = self._membership.store, time.monotonic() + FINAL_SECONDS
        while not (final := store.get(FINAL)) and not store.get(RANK_FAILED) and time.monotonic() < last:
            time.sleep(POLL_SECONDS)
        return final is not None

    def _count_failure(self) -> int | None:
        """Returns FAILED if ranks fail repeatedly without a new checkpoint in between, else None."""
        newest = folder.newest(self._output_dir)
        self._failures = self._failures + 1 if newest == self._newest_at_failure else 1
        self._newest_at_failure = newest
        if self._failures <= MAX_FAILURES:
            return None
        reason = f"ranks failed {self._failures} times without a new checkpoint in between"
        logger.warning(f"elastic: {reason}; the run ends")
        return ExitCode.FAILED


def would_recur(code: int) -> bool:
    """Returns whether a child would end with this code again."""
    return code >= 0 and code not in CAUSED_BY_PEERS


def announce_end(code: int, environ: Mapping[str, str]) -> None:
    """Ends all children, if this process is one and ends with a code that would recur: its own end may take seconds."""
    if PARENT in environ and would_recur(code) and code not in (ExitCode.DONE, *STOPS):
        with contextlib.suppress(*STORE_ERRORS):
            LauncherStore(address_of_store(environ)).put(FINAL, str(int(code)))


def last_logged_step(output_dir: str) -> int:
    """Returns the last step in metrics.jsonl, 0 if there is none."""
    try:
        lines = (Path(output_dir) / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["step"]
    except (OSError, ValueError, LookupError):
        return 0


def arguments(argv: list[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the command line, with --fit_micro_batch in an elastic job, whose number of ranks changes."""
    return [*argv, "--fit_micro_batch"] if is_elastic(environ) else argv


def supervises(problems: Callable[[int], list[Problem]], environ: Mapping[str, str]) -> bool:
    """Returns whether this process must call `supervise`: it is in an elastic job and is not a child.

    `problems` returns why a number of ranks can't share the work. If no number of ranks can share it, the answer is
    False, because the run itself reports that best, without a supervisor.
    """
    if not is_elastic(environ):
        return False
    if PARENT in environ:
        end_with(int(environ[PARENT]), signal.SIGKILL)()
        return False
    return any(not problems(ranks) for ranks in range(1, MAX_RANKS + 1))


def supervise(
    run: RunConfig,
    log_level: str,
    compute: ComputeConfig,
    problems: Callable[[int], list[Problem]],
    environ: Mapping[str, str],
) -> int:
    """Runs this process's command as a child until the run ends for good, and returns its exit code."""
    command = [sys.executable, *sys.orig_argv[1:]]
    if compute.huge_pages and huge_pages.offered() and not hardware.has_driver():
        environ = huge_pages.with_huge_pages(environ)  # Else each child would start twice.
    seconds, saves = float(environ.get("HOROVOD_ELASTIC_TIMEOUT", HOST_SECONDS)), run.mode == "train"
    supervisor = Supervisor(Membership(environ), environ, command, run.folder, problems, seconds, log_level, saves)
    for number in REQUESTS:
        signal.signal(number, supervisor.forward)
    return supervisor.run()
