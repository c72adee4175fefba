"""One process loads TensorFlow, Horovod and tftrain, and forks the ranks of all tests: Python's own fork server.

A forked rank starts at once; a fresh interpreter needs about five seconds of CPU time for the same imports.

`tftrain.launching.forking` says why a fork is safe, and what differs in a forked rank. `ForkServer.can_fork` compares
the environment variables that an import reads. Modules are loaded already, so a rank cannot replace one by a file of
its own. Unlike `tftrain.rank_server`, this server stays, and forks the ranks of one test after another.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

from tftrain.host.huge_pages import with_huge_pages
from tftrain.launching import forking

ROOT = Path(__file__).resolve().parents[2]
# Libraries read these variables while they are imported, or when the process starts.
READ_AT_IMPORT = (
    *("CUDA_", "GLIBC_", "KERAS_", "KMP_", "LD_", "MALLOC_", "MKL_", "MPL", "NVIDIA_", "OMP_", "OPENBLAS_"),
    *("PYTHON", "TF_", "XLA_"),
)
_CONTEXT = multiprocessing.get_context("forkserver")


class ForkedRank:
    """A rank, with what the tests use of `subprocess.Popen`."""

    def __init__(self, request: dict, group: int = 0):
        """Forks a rank and waits until it leads a process group of its own, or is in that of a process `group`."""
        self._process = _CONTEXT.Process(target=_become, args=(request, group))
        self._process.start()
        self.pid = self._process.pid
        while self.poll() is None and os.getpgid(self.pid) != (group or self.pid):
            time.sleep(forking.POLL_SECONDS)

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the rank runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Returns the exit code, or None while the rank runs."""
        return self.returncode

    def wait(self) -> int:
        """Waits until the rank has ended and returns its exit code."""
        self._process.join()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal to the rank if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the rank."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The server; a process has one."""

    def __init__(self, environ: Mapping[str, str]):
        """Starts the server in an environment; ranks wait until its imports are done, some seconds later.

        The environment gets huge pages, without which `tftrain.run` would start a fresh process.
        """
        self._given, mine = dict(environ), dict(os.environ)
        wanted = with_huge_pages({**environ, **forking.ONE_THREAD})
        self._added = {name: value for name, value in wanted.items() if environ.get(name) != value}
        _CONTEXT.set_forkserver_preload(["tests.kit.preloaded"])
        try:
            os.environ.update(wanted)
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(mine)

    def can_fork(self, args: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Returns whether a forked rank does what `python ARGS` does in this environment."""
        names = [name for name in {*environ, *self._given} if name.startswith(READ_AT_IMPORT)]
        return args[0] in ("-m", "-c") and all(environ.get(name) == self._given.get(name) for name in names)

    def fork(
        self,
        args: Sequence[str],
        environs: Sequence[Mapping[str, str]],
        outputs: Sequence[Path],
        one_group: bool = False,
    ) -> list[ForkedRank]:
        """Starts ranks of ["-m", module, ...] or ["-c", program, ...], each with its whole environment.

        What a rank prints is appended to its file in `outputs`. With `one_group`, all are in one process group;
        otherwise each leads a group of its own.
        """
        ranks: list[ForkedRank] = []
        for environ, output in zip(environs, outputs, strict=True):
            request = {"args": list(args), "environ": {**environ, **self._added}, "output": str(output)}
            ranks.append(ForkedRank(request, ranks[0].pid if ranks and one_group else 0))
        return ranks


def _become(request: dict, group: int) -> None:
    """Runs a rank's program in this process, as `python ARGS` does, and ends the process."""
    os.setpgid(0, group)
    forking.check_can_fork()
    os.chdir(ROOT)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    forking.become(request["environ"], output, output)
    os.close(output)
    option, program, *args = request["args"]
    sys.orig_argv[:] = [sys.executable, *request["args"]]
    try:
        if option == "-m":
            sys.argv[:] = [program, *args]
            sys.modules.pop(program, None)  # The server may have imported it; `runpy` would warn.
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = ["-c", *args]
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), module.__dict__)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int | None) else 1
        if code is not error.code:
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    _end(code or 0)


def _end(code: int) -> None:
    """Ends a rank as the interpreter does, but does not free the modules, which takes a sixth of a short run.

    Ranks in an interpreter of their own, and those that `tftrain.launch` starts, end in the usual way.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
