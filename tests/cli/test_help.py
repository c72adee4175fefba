"""`--help`, `--version`, `python -m tftrain` and its guides: for every program, on narrow lines, without TensorFlow."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tftrain
from tftrain.cli import guides, help
from tftrain.config.fields import flag_name, help_of, sections
from tools import flag_table

ROOT = Path(tftrain.__file__).parent
CONFIGS = {name.removeprefix("tftrain."): config_class for name, config_class in flag_table.PROGRAMS.items()}
OTHERS = {"launch": CONFIGS["run"]}  # The launcher reads its own flags apart from those of the run.
# Words of help that are flags too, but are no flags there.
OTHER_MEANING = {"plan": {"data_parallel_size"}}


def sections_of(program):
    configs = [each for each in (CONFIGS.get(program), OTHERS.get(program)) if each]
    return [part for each in configs for part in sections(each())]


def names(program):
    return {flag_name(field) for part in sections_of(program) for field in dataclasses.fields(part)}


def run(*args, **environ):
    command = [sys.executable, *args]
    environ = {"PYTHONPATH": str(ROOT.parent), "PATH": os.environ["PATH"], **environ}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


def loaded_tensorflow(done):
    return [line for line in done.stderr.splitlines() if line.rpartition("|")[2].strip() == "tensorflow"]


@pytest.mark.parametrize("program", help.PROGRAMS)
def test_help_says_what_a_program_does_with_an_example_and_its_flags_on_narrow_lines(program):
    done = run("-X", "importtime", "-m", f"tftrain.{program}", "--help")
    sentence, heading, example = help.paragraphs(program)
    assert done.returncode == 0
    assert not loaded_tensorflow(done)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: python -m tftrain.{program} {help.PROGRAMS[program]}".rstrip())
    text = " ".join(done.stdout.replace("\\\n", " ").split())
    assert all(part in text for part in (sentence, heading, example))
    assert re.fullmatch(r"[A-Z][^.]*(?:\.\w[^.]*)*\.", sentence), "one sentence"
    assert lines[-1].endswith("guide: python -m tftrain docs NAME")
    shown = set(re.findall(r"^  --(\w+)=", done.stdout, re.MULTILINE))
    assert shown <= names(program)
    assert len(shown) <= help.FEW + 6


@pytest.mark.parametrize("program", help.PROGRAMS)
def test_help_of_all_flags_has_every_flag_on_lines_of_the_terminal(program, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = help.help_text(f"tftrain.{program}", sections_of(program), "all")
    assert set(re.findall(r"^  --(\w+)=", text, re.MULTILINE)) == names(program)
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("program", help.PROGRAMS)
def test_an_example_is_a_command_with_flags_of_its_program(program):
    typed = help.command(help.paragraphs(program)[2]).replace("\\\n", "")
    for command in re.split("&&|>", typed):
        words = shlex.split(command)
        if words[:2] == ["python", "-m"] and words[2].startswith("tftrain."):
            given = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
            assert given <= names(words[2].removeprefix("tftrain."))
    assert f"python -m tftrain.{program}" in typed


@pytest.mark.parametrize("program", help.PROGRAMS)
def test_every_program_has_a_version_and_is_started_by_its_name(program):
    done = run("-m", "tftrain", program, "--version")
    assert (done.returncode, done.stdout) == (0, f"tftrain {tftrain.__version__}\n")


@pytest.mark.parametrize("args", ["-h", "-help", "--help=", "--help --seed=1", "--seed=1 --help", "--seed --help"])
def test_help_is_the_same_however_it_is_asked_for(args, capsys):
    ask(args.split())
    first = capsys.readouterr().out
    ask(["--help"])
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("args", ["--help all", "--help=all", "--helpfull", "-h all"])
def test_all_flags_are_shown_however_they_are_asked_for(args, capsys):
    ask(args.split())
    assert "--rope_theta=float (default 10000.0)" in capsys.readouterr().out


@pytest.mark.parametrize("args", ["--help=attn_impl", "--help attn_impl", "--help=--attn_impl"])
def test_help_of_a_flag_has_all_that_is_declared_of_it(args, capsys):
    ask(args.split())
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("--attn_impl Attention core. softmax:")
    assert out.endswith("values softmax, flash, cudnn default softmax on resume free: " + help.ON_RESUME["free"])


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ("--help=lr", "--lr: no such flag; did you mean --learning_rate?"),
        ("--help --precison", None),
        ("--help=precison", "--precison: no such flag; did you mean --precision?"),
        ("--help something", "--something: no such flag; --help=all lists all flags"),
    ],
)
def test_help_of_no_flag_says_which_is_meant(args, line, capsys):
    assert ask(args.split()) == (2 if line else 0)
    assert capsys.readouterr().err == (f"tftrain.run: {line}\n" if line else "")


def ask(args):
    with pytest.raises(SystemExit) as end:
        help.answer(["tftrain.run", *args], sections(CONFIGS["run"]()))
    return end.value.code


def test_nothing_after_two_dashes_asks_for_help():
    assert help.answer(["tftrain.predict", "--", "--help"], []) is None


@pytest.mark.parametrize("program", CONFIGS)
def test_help_writes_flags_with_dashes_and_names_no_file_of_the_repository(program):
    flags = {name for name in names(program) if "_" in name} - OTHER_MEANING.get(program, set())
    for section in sections(CONFIGS[program]()):
        values = {str(choice) for field in dataclasses.fields(section) for choice in field.metadata["choices"] or ()}
        for field in dataclasses.fields(section):
            text = help_of(section, field)
            bare = re.findall(r"(?<![\w=-])(?<!--)\b([a-z]+(?:_[a-z0-9]+)+)\b(?!=)", text)
            assert not flags & set(bare) - values, text
            assert "docs/" not in text
            assert "..." not in text
            assert re.match(r"[^a-z].*[.)]$", text, re.DOTALL), text


def test_programs_and_guides_are_listed():
    done = run("-X", "importtime", "-m", "tftrain")
    assert done.returncode == 0
    assert not loaded_tensorflow(done)
    packages = {path.parent.name for path in ROOT.glob("*/__main__.py")}
    modules = {path.stem for path in ROOT.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert packages | modules - {"__main__", "rank_server"} == set(help.PROGRAMS)
    assert [line.split()[0] for line in done.stdout.splitlines() if re.match(r"  \w", line)] == [*help.PROGRAMS, "docs"]
    assert max(map(len, done.stdout.splitlines())) <= 80
    listed = run("-m", "tftrain", "docs").stdout
    expected = sorted(path.stem for path in ROOT.parent.glob("docs/*.md"))
    assert re.findall(r"^  (\w+) +\S", listed, re.MULTILINE) == expected
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ("rnu", "rnu: no such program; did you mean run?"),
        ("qqq", "qqq: no such program"),
        ("docs lever", "lever: no such guide; did you mean levers?"),
    ],
)
def test_a_wrong_name_is_refused_with_the_one_that_is_meant_and_a_list(args, line):
    done = run("-m", "tftrain", *args.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tftrain: {line}\n\nusage: ")


def test_a_guide_is_plain_text_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    page = (
        "# Title\n\nA **bold** [link](other.md#there) and\n`code` on two lines, which are joined.\n"
        "<!-- figures: x -->\n- an item that is\n  joined too, with more words than fit\n\n"
        "| a | b |\n| --- | --- |\n| `x` | y \\| z |\n\n"
        "| name | meaning |\n| --- | --- |\n| n | a cell that is wider than the terminal |\n\n"
        "```sh\npython -m tftrain.run --a=1\n```\n"
    )
    assert list(guides.plain(page)) == [
        *("# Title", "", "A bold link and `code` on two lines,", "which are joined."),
        *("- an item that is joined too, with more", "  words than fit", "", "a    b", "`x`  y | z", ""),
        *("n", "    meaning: a cell that is wider than", "      the terminal", ""),
        *("    python -m tftrain.run --a=1", ""),
    ]


def test_every_guide_is_shown_in_lines_of_the_terminal():
    for name, page in guides.pages().items():
        lines = [line for line in guides.plain(page) if not line.startswith("    ")]
        assert not [line for line in lines if len(line) > 80 or "](" in line], name
