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

from tftrain.files.errors import FormatError
from tftrain.formats.torch_file import TorchFile
from tftrain.prepare import __main__ as prepare
from tftrain.prepare import sources

MEMORY = 800_000_000
SECONDS = 120


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
def started() -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    """Starts the process; yields a function that runs a reader by its key and arguments."""

    def run(*request: object) -> subprocess.CompletedProcess:
        print(json.dumps([*map(str, request)]), file=process.stdin, flush=True)
        return subprocess.CompletedProcess(request, *json.loads(process.stdout.readline()))

    command, pipe = [sys.executable, "-m", "tests.security.limited"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield run
        process.stdin.close()


def forked(reader: str, *arguments: str) -> tuple[int, str, str]:
    """Runs a reader in a fork of this process; returns its exit code and what it wrote to both streams."""
    outputs = [os.memfd_create(name) for name in ("stdout", "stderr")]
    if (child := os.fork()) == 0:
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(SECONDS)
        code = 1
        try:
            code = READERS[reader](*arguments)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [os.pread(output, 1 << 20, 0).decode() for output in outputs]
    for output in outputs:
        os.close(output)
    return code, *texts


if __name__ == "__main__":
    for name in ("pyarrow.ipc", "pyarrow.parquet", "tftrain.prepare.preparation"):
        importlib.import_module(name)
    sources._FREE_BYTES = 1 << 23  # 64 MB of text take seconds.
    for line in sys.stdin:
        print(json.dumps(forked(*json.loads(line))), flush=True)
