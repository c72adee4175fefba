"""Flagfiles: expanded in place; what is no flagfile is one problem that names it, and never a crash or a wait."""

import os
import tracemalloc

import pytest

from tftrain.cli import flagfile, flags
from tftrain.cli.flagfile import expand
from tftrain.config.train import TrainConfig


def lines_of(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return f"--flagfile={path}"


def only_problem(*args):
    found, problems = expand(["program", *args])
    assert found == ["program"]
    (problem,) = problems
    assert problem.flag == "flagfile"
    assert str(problem).isprintable()
    return str(problem)


def test_arguments_take_the_place_of_the_file(tmp_path):
    inner = lines_of(tmp_path / "inner", "\ufeff--b=2", "", "  // a comment", "--c=a b ")
    outer = lines_of(tmp_path / "outer", "# a comment", "--a=1", inner, "--d=4\r")
    expected = ["program", "first", "--a=1", "--b=2", "--c=a b", "--d=4", "--last"]
    assert expand(["program", "first", outer, "--last"]) == (expected, [])
    assert expand(["program", "first", "--flagfile", str(tmp_path / "outer"), "--last"]) == (expected, [])


def test_nothing_is_read_behind_two_dashes(tmp_path):
    assert expand(["program", "--", "--flagfile=none"]) == (["program", "--", "--flagfile=none"], [])


def test_files_that_name_others_twice_do_not_multiply(tmp_path):
    for number in range(40):
        lines_of(tmp_path / str(number), *[f"--flagfile={tmp_path / str(number + 1)}"] * 2)
    lines_of(tmp_path / "40", "--a=1")
    found, problems = expand([f"--flagfile={tmp_path / '0'}"])
    assert len(found) + len(problems) < 3 * flagfile.MAX_FILES
    assert any("expected at most 100 flagfiles" in str(problem) for problem in problems)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"--a=\x00b\n", "line 1: a control character"),
        (b"--a=1\n\x7fELF", "line 2: a control character"),
        (b"--a=1\n\xff\xfe", "byte 6: not UTF-8"),
        (b"--flagfile\n", "line 1: expected --flagfile=FILE"),
        (b"-flagfile=\n", "line 1: expected --flagfile=FILE"),
    ],
)
def test_a_file_that_is_no_text_is_named(tmp_path, content, words):
    (tmp_path / "x").write_bytes(content)
    found, problems = expand([f"--flagfile={tmp_path / 'x'}"])
    assert [problem.value for problem in problems] == [str(tmp_path / "x")]
    assert words in str(problems[0])
    assert found in ([], ["--a=1"])


def test_what_is_no_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "No such file" in only_problem(f"--flagfile={tmp_path / 'none'}")
    assert "Is a directory" in only_problem(f"--flagfile={tmp_path}")
    assert "Not a regular file" in only_problem(f"--flagfile={tmp_path / 'pipe'}")
    assert "Not a regular file" in only_problem("--flagfile=/dev/zero")
    assert "No such file" in only_problem("--flagfile=")
    assert "expected a file name" in only_problem("--flagfile")


def test_a_huge_file_is_not_read(tmp_path):
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    assert "Larger than 262144 bytes" in only_problem(f"--flagfile={tmp_path / 'huge'}")
    assert tracemalloc.get_traced_memory()[1] < 10 * flagfile.MAX_BYTES
    tracemalloc.stop()


def test_too_many_arguments_are_refused(tmp_path):
    argument = lines_of(tmp_path / "many", *["--a=1"] * (flagfile.MAX_ARGUMENTS + 5))
    _, problems = expand([argument, argument])
    assert {"expected at most 10000 arguments in all" in str(problem) for problem in problems} == {True}


def test_all_problems_of_files_and_flags_are_reported_together(tmp_path):
    good = lines_of(tmp_path / "good", "--hidden_size=64", "--max_steps=many")
    config, problems, _ = flags.read(TrainConfig, ["program", f"--flagfile={tmp_path / 'none'}", good, "--max_step=3"])
    assert [problem.flag for problem in problems] == ["flagfile", "max_steps", "max_step"]
    assert config.model.hidden_size == 64
