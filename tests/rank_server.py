"""One process loads TensorFlow, Horovod and tftrain, and forks the ranks of all tests.

A forked rank starts at once; a fresh interpreter needs about five seconds of CPU time for the same imports.

`tftrain.launching.forking` says why a fork is safe, and what differs in a forked rank. `RankServer.can_fork` compares
the environment variables that an import reads. Modules are loaded already, so a rank cannot replace one by a file of
its own. Unlike `tftrain.rank_server`, this server stays, and forks the ranks of one test after another.

Requests and answers are JSON objects, one a line:

    in   {"one_group": false, "ranks": [{"args": [...], "environ": {...}, "output": path}, ...]}
    out  {"pids": [...]} for each request, {"pid": number, "code": number} for each rank that has ended
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from tftrain import rank_server
from tftrain.host.huge_pages import with_huge_pages
from tftrain.launching import forking

ROOT = Path(__file__).resolve().parents[1]
# Libraries read these variables while they are imported, or when the process starts.
READ_AT_IMPORT = (
    *("CUDA_", "GLIBC_", "KERAS_", "KMP_", "LD_", "MALLOC_", "MKL_", "MPL", "NVIDIA_", "OMP_", "OPENBLAS_"),
    *("PYTHON", "TF_", "XLA_"),
)
REAP_SECONDS = 0.02


class RankServer:
    """The server, seen from the tests.

    Args:
        environ: the server's environment; without huge pages in it, `tftrain.run` would start a fresh process.
    """

    def __init__(self, environ: Mapping[str, str]):
        """Starts the server. Requests wait until its imports are done, some seconds later."""
        self._given = dict(environ)
        self._environ = with_huge_pages({**environ, **forking.ONE_THREAD})
        self._added = {name: value for name, value in self._environ.items() if environ.get(name) != value}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rank_server"],
            cwd=ROOT,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._codes: dict[int, int] = {}
        self._pids: list[int] | None = None
        self._received = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def close(self) -> None:
        """Ends the server."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def can_fork(self, args: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Returns whether a forked rank does what `python ARGS` does in this environment."""
        names = [name for name in {*environ, *self._given} if name.startswith(READ_AT_IMPORT)]
        return args[0] in ("-m", "-c") and all(environ.get(name) == self._given.get(name) for name in names)

    def fork(
        self,
        args: Sequence[Sequence[str]],
        environs: Sequence[Mapping[str, str]],
        outputs: Sequence[Path],
        one_group: bool = False,
    ) -> list["ForkedRank"]:
        """Starts ranks.

        Args:
            args: for each rank ["-m", module, ...] or ["-c", program, ...].
            environs: for each rank its whole environment.
            outputs: for each rank the file that its standard output and standard error are appended to.
            one_group: whether all ranks are in one process group; otherwise each leads a group of its own.

        Returns:
            The ranks.
        """
        ranks = [
            {"args": list(given), "environ": {**environ, **self._added}, "output": str(output)}
            for given, environ, output in zip(args, environs, outputs, strict=True)
        ]
        self._pids = None
        self._process.stdin.write(json.dumps({"one_group": one_group, "ranks": ranks}).encode() + b"\n")
        self._process.stdin.flush()
        while self._pids is None:
            self._receive(1)
        return [ForkedRank(self, pid) for pid in self._pids]

    def code(self, pid: int) -> int | None:
        """Returns the exit code of a rank, negative for a signal, or None while it runs."""
        self._receive(0)
        return self._codes.get(pid)

    def _receive(self, seconds: float) -> None:
        while self._selector.select(seconds):
            block = os.read(self._process.stdout.fileno(), 1 << 16)
            if not block:
                raise RuntimeError("the rank server has ended; its standard error says why")
            *lines, self._received = (self._received + block).split(b"\n")
            for line in map(json.loads, lines):
                if "pids" in line:
                    self._pids = line["pids"]
                    # The system may give the id of a rank that has ended to a new one.
                    self._codes = {pid: code for pid, code in self._codes.items() if pid not in self._pids}
                else:
                    self._codes[line["pid"]] = line["code"]
            seconds = 0


class ForkedRank:
    """A rank, with what the tests use of `subprocess.Popen`.

    Attributes:
        pid: the id of its process.
        returncode: its exit code, None until `poll` or `wait` has found that it has ended.
    """

    def __init__(self, server: RankServer, pid: int):
        self._server, self.pid, self.returncode = server, pid, None

    def poll(self) -> int | None:
        """Returns the exit code, or None while the rank runs."""
        if self.returncode is None:
            self.returncode = self._server.code(self.pid)
        return self.returncode

    def wait(self) -> int:
        """Waits until the rank has ended and returns its exit code."""
        while self.poll() is None:
            self._server._receive(REAP_SECONDS)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the rank if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the rank."""
        self.send_signal(signal.SIGKILL)


def serve() -> dict:
    """Forks ranks until standard input ends.

    Returns:
        In each rank, its part of the request. The server itself does not return.
    """
    requests, answers = os.dup(0), os.dup(1)
    selector = selectors.PollSelector()
    selector.register(requests, selectors.EVENT_READ)
    pending, running = b"", set()
    while True:
        if selector.select(REAP_SECONDS if running else None):
            block = os.read(requests, 1 << 16)
            if not block:
                sys.exit()
            *lines, pending = (pending + block).split(b"\n")
            for line in lines:
                request = json.loads(line)
                forking.check_can_fork()
                pids: list[int] = []
                for rank in request["ranks"]:
                    if (pid := os.fork()) == 0:
                        os.setpgid(0, pids[0] if pids and request["one_group"] else 0)
                        os.close(requests)
                        os.close(answers)
                        return rank
                    pids.append(pid)
                    os.setpgid(pid, pids[0] if request["one_group"] else pid)
                running.update(pids)
                _answer(answers, {"pids": pids})
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            running.remove(pid)
            _answer(answers, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _answer(answers: int, message: dict) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")


def become(rank: dict) -> None:
    """Runs a rank's program in this process, as `python ARGS` does."""
    output = os.open(rank["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    forking.become(rank["environ"], output, output)
    os.close(output)
    option, program, *args = rank["args"]
    sys.orig_argv[:] = [sys.executable, *rank["args"]]
    if option == "-m":
        sys.argv[:] = [program, *args]
        sys.modules.pop(program, None)  # The server may have imported it; `runpy` would warn.
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = ["-c", *args]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), module.__dict__)


def end(code: int) -> None:
    """Ends a rank as the interpreter does, but does not free the modules, which takes a sixth of a short run.

    Ranks in an interpreter of their own, and those that `tftrain.launch` starts, end in the usual way.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    rank_server.load_modules()
    pictures = importlib.import_module("tests.pictures")
    importlib.import_module("matplotlib.backends.backend_agg")  # A run draws its curve at the end.
    importlib.import_module("matplotlib.figure")
    pictures.leave_out()
    # The ranks share the memory pages of the imported modules until a rank writes to them.
    gc.collect()
    gc.freeze()
    try:
        become(serve())
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        end(error.code or 0)
    end(0)
