"""`--input_files`: files, folders and globs, with commas and several times."""

import os

import pytest

from tftrain import flags
from tftrain.data.errors import DataError
from tftrain.data.input_files import list_files
from tftrain.prepare_config import PrepareConfig


@pytest.fixture
def texts(tmp_path, monkeypatch):
    for name in (
        "a.txt",
        "b.txt",
        "more/c.txt",
        "more/deep/d.gz",
        "more/.hidden",
        "more/.git/e.txt",
        "x,y.txt",
        "[z].txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a.txt"], ["a.txt"]),
        (["b.txt", "a.txt"], ["a.txt", "b.txt"]),
        (["b.txt,a.txt"], ["a.txt", "b.txt"]),
        (["b.txt, a.txt,"], ["a.txt", "b.txt"]),
        (["a.txt", "b.txt,more"], ["a.txt", "b.txt", "more/c.txt", "more/deep/d.gz"]),
        (["more/"], ["more/c.txt", "more/deep/d.gz"]),
        (["m*"], ["more/c.txt", "more/deep/d.gz"]),
        (["more/**"], ["more/c.txt", "more/deep/d.gz"]),
        (["[ab].txt,more/*.txt"], ["a.txt", "b.txt", "more/c.txt"]),
        (["x,y.txt"], ["x,y.txt"]),
        (["a.txt,x,y.txt,b.txt"], ["a.txt", "b.txt", "x,y.txt"]),
        (["x,*.txt"], ["x,y.txt"]),
        (["[z].txt"], ["[z].txt"]),
        (["a.txt", "./a.txt", "more/../a.txt,a*"], ["a.txt"]),
        (["more/.git"], ["more/.git/e.txt"]),
    ],
)
def test_all_forms_together(texts, values, expected):
    assert [os.path.normpath(path) for path in list_files(values)] == expected


def test_a_file_behind_two_links_occurs_once(texts):
    (texts / "link.txt").symlink_to("a.txt")
    assert list_files(["a.txt,link.txt"]) == ["a.txt"]


def test_home_is_expanded(texts, monkeypatch):
    monkeypatch.setenv("HOME", str(texts))
    assert list_files(["~/a.txt"]) == [str(texts / "a.txt")]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (["a.txt", "no*"], r"^--input_files=no\*: no file matches; expected files, folders or globs"),
        (["a.txt,gone,b.txt"], "^--input_files=gone: no file matches"),
        (["a.txt", "empty"], "^--input_files=empty: no file in this folder"),
        ([","], "^--input_files=,: no name"),
        ([""], "^--input_files=: no name"),
    ],
)
def test_what_matches_nothing_is_named(texts, values, match):
    with pytest.raises(DataError, match=match):
        list_files(values)


def test_special_files_are_no_text(texts):
    os.mkfifo(texts / "empty" / "pipe")
    with pytest.raises(DataError, match="no file in this folder"):
        list_files(["empty"])


def test_the_flag_adds_up(tmp_path):
    (tmp_path / "flags").write_text("--input_files=c\n")
    arguments = ["prepare", "--input_files=a", f"--flagfile={tmp_path}/flags", "--input_files", "d,e", "--seed=3"]
    config = flags.parse(PrepareConfig, arguments)
    assert config.input_files == ("a", "c", "d,e")
    assert flags.parse(PrepareConfig, ["prepare"]).input_files == ()
    assert "--input_files=str\n" in flags.help_text(PrepareConfig, "prepare")
