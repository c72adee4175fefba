"""No name of a stranger becomes a path outside its folder, and nothing without end is fetched."""

import contextlib
import json
import os
import shutil
import zipfile

import fsspec
import pytest

from tests.formats.models import DATA
from tests.kit import programs
from tests.security.strangers import links, run_folder, site
from tftrain.checkpoint import remote
from tftrain.config.convert import parse_place
from tftrain.config.run import RunConfig
from tftrain.data import mirror
from tftrain.data.records import RecordSet, write_records
from tftrain.files import addresses, complete_folder, durable, limits
from tftrain.files.addresses import Cache
from tftrain.files.errors import FormatError
from tftrain.files.run_lock import RunLock
from tftrain.formats import registry
from tftrain.observe.metrics import append
from tftrain.state import located

# Each is below a folder at the address, and would be elsewhere here.
NAMES = (
    *("../x", "a/../../x", "/x", "a//x", "./x", "a/./x", "..", "a/..", "a\\..\\x", "x\x1b", "x\n", "x\u202e"),
    "x\x9b",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_store_that_leads_out_is_refused(tmp_path, name):
    store = fsspec.filesystem("memory")
    store.store.clear()
    for each in ("config.json", name):
        store.store[f"/b/m/{each}"] = fsspec.implementations.memory.MemoryFile(store, f"/b/m/{each}", b"x")
    try:
        for fetch in (
            lambda: remote.local_copy("memory://b/m", Cache(str(tmp_path / "cache"))),
            lambda: remote.fetch_run("memory://b/m", tmp_path / "run"),
            lambda: addresses.listing("memory://b/m"),
        ):
            with pytest.raises(OSError, match=r"expected a name (inside a folder|of printable characters)"):
                fetch()
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    finally:
        store.store.clear()


@pytest.mark.parametrize("kind", ["page", "zip"])
def test_a_model_at_an_address_writes_no_file_outside_the_cache(tmp_path, monkeypatch, kind):
    victim = tmp_path / "home/.bashrc"
    victim.parent.mkdir()
    victim.write_text("mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    up = "../" * 12 + str(victim).lstrip("/")
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("m/config.json", "{}")
        archive.writestr(f"m/{up}", "theirs")

    def page(path):
        return links("config.json", up) if path == "/m/" else b"theirs"

    with site(page) as (address, _):
        source = f"{address}/m/" if kind == "page" else f"zip://m::file://{tmp_path}/m.zip"
        args = f"--from=hf:{source} --to=tftrain:{tmp_path}/out"
        code, lines = programs.outcome("convert", args, 2, {})
    assert code == 2
    assert "expected a name inside a folder" in lines[0]
    assert victim.read_text() == "mine"


def test_a_link_in_the_folder_of_a_run_is_not_followed_by_what_is_fetched(tmp_path):
    """Another user of a shared folder could have planted it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/reports").symlink_to(tmp_path)
    pages, refused = {"/r/": links("reports/"), "/r/reports/": links("x")}, pytest.raises(OSError, match="leads out of")
    with site(pages) as (address, _), refused:
        remote.fetch_run(f"{address}/r/", tmp_path / "run")
    assert not (tmp_path / "x").exists()


def test_folders_without_end_and_files_larger_than_the_disk_are_refused(tmp_path, monkeypatch, quick):
    monkeypatch.setattr(limits, "MOST_FILES", 50)
    with site(lambda path: links("a/", "b/", "c/")) as (address, asked):
        with pytest.raises(OSError, match="more than 50 files and folders"):
            addresses.listing(f"{address}/m/")
        assert len(asked) < 60
    refused = pytest.raises(OSError, match="10000000000000000 bytes are more than the disk")
    with site({"/m/x": (10**16, b"x")}) as (address, _), refused:
        addresses.download(f"{address}/m/x", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("file", ["chat_template.jinja", "vocab.txt", "config.json", "model.safetensors"])
def test_a_link_out_of_a_model_is_not_copied_into_the_converted_one(tmp_path, file):
    model, secret = shutil.copytree(DATA / "hf_bert", tmp_path / "model"), tmp_path / "secret"
    if (model / file).exists():
        (model / file).rename(secret)
    else:
        secret.write_text("CANARY")
    (model / file).symlink_to("../secret")
    args = f"--from=hf:{model} --to=hf:{tmp_path}/out"
    code, lines = programs.outcome("convert", args, 1, {})
    assert code == 1
    assert f"{model / file}: a symbolic link leads out of {model}; put the file itself there" in lines[0]
    assert not (tmp_path / "out").exists()


def test_links_inside_a_folder_and_in_the_cache_of_the_hub_are_followed(tmp_path):
    inside = shutil.copytree(DATA / "hf_bert", tmp_path / "inside")
    (inside / "vocab.txt").rename(inside / "words")
    (inside / "vocab.txt").symlink_to("words")
    snapshot = shutil.copytree(DATA / "hf_bert", tmp_path / "hub/models--a--b/snapshots/123")
    blobs = tmp_path / "hub/models--a--b/blobs"
    blobs.mkdir()
    for path in snapshot.iterdir():
        path.rename(blobs / path.name)
        path.symlink_to(f"../../blobs/{path.name}")
    for folder in (inside, snapshot):
        assert registry.model_of(parse_place(f"hf:{folder}"))[1]
    (snapshot / "chat_template.jinja").symlink_to("../../../x")
    (tmp_path / "hub/x").touch()
    with pytest.raises(FormatError, match="leads out of"):
        registry.model_of(parse_place(f"hf:{snapshot}"))


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "..", "a\0b", "", 3])
def test_an_index_names_only_files_of_its_folder(tmp_path, name):
    model = shutil.copytree(DATA / "hf_bert", tmp_path / "model")
    (model / "model.safetensors").rename(tmp_path / "model.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(FormatError, match="weight_map does not name files of this folder"):
        registry.open_weights(parse_place(f"hf:{model}"))


@pytest.mark.parametrize("link", ["checkpoints", "tokenizer"])
def test_a_run_that_links_to_another_one_is_not_read_as_a_model(tmp_path, link):
    own, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "private")
    (other / "tokenizer").mkdir()
    if (own / link).exists():
        shutil.rmtree(own / link)
    (own / link).symlink_to(other / link)
    with pytest.raises(FormatError, match="leads out of"):
        registry.model_of(parse_place(f"tftrain:{own}"))


def test_data_on_a_disk_is_not_fetched_from_the_address_that_lies_beside_it(tmp_path):
    path = str(tmp_path / "train.tfrecord")
    write_records(path, [b"one"])
    with site({}) as (address, asked):
        for name in (".address", ".blocks"):
            (tmp_path / f"train.tfrecord{name}").write_text(f"{address}/x" if name == ".address" else "\0")
        assert RecordSet([path]).read(0) == b"one"
        assert asked == []
    assert mirror.address_of(path) is None


def test_a_link_at_the_name_of_an_unfinished_file_is_not_written_through(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".x.new").symlink_to("victim")
    durable.write(tmp_path / "x", b"content")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "x").read_bytes() == b"content"
    assert os.listdir(tmp_path).count(".x.new") == 0


def test_a_folder_that_every_user_may_write_to_gives_a_warning(tmp_path, caplog):
    for mode in (0o755, 0o777):
        tmp_path.chmod(mode)
        assert located.output_problems(RunConfig(output_dir=str(tmp_path))) == []
        assert ("every user of this host may write there" in caplog.text) == (mode == 0o777)


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", "run.lock", ".fetch.lock"])
def test_a_link_in_the_folder_of_a_run_is_not_written_through(tmp_path, name):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / name).symlink_to("victim")
    write = {
        "run.lock": lambda: RunLock(tmp_path).acquire(),
        ".fetch.lock": lambda: complete_folder.locked(tmp_path / "fetch").__enter__(),
    }
    with contextlib.suppress(OSError):
        write.get(name, lambda: append(tmp_path / name, "theirs"))()
    assert (tmp_path / "victim").read_text() == "mine"
