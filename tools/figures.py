"""Runs the commands of the pages and writes the figures that they print into the pages: `python tools/figures.py`.

A page marks a figure by two comments:

    <!-- figures: make train -->                      the block between them is from the output of this command,
    <!-- figures: above -->                           ... or of the nearest block of commands above it
    <!-- figures: make train, unigram entropy -->     the number between them is the first one after these words

The text between the comments is a template: each of its lines is replaced by the next line of the output with the same
words (`figure_lines.py`), and a number in a sentence keeps its decimals. The page chooses what it shows. Figures of
several commands (`TABLES`) are made by functions. The commands run in a folder of their own, in the order of the pages.

    python tools/figures.py                           everything, in build/figures
    python tools/figures.py --from=build/figures      without the commands whose output is there
    python tools/figures.py --check docs/export.md    compare this page with the output, and write nothing
"""

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.figure_lines import NUMBER, differences, filled
from tools.page_commands import blocks

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/figures"
MACHINE = "docs/first_hour.md"  # the page whose times need the machine's name
FIRST = ("README.md", MACHINE)  # later pages use their models
LINKED = (".venv", "Makefile", "configs", "tests", "tools")
MARK = re.compile(r"<!-- figures: (.*?) -->(.*?)<!-- end -->", re.DOTALL)
PICTURES = {  # in docs/: the command that draws it, and where, if not there
    "quickstart_loss.png": ("make train", "build/quickstart/run/loss_curve.png"),
    "finetune_accuracy.png": ("make finetune", "build/finetune/accuracy.png"),
    "equal_losses.png": ('python tools/equal_losses.py "$PWD/build/quickstart/data"', ""),
    "report_page.png": (
        "python tools/page_picture.py build/quickstart/run/report.html report.png --width=1200 --height=1230",
        "report.png",
    ),
    "plan_page.png": (
        "python -m tftrain.plan --cluster=a100_80gb --nodes=4 --flagfile=configs/llama_8b.flags --max_seq_length=2048 "
        "--precision=bf16 --global_batch_size=512 --micro_batch_size=4 --max_steps=20000 --html=plan.html || true\n"
        "python tools/page_picture.py plan.html plan.png --width=1000 --height=1580",
        "plan.png",
    ),
}


PLANS = re.compile(r"tftrain\.plan\b|tools/recipe_table")
RUNS = re.compile(r"-m tftrain\.(?!plan\b)|this_machine|--measure|^make ")


@dataclass(frozen=True)
class Mark:
    """A figure of a page.

    Attributes:
        command: the command, or a key of TABLES.
        words: the words before the number, or "" for a block.
        text: what the page shows.
        start, end: where the text stands in the page.
    """

    command: str
    words: str
    text: str
    start: int
    end: int

    @property
    def is_planned(self) -> bool:
        """Whether the figure is computed without training or measuring."""
        return bool(PLANS.search(self.command)) and not RUNS.search(self.command)


def marks(page: Path) -> list[Mark]:
    """Returns the figures of a page.

    Raises:
        ValueError: a mark without an end, or without the block that it names.
    """
    text, found = page.read_text(), []
    if len(MARK.findall(text)) != text.count("<!-- figures: ") or text.count("<!-- end -->") != len(MARK.findall(text)):
        raise ValueError(f"{page}: each <!-- figures: ... --> needs its <!-- end -->")
    for match in MARK.finditer(text):
        command, _, words = match[1].rpartition(", ") if ", " in match[1] else (match[1], "", "")
        if command == "above":
            before = [block for block in blocks(text[: match.start()]) if block.commands or block.is_python]
            if not before:
                raise ValueError(f"{page}: no block of commands is above <!-- figures: {match[1]} -->")
            block = before[-1]
            command = f"python - <<'END'\n{block.text}END" if block.is_python else "\n".join(block.commands)
        found.append(Mark(command, words, match[2], match.start(2), match.end(2)))
    return found


class Outputs:
    """Runs commands in a folder, each once, and stores what they print there.

    Args:
        folder: where commands run and outputs are stored. Outputs that are there are taken as they are.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "outputs").mkdir(parents=True, exist_ok=True)
        for name in LINKED:
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(ROOT / name)

    def __getitem__(self, command: str) -> str:
        """Returns what a command prints.

        Raises:
            SystemExit: the command fails.
        """
        return self._of(command)["output"]

    def _of(self, command: str) -> dict:
        name = re.sub(r"\W+", "_", command.partition("\n")[0])[:60] + hashlib.sha256(command.encode()).hexdigest()[:8]
        path = self.folder / "outputs" / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(self._run(command)))
        return json.loads(path.read_text())

    def _run(self, command: str) -> dict:
        print(f"$ {command.partition(chr(10))[0]}", end="", flush=True)
        environ = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"}
        # The environment is there, so `setup` has nothing to do.
        script = "set -e\n" + re.sub(r"(?m)^make ", "make -o setup ", command)
        start, busy = time.monotonic(), busy_seconds()
        ran = subprocess.run(["bash", "-c", script], cwd=self.folder, env=environ, text=True, capture_output=True)
        seconds = time.monotonic() - start
        print(f"   {seconds:.0f} s", flush=True)
        # A plan of what does not fit ends with 1, after its output.
        if ran.returncode > int(command.startswith("python -m tftrain.plan ")):
            sys.exit(f"{ran.stdout[-2000:]}{ran.stderr[-2000:]}\n{command}\nfailed with {ran.returncode}")
        others = max(0.0, busy_seconds() - busy) / seconds
        return {"command": command, "seconds": seconds, "others": others, "output": ran.stdout + ran.stderr}

    def machine(self) -> str:
        """Returns the processor, and how much of it other programs used while the commands of the page with it ran."""
        commands = {mark.command for mark in marks(ROOT / MACHINE) if mark.command not in TABLES}
        runs = [self._of(command) for command in sorted(commands)]
        name = re.search(r"compute +\w+, (.*?), ", self["make train"])[1]
        others = sum(run["others"] * run["seconds"] for run in runs) / sum(run["seconds"] for run in runs)
        return f"{os.cpu_count()} cores ({name}), of which other programs used {others:.2f} on average"


def busy_seconds() -> float:
    """Returns the seconds that all cores were busy with others than this process and the commands that it ran."""
    times = psutil.cpu_times()
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return times.user + times.system + times.nice - sum(use.ru_utime + use.ru_stime for use in own)


def variants(outputs: Outputs) -> str:
    """Returns the table of docs/export.md: how far each variant of an export is from the model in fp32."""
    columns = ["variant", "largest difference of hidden states", "of pooled", "of logits"]
    columns += ["same most probable token", "size", "`encode`, sequences/s", "fp32 in the same process"]
    rows = [columns, ["---"] * len(columns)]
    export = "python -m tftrain.export --output_dir=build/quickstart/run --to=build/export/"
    others = "\n".join(f"{export}{name} --variant={name}" for name in ("bf16", "int8"))
    texts = [outputs[f"{export}quickstart"], *re.split(r"(?=build/export/int8\n)", outputs[others])]
    for name, text in zip(("fp32", "bf16", "int8"), texts, strict=True):
        patterns = (r"difference of \w+: (\S+) ", r"probable token: (\S+)", r"size: (.*?);", r"(\d+) sequences/s")
        text = text.replace("0.00e+00", "0")
        rows.append([f"`{name}`", *(cell for pattern in patterns for cell in re.findall(pattern, text))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


TABLES = {"variants": variants, "machine": Outputs.machine}


def shown(mark: Mark, outputs: Outputs) -> str:
    """Returns what a page has to show for a mark."""
    if mark.command in TABLES:
        text = TABLES[mark.command](outputs)
        return f"\n{text}\n" if "\n" in text else text
    if not mark.words:
        indentation = re.match(r"\s*?\n( *)", mark.text)[1]
        template = [line.removeprefix(indentation) for line in mark.text.rstrip().splitlines()]
        lines = filled(template, outputs[mark.command].splitlines())
        return "\n".join(line and indentation + line for line in lines) + f"\n{indentation}"
    number = re.search(re.escape(mark.words) + rf"\D*?({NUMBER})", outputs[mark.command])
    if not number:
        sys.exit(f"{mark.command}: no number after {mark.words!r} in its output")
    decimals = len(mark.text.partition(".")[2])
    return f"{float(number[1].replace(',', '')):,.{decimals}f}"


def pages() -> list[Path]:
    """Returns all pages, in the order in which their commands run."""
    first = [ROOT / name for name in FIRST]
    return first + [page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in first]


def run_all(chosen: list[Path], outputs: Outputs) -> None:
    """Runs the commands of all figures of the pages, and saves the blocks of the pages that have the name of a file."""
    if not all(mark.is_planned for page in chosen for mark in marks(page)):
        outputs["make train"]  # other commands use its model
    for page in chosen:
        for block in blocks(page):
            if block.name:
                (outputs.folder / block.name).write_text(block.text)
        for mark in marks(page):
            if mark.command not in TABLES:
                outputs[mark.command]


def write(page: Path, outputs: Outputs) -> None:
    """Writes the figures of a page into it."""
    text = page.read_text()
    for mark in reversed(marks(page)):
        text = text[: mark.start] + shown(mark, outputs) + text[mark.end :]
    page.write_text(text)


def check(page: Path, outputs: Outputs) -> list[str]:
    """Returns what differs between a page and its figures, a text for each."""
    lines, name = [], page.relative_to(ROOT)
    for mark in marks(page):
        if mark.command != "machine":
            found = differences(mark.text, shown(mark, outputs), mark.is_planned)
            lines += [f"{name}: {mark.command[:70].splitlines()[0]}: {line}" for line in found]
    return lines


def main() -> int:
    """Writes or compares the figures; returns 1 if a compared page differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="pages to write or to compare (default: all)")
    parser.add_argument("--from", dest="folder", type=Path, help="take the outputs that an earlier run left here")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    args = parser.parse_args()
    if not args.folder:
        shutil.rmtree(FOLDER, ignore_errors=True)
    outputs, chosen = Outputs((args.folder or FOLDER).resolve()), [page.resolve() for page in args.pages] or pages()
    run_all(chosen, outputs)
    if args.check:
        found = [line for page in chosen for line in check(page, outputs)]
        print("\n".join(found) or "all figures are those of the commands")
        return int(bool(found))
    code = 0
    for page in chosen:
        try:
            write(page, outputs)
        except SystemExit as error:  # the other pages are written
            print(f"{page.relative_to(ROOT)}: {error}", file=sys.stderr)
            code = 1
    pictures("".join(page.read_text() for page in chosen), outputs)
    return code


def pictures(text: str, outputs: Outputs) -> None:
    """Draws the pictures again that a text shows."""
    for name, (command, path) in PICTURES.items():
        if f"{name})" in text:
            outputs[command]
            if path:
                shutil.copy(outputs.folder / path, ROOT / "docs" / name)


if __name__ == "__main__":
    sys.exit(main())
