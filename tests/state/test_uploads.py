"""A run's folder at an address: whatever the server does, what is complete there is whole, and nothing else counts."""

import errno
import os
import shutil
import zipfile
from pathlib import PurePosixPath

import numpy as np
import pytest

from tests.checkpoint import states
from tests.kit.waiting import wait_until
from tests.state import test_memory_checkpoints
from tftrain.checkpoint import folder, memory_slot, remote, scores
from tftrain.checkpoint.errors import CheckpointError, FailedSavesError
from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.files import addresses
from tftrain.files.addresses import Cache
from tftrain.host.environment import host_name
from tftrain.parallel.mesh import Mesh
from tftrain.state import resume
from tftrain.state.uploads import Uploads

SECONDS = 30
ADDRESS = "s3://bucket/run"
NAMES = ["step_00000001", "step_00000002", "step_00000003"]


@pytest.fixture
def server(s3):
    """The proxy's handler, whose faults are those of PUT, and a file system of a bucket without a run."""
    handler, system = s3
    if system.exists("bucket/run"):
        system.rm("bucket/run", recursive=True)
    handler.faulty, handler.faults[:] = ("PUT",), []
    handler.requests.clear()
    return handler, system


def run(path, *steps, keep_last=3):
    """Makes the folder of a run with checkpoints of these steps."""
    (path / "tokenizer").mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "metrics.jsonl", "tokenizer/vocab.txt", "run.lock", ".hidden"):
        (path / name).write_text(f"{name} {steps}")
    for step in steps:
        # There are two shards, as there are two sizes of elements.
        tensors = {"master/a": np.full(5, step, np.float32), "progress/step": np.array(step)}
        states.saved(path, tensors, step, keep_last=keep_last)
    return path


def uploads(path, step=0, keep_last=3):
    """Returns the uploads of a run's folder, which have begun."""
    made = Uploads(resumed(path)[1], SECONDS, Mesh())
    made.begin(step, lambda complete: folder.superseded(complete, keep_last, 0))
    return made


def upload(path, step=0, keep_last=3):
    """Does one pass."""
    with uploads(path, step, keep_last):
        pass


def names_there():
    return [path.name for path in remote.checkpoints(addresses.listing(ADDRESS))]


def whole_there(tmp_path, step):
    """The step of the newest checkpoint there, as another host reads it."""
    other = tmp_path / f"other_{step}"
    remote.fetch_run(ADDRESS, other)
    (path,) = folder.find(other)
    assert states.stored(path)["progress/step"] == step
    return other


def test_the_folder_comes_whole_and_the_manifest_last(server, tmp_path, capsys):
    handler, _ = server
    upload(run(tmp_path / "run", 1, 2))
    assert names_there() == NAMES[:2]
    reports = {name for name in addresses.listing(ADDRESS) if "/" not in name}
    assert reports == {".owner", "config.json", "metrics.jsonl"}
    puts = [path for command, path in handler.requests if command == "PUT" and "step_" in path]
    assert [path.rpartition("/")[2] for path in puts].index("manifest.json") == len(puts) // 2 - 1
    other = whole_there(tmp_path, 2)
    for name in ("config.json", "tokenizer/vocab.txt"):
        assert (other / name).read_text() == (tmp_path / "run" / name).read_text()
    assert f"uploaded {ADDRESS}/checkpoints/step_00000002\n" in capsys.readouterr().out


@pytest.mark.parametrize("fault", [503, "reset", "lost"])
def test_faults_are_retried(server, tmp_path, fault):
    handler, _ = server
    handler.faults[:] = [fault, None, fault, fault, None, None, None, fault]
    upload(run(tmp_path / "run", 1))
    assert not handler.faults
    whole_there(tmp_path, 1)


@pytest.mark.parametrize(("fault", "after"), [(503, 0), ("reset", 4), ("denied", 4), ("lost", 5), ("reset", 5)])
def test_an_upload_that_fails_is_named_shows_nothing_and_is_done_later(server, tmp_path, fault, after, capsys):
    handler, _ = server
    path = run(tmp_path / "run", 1)
    handler.faults[:] = [None] * after + [fault] * 10000
    with uploads(path) as made:
        made.request()
        wait_until(lambda: made.problem, SECONDS)
        tried = "Forbidden" if fault == "denied" else "(tried 4 times)"
        assert made.problem.startswith(f"{ADDRESS}/")
        assert made.problem.endswith(tried)
        warning = f"the upload has failed: {made.problem}; the next checkpoint brings another try\n"
        assert warning in capsys.readouterr().err
        # The server may have got the manifest of a whole checkpoint although its answer did not come.
        is_whole = (fault, after) == ("reset", 5)
        assert names_there() == (NAMES[:1] if is_whole else [])
        remote.fetch_run(ADDRESS, tmp_path / "other")
        assert len(folder.find(tmp_path / "other")) == is_whole
        handler.faults.clear()
    whole_there(tmp_path, 1)


def test_a_last_upload_that_fails_ends_the_run_with_an_error(server, tmp_path):
    handler, _ = server
    path = run(tmp_path / "run", 1)
    handler.faults[:] = [503] * 10000
    message = (
        rf"^--output_dir={ADDRESS}: the last upload has failed: {ADDRESS}/\S+: .* \(tried 4 times\); {path} has all: "
    )
    with pytest.raises(FailedSavesError, match=message):
        upload(path)
    # An error of the run itself is not hidden.
    with pytest.raises(KeyError), uploads(path):
        raise KeyError


def test_old_ones_are_removed_there_as_here(server, tmp_path):
    path = run(tmp_path / "run", 1, 2)
    upload(path)
    run(path, 3, keep_last=2)
    upload(path, step=2, keep_last=2)
    assert names_there() == [each.name for each in folder.find(path)] == NAMES[1:]
    assert not [name for name in addresses.listing(ADDRESS) if NAMES[0] in name]


def test_what_a_killed_upload_left_is_no_checkpoint_and_goes(server, tmp_path):
    _, system = server
    path = run(tmp_path / "run", 2)
    system.pipe_file(f"bucket/run/checkpoints/{NAMES[0]}/shard_00000_000.safetensors", b"half")
    system.pipe_file(f"bucket/run/checkpoints/{NAMES[1]}/left.safetensors", b"half")
    assert names_there() == []
    upload(path)
    assert not [name for name in addresses.listing(ADDRESS) if NAMES[0] in name or "left" in name]
    whole_there(tmp_path, 2)


def test_only_what_has_changed_is_uploaded_again(server, tmp_path):
    handler, _ = server
    path = run(tmp_path / "run", 1)
    with uploads(path) as made:
        made.request()
        wait_until(names_there, SECONDS)
        handler.requests.clear()
        (path / "metrics.jsonl").write_text("more")
    assert [path.rpartition("/")[2] for command, path in handler.requests if command == "PUT"] == ["metrics.jsonl"]


def test_later_steps_are_set_aside_there_too(server, tmp_path):
    upload(run(tmp_path / "first", 1, 2, 3))
    path = run(tmp_path / "second", 1)
    upload(path, step=1)
    assert names_there() == NAMES[:1]
    aside = [PurePosixPath(name).parts for name in addresses.listing(ADDRESS) if "/set_aside_" in name]
    assert {parts[2] for parts in aside} == set(NAMES[1:])
    assert {parts[3] for parts in aside} == {"manifest.json", "shard_00000_000.safetensors"}


def test_a_run_that_starts_over_sets_aside_there_what_the_old_one_reported(server, tmp_path):
    first, second = run(tmp_path / "first", 1), run(tmp_path / "second")
    for name in ("best.json", "tensorboard/events", "mine.txt"):
        (first / name).parent.mkdir(exist_ok=True)
        (first / name).write_text("first")
    upload(first)
    upload(second, step=-1)
    there = addresses.listing(ADDRESS)
    aside = {"/".join(PurePosixPath(name).parts[2:]) for name in there if "/set_aside_" in name}
    shard, manifest = (f"{NAMES[0]}/{name}" for name in ("shard_00000_000.safetensors", "manifest.json"))
    assert aside == {"best.json", "tensorboard/events", "metrics.jsonl", shard, manifest}
    reports = {name for name in there if not name.startswith("checkpoints/")}
    assert reports == {".owner", "config.json", "metrics.jsonl", "tokenizer/vocab.txt", "mine.txt"}
    assert addresses.read_small(f"{ADDRESS}/metrics.jsonl", 99) == (second / "metrics.jsonl").read_bytes()


def test_a_checkpoint_of_the_same_step_of_another_run_is_not_gone_on_from(server, tmp_path):
    upload(run(tmp_path / "newer", 1, 2))
    path = run(tmp_path / "older", 1)
    states.saved(path, {"master/a": np.zeros(5, np.float32), "progress/step": np.array(9)}, 2)
    (path / "tensorboard").mkdir()
    for _ in range(2):
        remote.fetch_run(ADDRESS, path)
        (newest,) = folder.find(path)
        assert newest.name == NAMES[1]
        assert states.stored(newest)["progress/step"] == 2
        assert sorted(each.name for each in path.glob("checkpoints/*/step_*")) == NAMES[:2]
    assert (path / "metrics.jsonl").read_text() == "metrics.jsonl (1, 2)"
    assert (path / "checkpoints/set_aside_1/tensorboard").is_dir()  # Its curves would become the other run's.


def test_objects_that_mark_folders_are_no_files(server, tmp_path):
    upload(run(tmp_path / "run", 1))
    server[1].pipe({f"bucket/run/{name}": b"" for name in ("", "checkpoints/", "tokenizer/")})
    whole_there(tmp_path, 1)


def test_a_run_that_goes_back_sets_aside_there_what_it_has_set_aside_here(server, tmp_path):
    path = run(tmp_path / "run", 1, 2, 3)
    with uploads(path) as made:
        made.request()
        wait_until(lambda: names_there() == NAMES, SECONDS)
        folder.set_aside(path, 1)
        made.go_back(1)
    assert names_there() == NAMES[:1]


def test_a_newer_checkpoint_here_stays(server, tmp_path):
    upload(run(tmp_path / "first", 1, 2))
    path = run(tmp_path / "second", 3)
    remote.fetch_run(ADDRESS, path)
    assert [each.name for each in folder.find(path)] == NAMES[2:]
    assert (path / "config.json").read_text() == "config.json (3,)"
    path = run(tmp_path / "third", 1)
    remote.fetch_run(ADDRESS, path)
    assert [each.name for each in folder.find(path)] == NAMES[:2]
    assert (path / "config.json").read_text() == "config.json (1, 2)"


def test_copies_in_memory_do_not_count_after_another_run_at_the_address(server, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_slot, "MEMORY", tmp_path)
    path = run(tmp_path / "first", 1)
    upload(path)
    copies = test_memory_checkpoints.Run(path).begin()
    copies.save(3)
    session = path / "checkpoints" / memory_slot.SESSION
    remote.fetch_run(ADDRESS, path)
    assert session.exists(), "there is nothing newer"
    upload(run(tmp_path / "second", 1, 2))
    remote.fetch_run(ADDRESS, path)
    assert [each.name for each in copies.in_memory.among(folder.find(path))] == NAMES[1::-1]


def test_a_damaged_checkpoint_is_named_and_an_older_one_fetched(server, tmp_path, capsys):
    _, system = server
    upload(run(tmp_path / "run", 1, 2))
    for number, name in reversed(list(enumerate(NAMES[:2]))):
        place = f"bucket/run/checkpoints/{name}/shard_00000_000.safetensors"
        content = system.cat_file(place)
        system.pipe_file(place, content[:-1] + bytes([content[-1] ^ 1]))
        if number:
            whole_there(tmp_path, 1)
            assert f"s3://bucket/run/checkpoints/{name}: this checkpoint can't be used" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="none of its 2 checkpoints can be used; --resume=none starts over"):
        remote.fetch_run(ADDRESS, tmp_path / "none")
    assert not any((tmp_path / "none/checkpoints").iterdir())


def test_the_run_that_began_last_has_the_address(server, tmp_path, capsys):
    older, newer = run(tmp_path / "older", 1, 2), run(tmp_path / "newer", 1)
    made = uploads(older)
    made.request()
    wait_until(lambda: len(names_there()) == 2, SECONDS)
    upload(newer, step=1)
    assert names_there() == NAMES[:1]
    made.request()
    wait_until(lambda: made.problem, SECONDS)
    assert "the next checkpoint brings another try" in capsys.readouterr().err
    message = f"the last upload has failed: {ADDRESS}: another run has begun there, on {host_name()}; {older} has all"
    with pytest.raises(FailedSavesError, match=message), made:
        pass
    assert names_there() == NAMES[:1]
    upload(older)  # One that is started again does.
    assert names_there() == NAMES[:2]


def resumed(path):
    config = changed(TrainConfig(), {"output_dir": ADDRESS, "local_dir": str(path)})
    return config.checkpoint, config.run


def test_a_checkpoint_that_is_damaged_here_is_fetched(server, tmp_path, capsys):
    path = run(tmp_path / "run", 1, 2)
    upload(path)
    for name in NAMES[:2]:
        shard = path / "checkpoints" / name / "shard_00000_000.safetensors"
        content = shard.read_bytes()
        states.flip(shard)
    reader = resume.Search(*resumed(path), Mesh(), dict).choose()
    assert reader.path.name == NAMES[1]
    assert shard.read_bytes() == content
    assert f"{NAMES[1]}/shard_00000_000.safetensors" in capsys.readouterr().err
    assert not any(NAMES[0] in file for file in gets(server[0]))
    assert [each.name for each in (path / "checkpoints").iterdir() if each.name.startswith(".")] == []


def test_a_checkpoint_that_is_damaged_here_and_there_is_left_and_the_next_older_one_taken(server, tmp_path):
    _, system = server
    path = run(tmp_path / "run", 1, 2)
    shard = path / "checkpoints" / NAMES[1] / "shard_00000_000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    upload(path)
    assert resume.Search(*resumed(path), Mesh(), dict).choose().path.name == NAMES[0]
    assert shard.read_bytes()[-1:] == b"?"
    system.rm("bucket/run", recursive=True)
    assert resume.Search(*resumed(path), Mesh(), dict).choose().path.name == NAMES[0]


@pytest.mark.parametrize(("margin", "expected"), [(0, 3), (1, 2), (9, 1)])
def test_a_rollback_on_another_host_reaches_what_is_only_at_the_address(server, tmp_path, margin, expected):
    upload(run(tmp_path / "run", 1, 2, 3))
    remote.fetch_run(ADDRESS, tmp_path / "other")
    reader = resume.Search(*resumed(tmp_path / "other"), Mesh(), dict).before(4, margin)
    assert reader.path == tmp_path / "other/checkpoints" / NAMES[expected - 1]


def test_a_rollback_uses_what_is_here_if_the_address_can_not_be_read(server, tmp_path, capsys, monkeypatch):
    def fails(_):
        raise OSError(errno.EIO, "the server is down")

    upload(run(tmp_path / "run", 1, 2, 3))
    remote.fetch_run(ADDRESS, tmp_path / "other")
    monkeypatch.setattr(resume, "listing", fails)
    assert resume.Search(*resumed(tmp_path / "other"), Mesh(), dict).before(4, 2).path.name == NAMES[2]
    assert "older checkpoints there can't be used: the server is down" in capsys.readouterr().err


def gets(handler):
    return [path for command, path in handler.requests if command == "GET" and "list-type" not in path]


def test_a_copy_of_a_run_has_what_a_model_needs_and_is_made_once(server, tmp_path):
    handler, system = server
    path = run(tmp_path / "run", 1, 2, 3)
    scores.write(path, scores.Scores("accuracy", [scores.Score(1, 0.5), scores.Score(3, 0.4)]))
    upload(path)
    remote.fetch_run(ADDRESS, tmp_path / "best", with_best=True)
    assert [each.name for each in folder.find(tmp_path / "best")] == [NAMES[0], NAMES[2]]
    cache = Cache(str(tmp_path / "cache"))
    copy = remote.local_copy(ADDRESS, cache)
    assert [each.name for each in folder.find(copy)] == [NAMES[0], NAMES[2]]
    assert scores.checkpoint(copy).name == NAMES[0]
    assert sorted(os.listdir(copy)) == ["best.json", "checkpoints", "tokenizer"]
    assert [each.name for each in folder.find(remote.local_copy(ADDRESS, cache, last=2))] == NAMES
    one = remote.local_copy(f"{ADDRESS}/checkpoints/{NAMES[1]}/", cache)
    assert (one.name, one.parents[1] / "tokenizer/vocab.txt") == (NAMES[1], one.parents[1] / "tokenizer/vocab.txt")
    assert (one.parents[1] / "tokenizer/vocab.txt").is_file()
    handler.requests.clear()
    assert remote.local_copy(f"{ADDRESS}/checkpoints/{NAMES[1]}", cache) == one
    assert not gets(handler)
    system.pipe_file("bucket/run/tokenizer/vocab.txt", b"another")
    again = remote.local_copy(f"{ADDRESS}/checkpoints/{NAMES[1]}", cache)
    assert (again.parents[1] / "tokenizer/vocab.txt").read_text() == "another"


def test_a_copy_of_anything_else_has_all_files(server, tmp_path):
    _, system = server
    system.pipe({"bucket/run/config.json": b"{}", "bucket/run/sub/model.bin": b"weights"})
    copy = remote.local_copy(ADDRESS, Cache(str(tmp_path)))
    assert (copy / "sub/model.bin").read_bytes() == b"weights"
    shutil.rmtree(tmp_path / "models")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        remote.local_copy("s3://bucket/none", Cache(str(tmp_path)))


@pytest.mark.parametrize("fault", [503, "reset", "cut"])
def test_faults_while_fetching_are_retried_and_leave_nothing_half(server, tmp_path, fault):
    handler, _ = server
    upload(run(tmp_path / "run", 1))
    handler.faulty, handler.faults[:] = ("GET",), [fault, None, fault, fault]
    whole_there(tmp_path, 1)
    handler.faults[:] = [None, None] + [fault] * 10000
    with pytest.raises(OSError, match=r"\(tried 4 times\)") as raised:
        remote.fetch_run(ADDRESS, tmp_path / "half")
    assert raised.value.filename.startswith(ADDRESS)
    assert folder.find(tmp_path / "half") == []


def test_an_address_of_an_archive_at_an_address_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("a.txt", "hello")
    folder = f"zip://::file://{tmp_path}/b.zip"
    assert addresses.open_file(addresses.join(folder, "a.txt")).read() == b"hello"
    assert addresses.join(f"zip://a/::file://{tmp_path}/b.zip", "b", "c") == f"zip://a/b/c::file://{tmp_path}/b.zip"
