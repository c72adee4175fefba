"""Prepared data at an address gives the records and batches of the folder, fetched once, whatever the server does."""

import json
import os
import shutil
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.kit.data_sets import open_source, opened_data
from tftrain.config.data import DataConfig
from tftrain.data import mirror, pipeline
from tftrain.data.manifest import read_manifest, write_manifest
from tftrain.data.mirror import local_folder
from tftrain.data.pipeline import train_batches
from tftrain.data.records import RecordSet
from tftrain.files.addresses import Cache
from tftrain.files.errors import DataError
from tftrain.formats import run_folder

ADDRESS = "s3://bucket/prepared"
BLOCK = 8192  # Smaller than a shard, so that shards have several.
EVERYTHING = 1 << 40
FAULTS = [503, "reset", "cut"]


@pytest.fixture(scope="module")
def small(prepared_causal, tmp_path_factory):
    """The data set of a decoder, whose batches need no masks, with two training shards: the folder's path."""
    folder = tmp_path_factory.mktemp("small") / "data"
    shutil.copytree(prepared_causal, folder)
    manifest = read_manifest(str(folder))
    for shard in manifest.splits["train"][2:]:
        for name in (shard.file, f"{shard.file}.index"):
            (folder / name).unlink()
    write_manifest(msgspec.structs.replace(manifest, splits={**manifest.splits, "train": manifest.splits["train"][:2]}))
    return str(folder)


@pytest.fixture
def server(s3, small, monkeypatch):
    """The proxy's handler and a file system of a bucket with the data; requests are counted from here on."""
    handler, system = s3
    monkeypatch.setattr(mirror, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(pipeline, "AHEAD", 3)
    local_folder.cache_clear()
    if not system.exists("bucket/prepared"):
        for path in Path(small).iterdir():
            system.put_file(str(path), f"bucket/prepared/{path.name}")
    handler.requests.clear()
    yield handler, system
    local_folder.cache_clear()


@pytest.fixture
def spoilable(server):
    """The same, for a test that changes the bucket."""
    handler, system = server
    yield server
    handler.faults.clear()
    system.rm("bucket/prepared", recursive=True)


def paths(folder):
    """Returns the shards of both splits, those of training first."""
    manifest = read_manifest(folder)
    return [manifest.path(shard.file) for split in ("train", "eval") for shard in manifest.splits[split]]


def records(folder):
    found = RecordSet(paths(folder))
    return [payload for _, payload in found.read_all(range(len(found)))]


def shard_requests(handler, folder):
    names = [os.path.basename(path) for path in paths(folder)]
    return [path for command, path in handler.requests if command == "GET" and path.rpartition("/")[2] in names]


@pytest.mark.parametrize("limit", [EVERYTHING, 0])
def test_records_are_those_of_the_folder(server, small, tmp_path, limit):
    handler, _ = server
    assert records(local_folder(ADDRESS, Cache(str(tmp_path), limit))) == records(small)
    expected = sum(-(-os.path.getsize(path) // BLOCK) for path in paths(small)) if limit else len(records(small))
    assert len(shard_requests(handler, small)) == expected
    if limit:  # A second time, nothing is fetched.
        assert records(local_folder(ADDRESS, Cache(str(tmp_path), limit))) == records(small)
        assert len(shard_requests(handler, small)) == expected


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("limit", [EVERYTHING, pytest.param(0, marks=pytest.mark.nightly)])
def test_faults_are_retried(server, small, tmp_path, fault, limit):
    handler, _ = server
    handler.faults[:] = [fault] * 2
    folder = local_folder(ADDRESS, Cache(str(tmp_path), limit))
    assert not handler.faults
    handler.faults[:] = [None, fault, fault, None, fault]
    assert records(folder) == records(small)
    assert not handler.faults


def test_slow_requests_travel_at_once(server, tmp_path, monkeypatch):
    handler, _ = server
    handler.seconds = 0.05
    found = RecordSet(paths(local_folder(ADDRESS, Cache(str(tmp_path), 0))))
    running, most, read = [], [], mirror.addresses.read

    def counted(*args):
        running.append(None)
        most.append(len(running))
        try:
            return read(*args)
        finally:
            running.pop()

    monkeypatch.setattr(mirror.addresses, "read", counted)
    found.fetch(range(40))
    assert max(most) > 8


def test_a_server_that_does_not_recover_is_named(server, tmp_path):
    handler, _ = server
    found = RecordSet(paths(local_folder(ADDRESS, Cache(str(tmp_path), EVERYTHING))))
    handler.faults[:] = ["reset"] * 10000
    with pytest.raises(DataError, match=rf"^{ADDRESS}/\S+: byte 0: .*\(tried 4 times\)"):
        found.read(0)
    handler.faults[:] = ["denied"] * 10000
    with pytest.raises(DataError, match=rf"^{ADDRESS}/\S+: byte 0: Forbidden$"):
        found.read(0)
    handler.faults.clear()
    found.read(0)


def test_ranks_fetch_a_block_once(server, small, tmp_path):
    handler, _ = server
    folder = local_folder(ADDRESS, Cache(str(tmp_path), EVERYTHING))
    # Locks are those of open files, so that threads stand for processes.
    threads = [threading.Thread(target=records, args=[folder]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests = shard_requests(handler, small)
    assert len(requests) == sum(-(-os.path.getsize(path) // BLOCK) for path in paths(small))


def test_what_a_crash_has_lost_is_fetched_again(server, small, tmp_path):
    folder = local_folder(ADDRESS, Cache(str(tmp_path), EVERYTHING))
    assert records(folder) == records(small)
    with open(paths(folder)[0], "r+b") as file:
        file.write(bytes(BLOCK))
    assert records(folder) == records(small)


def test_a_damaged_shard_is_named(spoilable, tmp_path):
    _, system = spoilable
    folder = local_folder(ADDRESS, Cache(str(tmp_path), EVERYTHING))
    name = f"bucket/prepared/{os.path.basename(paths(folder)[0])}"
    content = system.cat_file(name)
    system.pipe_file(name, content[:20] + b"\0\0" + content[22:])
    with pytest.raises(DataError, match=rf"^s3://{name}: byte 0: the record's checksum does not fit"):
        RecordSet(paths(folder)).read(0)


@pytest.mark.parametrize(
    ("suffix", "is_longer", "message"),
    [
        ("", True, r"the shard has \d+ bytes, s3://bucket/prepared/manifest.json says \d+; restore it"),
        ("", False, "no such file; expected the address of a folder"),
        (".index", False, "no such file; expected the address of a folder"),
    ],
)
def test_a_shard_that_is_not_right_is_named(spoilable, small, tmp_path, suffix, is_longer, message):
    _, system = spoilable
    name = f"bucket/prepared/{os.path.basename(paths(small)[0])}{suffix}"
    system.pipe_file(name, system.cat_file(name) + b"x") if is_longer else system.rm_file(name)
    system.invalidate_cache()
    with pytest.raises(DataError, match=rf"^s3://{name}: {message}"):
        records(local_folder(ADDRESS, Cache(str(tmp_path), EVERYTHING)))
    # Nothing is left behind by a mirror that could not be made.
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(("flag", "value"), [("data_dir", "s3://bucket/none"), ("mix", "a=1:s3://bucket/none")])
def test_an_address_that_can_not_be_read_is_a_problem_of_its_flag(server, tmp_path, flag, value):
    (problem,) = opened_data(DataConfig(**{flag: value}, cache_dir=str(tmp_path))).problems("train", 0)
    assert str(problem).startswith(f"--{flag}={value}: s3://bucket/none/manifest.json: no such file; expected the addr")


def test_names_that_lead_out_of_the_folder_are_refused(spoilable, tmp_path):
    _, system = spoilable
    content = json.loads(system.cat_file("bucket/prepared/manifest.json"))
    content["splits"]["train"][0]["file"] = "../../outside"
    system.pipe_file("bucket/prepared/manifest.json", json.dumps(content).encode())
    with pytest.raises(DataError, match="expected a name inside"):
        local_folder(ADDRESS, Cache(str(tmp_path), EVERYTHING))


def test_shards_beyond_the_cache_have_no_blocks(server, small, tmp_path, capsys):
    first = os.path.getsize(paths(small)[0])
    folder = local_folder(ADDRESS, Cache(str(tmp_path), first))
    assert [os.path.exists(f"{path}.blocks") for path in paths(folder)][:2] == [True, False]
    assert records(folder) == records(small)
    assert f"shards of {folder} have no place in the cache" in capsys.readouterr().out
    # What other data has taken counts, and a larger cache takes more.
    Path(tmp_path, "data/other").mkdir()
    for name in ("x", "x.blocks"):
        Path(tmp_path, "data/other", name).touch()
    os.truncate(tmp_path / "data/other/x", 1 << 30)
    local_folder(ADDRESS, Cache(str(tmp_path), EVERYTHING // 1024))
    assert not os.path.exists(f"{paths(folder)[1]}.blocks")
    local_folder(ADDRESS, Cache(str(tmp_path), EVERYTHING))
    assert all(os.path.exists(f"{path}.blocks") for path in paths(folder))
    assert records(folder) == records(small)


def same(one, other, batches):
    for left, right in zip(one.take(batches), other.take(batches), strict=True):
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])


@pytest.mark.parametrize("gb", [0.0, 1.0])
def test_batches_are_those_of_the_folder_and_a_resume_fetches_only_its_own(server, small, tmp_path, gb):
    handler, _ = server
    here, there = DataConfig(data_dir=small), DataConfig(data_dir=ADDRESS, cache_dir=str(tmp_path), cache_gb=gb)
    assert opened_data(here).identity == opened_data(there).identity
    sources = [open_source(data, "train", 300, 1, "causal") for data in (here, there)]
    one, other = (
        train_batches(source, data, 1, 24, 8, 2, 6) for source, data in zip(sources, (here, there), strict=True)
    )
    same(one, other, 5)
    if not gb:
        # Five batches and those that were read ahead, of four samples each.
        assert 20 <= len(shard_requests(handler, small)) <= 4 * (5 + 4 * pipeline.AHEAD)


def test_a_mixture_has_sources_at_addresses(server, small, tmp_path):
    shutil.copytree(small, tmp_path / "copy")
    here = DataConfig(mix=f"a=0.5:{tmp_path / 'copy'},b=0.5:{small}")
    there = DataConfig(mix=f"a=0.5:{tmp_path / 'copy'},b=0.5:{ADDRESS}", cache_dir=str(tmp_path))
    assert [each.path for each, _ in opened_data(there).manifest.sources] == [str(tmp_path / "copy"), ADDRESS]
    sources = [open_source(data, "train", 300, 1, "causal") for data in (here, there)]
    same(*(train_batches(source, here, 1, 0, 8, 0, 8) for source in sources), 4)


def test_the_tokenizer_needs_no_shard(server, small, tmp_path, monkeypatch):
    handler, _ = server
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run_folder.tokenizer_of(ADDRESS) == run_folder.tokenizer_of(small)
    assert not shard_requests(handler, small)
