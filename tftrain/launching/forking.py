"""Forks the ranks of one host from one process that has loaded their modules: `fork_ranks` in it, `start` in the agent.

The ranks share that work, and the memory pages that it has filled until a rank writes to one. The agent starts the
server, which imports and then forks each rank; the agent adopts the ranks, and the server ends. From then on the agent
treats them as processes that it has started itself: they have an exit code, a session and the agent's death signal.

A fork copies only the thread that calls it. A lock that another thread holds at that moment stays locked in the rank
for ever. So the server only imports; it starts no session, no Horovod and no device, and refuses to fork if an import
has started a thread or opened a GPU. (jemalloc, which TensorFlow's wheel may contain, stops its own thread for a fork.)

A forked rank differs from a fresh process in three ways. Environment variables that are read by an import have the same
value on all ranks of a host. NumPy's libraries use one thread. The hashes of strings have the same seed.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tftrain.parallel.launcher import FORKED
from tftrain.supervise.signals import end_with

# NumPy's libraries start threads while they are imported, unless these variables limit them to one thread.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
GPU_FILES = "/dev/nvidia"
HARMLESS_THREADS = {"jemalloc_bg_thd"}
POLL_SECONDS = 0.001
PR_SET_CHILD_SUBREAPER = 36  # from <sys/prctl.h>


class ForkError(Exception):
    """The ranks can't be forked."""


class ForkedRank:
    """A forked rank that this process has adopted, with what the agent uses of `subprocess.Popen`."""

    def __init__(self, pid: int):
        self.pid = pid

    def wait(self) -> int:
        """Waits for the end of the process and returns its exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(
    server: Sequence[str],
    environ: Mapping[str, str],
    rank_environs: Sequence[Mapping[str, str]],
    outputs: Sequence[tuple[int, int]],
    launcher: int,
) -> list[ForkedRank]:
    """Starts a server, a program that calls `fork_ranks`, and adopts the ranks; call it in the main thread.

    All ranks have the variables `environ`, and each its own. `outputs` has the file descriptors for standard output and
    error of each rank. The server is ended when the other end of the descriptor `launcher` is closed.

    Raises:
        OSError: the server can't be started.
        ForkError: it did not fork all ranks; those that it did fork are killed.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    ranks = [{"environ": dict(own), "outputs": list(files)} for own, files in zip(rank_environs, outputs, strict=True)]
    request = {"parent": os.getpid(), "environ": dict(environ), "ranks": ranks}
    # Not a pipe: the server reads it after its imports.
    with open(os.memfd_create("ranks"), "w+b") as file:
        file.write(json.dumps(request).encode())
        file.seek(0)
        process = subprocess.Popen(
            server,
            env={**environ, **ONE_THREAD},
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=sys.stdout.fileno(),  # in order with the agent's messages
            pass_fds=[file for files in outputs for file in files],
            start_new_session=True,
            preexec_fn=end_with(os.getpid()),
        )
    pids = dict(json.loads(line) for line in _answer(process, launcher).splitlines())
    if len(pids) == len(ranks):
        return [ForkedRank(pids[index]) for index in range(len(ranks))]
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    raise ForkError(
        f"the process that forks the ranks ended with {process.returncode} before it had forked all of them; see its "
        "own message, or start without --fork_ranks"
    )


def _answer(process: subprocess.Popen, launcher: int) -> bytes:
    """Returns what a process prints until its end; kills it when the other end of `launcher` is closed."""
    answer, poll = b"", select.poll()
    poll.register(process.stdout, select.POLLIN)
    poll.register(launcher, 0)
    with process:
        while True:
            ready = dict(poll.poll())
            if launcher in ready:
                process.kill()
                poll.unregister(launcher)
            if process.stdout.fileno() in ready:
                block = os.read(process.stdout.fileno(), 1 << 16)
                if not block:
                    return answer
                answer += block


def fork_ranks(run: Callable[[], int]) -> None:
    """Forks the ranks that `start` requests, each of which ends with what `run` returns, and ends this process.

    Call it when all imports are done.
    """
    request = json.loads(sys.stdin.buffer.read())
    check_can_fork()
    answers = os.dup(1)
    gc.collect()
    gc.freeze()  # The collector does not write to what the ranks share.
    for index, rank in enumerate(request["ranks"]):
        # A rank whose parent has ended is adopted by the agent.
        if (between := os.fork()) == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                time.sleep(POLL_SECONDS)
            end_with(request["parent"])()
            # In one write: the pipe also gets the answers of the other ranks.
            os.write(answers, json.dumps([index, os.getpid()]).encode() + b"\n")
            os.setsid()
            become({**request["environ"], **rank["environ"], FORKED: "1"}, *rank["outputs"])
            for file in (answers, *(file for each in request["ranks"] for file in each["outputs"])):
                os.close(file)
            sys.exit(run())
        os.waitpid(between, 0)
    os._exit(0)


def check_can_fork() -> None:
    """Raises a SystemExit with the reason unless this process has one thread and no GPU."""
    if threads := extra_threads():
        sys.exit(f"tftrain.launch: an import has started threads ({', '.join(threads)}); start without --fork_ranks")
    if devices := _open_gpus():
        sys.exit(f"tftrain.launch: an import has opened {', '.join(devices)}; start without --fork_ranks")


def extra_threads() -> list[str]:
    """Returns the names of this process's threads beside its main one, except those that a fork does not harm."""
    threads = (path for path in Path("/proc/self/task").iterdir() if int(path.name) != os.getpid())
    return [name for path in threads if (name := (path / "comm").read_text().strip()) not in HARMLESS_THREADS]


def become(environ: Mapping[str, str], stdout: int, stderr: int) -> None:
    """Gives a forked process its environment, its standard streams (no input), and its own random numbers."""
    empty = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((empty, stdout, stderr)):
        os.dup2(file, number)
    os.close(empty)
    os.environ.clear()
    os.environ.update(environ)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # Python seeds its own generator after a fork.


def _open_gpus() -> list[str]:
    files = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # That of this very listing.
            files.add(os.readlink(file))
    return sorted(name for name in files if name.startswith(GPU_FILES))
