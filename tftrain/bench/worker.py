"""A measuring process that stays alive: it answers each line of json with one line of json until its input ends.

Several workers can take turns, each with its model built and warm, while the others block on their input. This module
needs only the standard library, because an interpreter without TensorFlow runs workers too. All workers allocate in
huge pages, as `tftrain.run` does, so that no implementation has an advantage.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tftrain.host.huge_pages import with_huge_pages

ROOT = Path(__file__).resolve().parents[2]
ON_CPU = {"TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
STDERR_LINES = 40
SHOWN_LINES = 3
STOP_SECONDS = 30


class MeasureError(RuntimeError):
    """There are no figures; the message is the row's error, in one line."""


def with_package(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which Python imports this tftrain from any folder, and TensorFlow is quiet."""
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **environ, "PYTHONPATH": path}


class Worker:
    """A measuring process, from the side of its parent."""

    def __init__(
        self, module: str, settings: dict[str, Any], python: str = sys.executable, environ: dict[str, str] | None = None
    ):
        """Starts an interpreter, which sees no GPU; `ask` waits until it is ready.

        Args:
            module: a module that calls `serve`, such as `tftrain.bench.kernels.worker`.
            settings: argument of the module's `build`.
            environ: by default this process's, with huge pages.

        Raises:
            MeasureError: it can't be started.
        """
        try:
            self._process = subprocess.Popen(
                [python, "-m", module, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**with_package(environ or with_huge_pages(os.environ)), **ON_CPU},
            )
        except OSError as error:
            raise MeasureError(f"cannot start {python}: {error}") from error
        self._stderr_tail: deque[str] = deque(maxlen=STDERR_LINES)
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()

    def ask(self, request: Any) -> Any:
        """Sends a request and returns its answer.

        Raises a MeasureError if the process answered with an exception, or has ended.
        """
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            self._reader.join()
            words = " / ".join(list(self._stderr_tail)[-SHOWN_LINES:]) or "nothing on stderr"
            raise MeasureError(f"the process ended with exit code {code}: {words}")
        answer = json.loads(line)
        if "error" in answer:
            raise MeasureError(answer["error"])
        return answer["result"]

    def stop(self) -> None:
        """Ends the process; a second call does nothing."""
        if not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc) -> None:
        self.stop()

    def _read_stderr(self) -> None:
        for line in self._process.stderr:
            if line.strip():
                self._stderr_tail.append(line.strip())


def serve(build: Callable[[dict[str, Any]], Callable[[Any], Any]]) -> None:
    """Answers requests until the input ends: the main function of a worker.

    `build` makes, from the settings, the function that answers a request. An exception of either is sent as the answer.
    """
    # Keep the output of libraries out of the answers: it goes to stderr.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answer = None
    for line in sys.stdin:
        try:
            if answer is None:
                answer = build(json.loads(sys.argv[1]))
            said = {"result": answer(json.loads(line))}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
        print(json.dumps(said), file=answers, flush=True)
