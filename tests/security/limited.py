"""Reads files of strangers with a limit of memory: in forks of one process that has imported the readers.

The limit counts the address space: the interpreter and all libraries that are loaded too.

python -m tests.security.limited      each line is a JSON list: a key of READERS and its arguments
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tftrain.files.errors import FormatError
from tftrain.formats.torch_file import TorchFile
from tftrain.prepare import __main__ as prepare
from tftrain.prepare import sources

MEMORY = 800_000_000
SECONDS = 120


class Ended(NamedTuple):
    """How a reader has ended; `stderr` has one line if the file was refused."""

    code: int
    stdout: str
    stderr: str


def read_torch(path: str) -> int:
    """Reads the tensor `a` of a file; prints what was wrong."""
    try:
        file = TorchFile(path)
        print("opened")
        file.read(file.content["a"])
    except FormatError as error:
        print(error)
    return 0


READERS = {"prepare": lambda *flags: prepare.main(["prepare", *flags]), "torch": read_torch}


@contextlib.contextmanager
def started() -> Iterator[Callable[..., Ended]]:
    """Starts the process; yields a function that runs a reader by its key and arguments."""
    command = [sys.executable, "-m", "tests.security.limited"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    def run(*request: object) -> Ended:
        process.stdin.write(json.dumps([*map(str, request)]) + "\n")
        process.stdin.flush()
        return Ended(*json.loads(process.stdout.readline()))

    with subprocess.Popen(command, **streams) as process:
        yield run
        process.stdin.close()


def forked(reader: str, *arguments: str) -> Ended:
    """Runs a reader in a fork of this process."""
    outputs = [os.memfd_create(name) for name in Ended._fields[1:]]
    if (child := os.fork()) == 0:
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
        os._exit(_run(reader, *arguments))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = []
    for output in outputs:
        with open(output, "rb") as file:
            file.seek(0)
            texts.append(file.read().decode())
    return Ended(code, *texts)


def _run(reader: str, *arguments: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.alarm(SECONDS)
    code = 1
    try:
        code = READERS[reader](*arguments)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    for name in ("pyarrow.ipc", "pyarrow.parquet", "tftrain.prepare.preparation"):
        importlib.import_module(name)
    sources._FREE_BYTES = 1 << 23  # 64 MB of text take seconds.
    for line in sys.stdin:
        print(json.dumps(forked(*json.loads(line))), flush=True)
