"""A tokenizer's Jinja template, which comes from strangers: it is rendered in a process with little time and memory.

The sandbox of Jinja keeps a template from everything but its variables, and limits neither its loops nor its texts.
This file is the program of that process too: it reads lines of JSON and answers each with a text, the ranges of its
`generation` blocks, and an error.
"""

import contextlib
import datetime
import json
import re
import resource
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

# Around the text of a generation block while a template is rendered: nobody else writes these.
_BEGIN, _END = (f"\x02{secrets.token_hex(8)}{end}\x03" for end in "be")
SECONDS, MEMORY, LONGEST_TEXT = 10, 1 << 28, 1 << 24  # CPU time for a text, bytes, characters


class Renderer:
    """The process of one template, which ends with this object; a text takes at most `seconds` of CPU time."""

    def __init__(self, template: str, seconds: int = SECONDS, name: str = "the chat template"):
        """Compiles the template, which messages call `name`; raises DataError if it is none."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([sys.executable, "-I", __file__], text=True, **pipes)
        self._seconds, self._problem = seconds, f"{name} is not one of Jinja"
        self([sys.path, template])
        self._problem = f"{name} can't make a text of the messages"

    def __call__(self, variables: Any) -> str:
        """Returns the text of variables, a dictionary of values of JSON; raises DataError if there is none."""
        return self.generated(variables)[0]

    def generated(self, variables: Any) -> tuple[str, list[list[int]]]:
        """Returns the text and the ranges of characters that are in a generation block of the template."""
        from tftrain.files.errors import DataError

        answer = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([self._seconds, variables]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        text, ranges, error = json.loads(answer) if answer else ("", [], f"it takes more than {self._seconds} seconds")
        if error:
            raise DataError(f"{self._problem}: {error:.300}")
        return text, ranges

    def __del__(self):
        self._process.kill()
        with contextlib.suppress(OSError):
            self._process.communicate()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers; no other option of `json.dumps`, because some are called or imported."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _compile(template: str) -> Any:
    """Compiles a template with the settings of transformers; from then on, the process has little memory."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block `generation`: what the assistant writes."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def refuse(message: str) -> None:
        raise TemplateError(message)

    extensions = ["jinja2.ext.loopcontrols", Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    return environment.from_string(template)


def _ranges(marked: str) -> tuple[str, list[list[int]]]:
    """Returns a text without its marks, and the ranges that were between them; one inside another is a part of that."""
    text, length, ranges, depth = [], 0, [], 0
    for part in re.split(f"({_BEGIN}|{_END})", marked):
        if part == _BEGIN:
            ranges += [[length, length]] * (depth == 0)
            depth += 1
        elif part == _END:
            depth -= 1
            ranges[-1] = [ranges[-1][0], length]
        else:
            text.append(part)
            length += len(part)
    return "".join(text), ranges


def _answer(line: str, compiled: list[Any]) -> list[Any]:
    seconds, question = json.loads(line)
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + seconds + 1  # The kernel ends the process after that.
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        if not compiled:
            sys.path[:], template = question
            compiled.append(_compile(template))
            return ["", [], ""]
        text, ranges = _ranges(compiled[0].render(question))
    except Exception as error:  # A template can fail in any way.
        too_large = f"it takes more than {MEMORY >> 20} MiB of memory" if isinstance(error, MemoryError) else ""
        return ["", [], too_large or str(error) or type(error).__name__]
    too_long = "" if len(text) <= LONGEST_TEXT else f"it writes more than {LONGEST_TEXT >> 20} Mi characters"
    return ["" if too_long else text, ranges, too_long]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    state: list[Any] = []
    for request in sys.stdin:
        print(json.dumps(_answer(request, state)), flush=True)
