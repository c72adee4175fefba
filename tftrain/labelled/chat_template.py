"""A tokenizer's Jinja template, which comes from strangers: it is rendered in a process with little time and memory.

The sandbox of Jinja keeps a template from everything but its variables, and limits neither its loops nor its texts.
This file is the program of that process too: it reads lines of JSON and answers each with a text and an error.
"""

import contextlib
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS, MEMORY, LONGEST_TEXT = 10, 1 << 28, 1 << 24  # of CPU time for a text, bytes, characters


class Renderer:
    """The process of one template, which ends with this object; a text takes at most `seconds` of CPU time."""

    def __init__(self, template: str, seconds: int = SECONDS):
        """Compiles the template; raises DataError if it is none."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([sys.executable, "-I", __file__], text=True, **pipes)
        self._seconds, self._problem = seconds, "the chat template is not one of Jinja"
        self([sys.path, template])
        self._problem = "the chat template can't make a text of the messages"

    def __call__(self, variables: Any) -> str:
        """Returns the text of variables, a dictionary of values of JSON; raises DataError if there is none."""
        from tftrain.input.errors import DataError

        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([self._seconds, variables]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        text, error = json.loads(answer) if answer else ("", f"it takes more than {self._seconds} seconds")
        if error:
            raise DataError(f"{self._problem}: {error:.300}")
        return text

    def __del__(self):
        self._process.kill()
        with contextlib.suppress(OSError):
            self._process.communicate()


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """As in transformers; no other option of `json.dumps`, because some are called or imported."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _compile(template: str) -> Any:
    """Compiles a template with the settings of transformers; from then on, the process has little memory."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    controls = ["jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=controls)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = refuse
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    return environment.from_string(template)


def _answer(line: str, compiled: list[Any]) -> list[str]:
    seconds, question = json.loads(line)
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + seconds + 1  # The kernel ends the process after that.
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        if not compiled:
            sys.path[:], template = question
            compiled.append(_compile(template))
            return ["", ""]
        text = compiled[0].render(question)
    except Exception as error:  # A template can fail in any way.
        too_large = f"it takes more than {MEMORY >> 20} MiB of memory" if isinstance(error, MemoryError) else ""
        return ["", too_large or str(error) or type(error).__name__]
    return [text, ""] if len(text) <= LONGEST_TEXT else ["", f"it writes more than {LONGEST_TEXT >> 20} Mi characters"]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    state: list[Any] = []
    for request in sys.stdin:
        print(json.dumps(_answer(request, state)), flush=True)
