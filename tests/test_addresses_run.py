"""A run with data and folder at addresses is the run on a disk, also on another host, and for all programs."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint import states
from tests.kit import runs
from tests.kit.ranks import run_ranks
from tests.kit.runs import checked, losses
from tftrain import convert, launch, predict
from tftrain.checkpoint import folder, remote, scores
from tftrain.checkpoint.scores import Score, Scores
from tftrain.config.fields import ConfigError
from tftrain.data.mirror import local_folder
from tftrain.files import addresses
from tftrain.host.exit_codes import ExitCode, RunError
from tftrain.launching import job

pytestmark = pytest.mark.slow
RUN, DATA = "s3://bucket/runs/x", "s3://bucket/data"
SIZES = (
    *("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--learning_rate=0.01", "--log_every=1"),
    *("--eval_examples=16", "--global_batch_size=8", "--checkpoint_every=2", "--schedule=constant"),
    "--warmup_steps=1",
)


@pytest.fixture
def server(s3, prepared, tmp_path, monkeypatch):
    handler, system = s3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    local_folder.cache_clear()
    if system.exists("bucket/runs"):
        system.rm("bucket/runs", recursive=True)
    for path in Path(prepared).iterdir():
        system.put_file(str(path), f"bucket/data/{path.name}")
    yield handler, system
    local_folder.cache_clear()


def configured(*flags):
    return checked(*flags, base=())


def train(*flags):
    return runs.train(configured(*flags))


@pytest.fixture(scope="module")
def local(prepared, tmp_path_factory):
    """Six steps on a disk."""
    path = tmp_path_factory.mktemp("local") / "run"
    train(*SIZES, f"--data_dir={prepared}", f"--output_dir={path}", "--max_steps=6")
    return path


@pytest.mark.nightly
def test_a_run_goes_on_on_another_host_and_serves_all_programs(server, local, tmp_path, capsys):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    train(*SIZES, f"--data_dir={DATA}", f"--output_dir={RUN}", f"--local_dir={first}", "--max_steps=4")
    assert losses(first) == losses(local)[:4]
    shutil.rmtree(first)
    shutil.rmtree(tmp_path / "cache")
    local_folder.cache_clear()
    # The flags come from the checkpoint, which comes from the address, as does the data.
    train(f"--output_dir={RUN}", f"--local_dir={second}", "--max_steps=6", "--warmup_steps=1")
    assert losses(second) == losses(local)
    there = remote.checkpoints(addresses.listing(RUN))
    assert [path.name for path in there] == [f"step_0000000{step}" for step in (2, 4, 6)]
    assert {"config.json", "metrics.jsonl", "log.txt"} < addresses.listing(RUN).keys()
    capsys.readouterr()
    runs.evaluate(configured("--mode=evaluate", f"--output_dir={RUN}", f"--local_dir={third}"))
    assert "(step 6)" in capsys.readouterr().out
    one = configured("--mode=evaluate", f"--output_dir={third}", f"--resume={RUN}/checkpoints/step_00000004")
    runs.evaluate(one)
    assert "(step 4)" in capsys.readouterr().out
    assert predict.main(["predict", f"--output_dir={RUN}", "a [MASK] b"]) == 0
    step = f"tftrain:{RUN}/checkpoints/step_00000002"
    assert predict.main(["predict", f"--init_checkpoint={step}", "a [MASK] b"]) == 0
    assert convert.main(["convert", f"--from=tftrain:{RUN}", "--average_last=3", f"--to=hf:{tmp_path / 'hf'}"]) == 0
    assert "the mean of the checkpoints step_00000002, step_00000004, step_00000006" in capsys.readouterr().out
    initial = configured(f"--init_checkpoint={step}", f"--data_dir={DATA}", f"--output_dir={tmp_path / 'new'}")
    assert initial.model.hidden_size == 32


def test_a_run_that_can_not_upload_trains_to_its_end_and_says_so(server, tmp_path, capsys, monkeypatch):
    handler, _ = server
    config = configured(*SIZES, f"--data_dir={DATA}", f"--output_dir={RUN}", "--max_steps=4", "--eval_every=-1")
    handler.faulty, handler.faults[:] = ("PUT",), [503] * 100000
    with pytest.raises(RunError, match=f"^--output_dir={RUN}: the last upload has failed: {RUN}/") as raised:
        runs.train(config)
    assert raised.value.exit_code == ExitCode.SAVES_FAILED
    assert config.run.folder.startswith(str(tmp_path / "cache"))
    assert [folder.order(path)[0] for path in folder.find(config.run.folder)] == [2, 4]
    assert remote.checkpoints(addresses.listing(RUN)) == []
    handler.faults.clear()
    scores.write(config.run.folder, Scores("accuracy", [Score(2, 0.9), Score(4, 0.8)]))
    assert train(f"--output_dir={RUN}", "--keep_last=1") == ExitCode.DONE
    assert "nothing to do" in capsys.readouterr().out
    assert [folder.order(path)[0] for path in remote.checkpoints(addresses.listing(RUN))] == [2, 4]
    # The launcher takes flags from the address as the run does, also on another host, and makes no folder of its name.
    shutil.rmtree(tmp_path / "cache")
    started = []
    monkeypatch.setattr(job, "run", lambda places, command, *_: started.append(command[3:]) or 0)
    monkeypatch.chdir(tmp_path)
    initial = [f"--init_checkpoint=tftrain:{RUN}", f"--data_dir={DATA}", f"--output_dir={tmp_path / 'new'}"]
    for given in ([f"--output_dir={RUN}"], initial):
        local_folder.cache_clear()
        assert launch.main(["tftrain.launch", "-np", "1", *given]) == 0
        assert started.pop() == given
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "new"]


def test_addresses_that_can_not_be_used_are_refused(server, tmp_path):
    handler, _ = server
    for flags, line in [
        (["--output_dir=s3://none/x"], "--output_dir=s3://none/x: "),
        ([f"--output_dir={RUN}", "--seeds=2"], "--seeds=2: expected 1, as --output_dir is an address"),
        ([f"--resume={RUN}/none", f"--output_dir={tmp_path}"], f"--resume={RUN}/none: no such folder; expected an"),
        ([f"--init_checkpoint=hf:{RUN}/none"], f"--init_checkpoint=hf:{RUN}/none: no such folder;"),
        (["--output_dir=az://b/x"], "--output_dir=az://b/x: "),
    ]:
        with pytest.raises(ConfigError) as raised:
            configured("--synthetic_data", "--vocab_size=90", *flags)
        assert any(str(problem).startswith(line) for problem in raised.value.problems), raised.value.problems
    handler.faulty, handler.faults[:] = ("GET", "HEAD"), ["denied"] * 100
    for mode in ("train", "evaluate"):  # The data is that of the run, which can't be asked.
        with pytest.raises(ConfigError) as raised:
            configured(f"--output_dir={RUN}", f"--mode={mode}")
        assert [str(problem) for problem in raised.value.problems] == [
            f"--output_dir={RUN}: Forbidden; expected an address that can be read"
        ]
    handler.faulty, handler.faults[:] = ("PUT",), ["denied"] * 100
    with pytest.raises(ConfigError, match="--output_dir=s3://bucket/runs/x: expected an address that can be written"):
        configured("--synthetic_data", "--vocab_size=90", f"--output_dir={RUN}")


@pytest.mark.multirank
@pytest.mark.nightly
def test_two_ranks_share_a_working_folder(server, local, tmp_path):
    flags = [*SIZES, f"--data_dir={DATA}", f"--output_dir={RUN}", "--max_steps=4", f"--local_dir={tmp_path / 'two'}"]
    run_ranks(2, ["-m", "tftrain.run", *flags])
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(local)[:4], rtol=1e-4)
    shutil.rmtree(tmp_path / "two")
    run_ranks(2, ["-m", "tftrain.run", f"--output_dir={RUN}", f"--local_dir={tmp_path / 'two'}", "--max_steps=6"])
    assert len(losses(tmp_path / "two")) == 6
    (path,) = folder.find(tmp_path / "two")[-1:]
    assert states.stored(path)["progress/step"] == 6
