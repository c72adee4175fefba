"""`--input_files`: files, folders and globs, with commas and several times."""

import os
import re

import pytest

from tftrain.cli import flags, help
from tftrain.config.prepare import PrepareConfig
from tftrain.data.manifest import read_manifest
from tftrain.files.errors import DataError
from tftrain.prepare.input_files import list_files
from tftrain.prepare.preparation import prepare


@pytest.fixture
def texts(tmp_path, monkeypatch):
    more = ("more/c.txt", "more/deep/d.gz", "more/.hidden", "more/.git/e.txt")
    for name in ("a.txt", "b.txt", "x,y.txt", "[z].txt", *more):
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
        *((["more/"], ["more/c.txt", "more/deep/d.gz"]), (["m*"], ["more/c.txt", "more/deep/d.gz"])),
        (["more/**"], ["more/c.txt", "more/deep/d.gz"]),
        *((["[ab].txt,more/*.txt"], ["a.txt", "b.txt", "more/c.txt"]), (["x,y.txt"], ["x,y.txt"])),
        *((["a.txt,x,y.txt,b.txt"], ["a.txt", "b.txt", "x,y.txt"]), (["x,*.txt"], ["x,y.txt"])),
        *((["[z].txt"], ["[z].txt"]), (["a.txt", "./a.txt", "more/../a.txt,a*"], ["a.txt"])),
        (["more/.git"], ["more/.git/e.txt"]),
    ],
)
def test_all_forms_together(texts, values, expected):
    assert [os.path.normpath(path) for path in list_files(values)[0]] == expected


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (["a.txt", "no*"], r"^--input_files=no\*: no file matches; expected files, folders or globs"),
        ([","], "^--input_files=,: no name"),
    ],
)
def test_what_matches_nothing_is_named(texts, values, match):
    with pytest.raises(DataError, match=match):
        list_files(values)


@pytest.mark.parametrize(
    ("target", "reason"),
    [("gone", "a symbolic link to gone, which does not exist"), ("link", "a symbolic link that leads to itself")],
)
@pytest.mark.parametrize("named", ["more/link", "more", "more/*", "**", "."])
def test_a_link_that_leads_nowhere_is_named(texts, caplog, named, target, reason):
    (texts / "more/link").symlink_to(target)
    with pytest.raises(DataError, match=f"more/link: {reason}; make it readable, or leave it out with --skip_unread"):
        list_files([named])
    paths, unreadable = list_files([named, "a.txt"], skip_unreadable=True)
    assert (unreadable, "a.txt" in map(os.path.normpath, paths)) == (1, True)
    assert re.search(f"^--skip_unreadable: 1 left out: (./)?more/link: {reason}$", caplog.messages[-1])


def test_links_are_followed_once_and_special_files_are_no_text(texts, monkeypatch):
    (texts / "link.txt").symlink_to("a.txt")
    assert list_files(["a.txt,link.txt"])[0] == ["a.txt"]
    os.mkfifo(texts / "empty" / "pipe")
    with pytest.raises(DataError, match="no file in this folder"):
        list_files(["empty"])
    monkeypatch.setenv("HOME", str(texts))
    assert list_files(["~/a.txt"])[0] == [str(texts / "a.txt")]
    (texts / "more/deep/up").symlink_to("..")
    (texts / "linked").mkdir()
    (texts / "linked/deep").symlink_to("../more/deep")
    assert list_files(["more"])[0] == ["more/c.txt", "more/deep/d.gz"]
    assert list_files(["linked"])[0] == ["linked/deep/d.gz", "linked/deep/up/c.txt"]


@pytest.fixture
def as_nobody(texts):
    """Returns what `list_files` finds or says for a user who may not read everything."""
    if os.getuid():
        pytest.skip("only root can become another user")
    for path in (texts, *texts.parents):
        path.chmod(path.stat().st_mode | 0o055)

    def listed(*values, skip_unreadable=False):
        os.setegid(65534)
        os.seteuid(65534)
        try:
            return str(list(list_files(values, skip_unreadable)))
        except DataError as error:
            return str(error)
        finally:
            os.seteuid(0)
            os.setegid(0)

    return listed


@pytest.mark.parametrize("value", ["more", "more/**", "more/*/*", "more/**/*.gz", "**/*.gz", "*/*/*.gz", "*/deep/*"])
@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
def test_a_folder_that_may_not_be_listed_is_named(texts, as_nobody, value, mode):
    (texts / "more/deep").chmod(mode)
    denied = "more/deep(/d.gz)?: Permission denied(, and 1 more)?; make it readable, or leave it out"
    assert re.match(denied, as_nobody(value))
    assert re.search(r"'a.txt'.*\], [12]\]$", as_nobody(value, "a.txt", skip_unreadable=True))


@pytest.mark.parametrize("value", ["more", "more/*.txt", "more/c.txt", "**"])
def test_a_file_that_may_not_be_read_is_named(texts, as_nobody, value):
    (texts / "more/c.txt").chmod(0)
    assert as_nobody(value).startswith("more/c.txt: Permission denied; make it readable, or leave it out with --skip")
    assert as_nobody(value, "a.txt", skip_unreadable=True).endswith(", 1]")
    assert as_nobody("more/c.txt", skip_unreadable=True).startswith("--input_files=more/c.txt: nothing that can be re")


def test_a_file_in_a_folder_that_may_not_be_searched_is_named(texts, as_nobody):
    (texts / "more").chmod(0o444)
    assert as_nobody("more/c.txt").startswith("more/c.txt: Permission denied")


def test_the_manifest_counts_what_was_left_out(prepare_config, corpus, tmp_path):
    (tmp_path / "link").symlink_to("gone")
    files = (str(corpus / "*.txt"), str(tmp_path / "link"))
    made = prepare(prepare_config(tmp_path / "out", input_files=files, skip_unreadable=True))
    assert read_manifest(made.folder).unreadable_inputs == 1
    with pytest.raises(DataError, match="link: a symbolic link to gone"):
        prepare(prepare_config(tmp_path / "other", input_files=files))


def test_the_flag_adds_up(tmp_path):
    (tmp_path / "flags").write_text("--input_files=c\n")
    arguments = ["prepare", "--input_files=a", f"--flagfile={tmp_path}/flags", "--input_files", "d,e", "--seed=3"]
    config = flags.parse(PrepareConfig, arguments)
    assert config.input_files == ("a", "c", "d,e")
    assert flags.parse(PrepareConfig, ["prepare"]).input_files == ()
    assert "--input_files=str\n" in help.help_text("prepare", [PrepareConfig()], "all")
