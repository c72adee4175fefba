"""Nothing that only a stranger's run or model names is imported, opened or asked for."""

import contextlib
import json
import sys

import pytest

from tests.kit import programs
from tests.security.strangers import run_folder, site
from tftrain import launch, notebook, run
from tftrain.checkpoint import folder
from tftrain.config.fields import ConfigError
from tftrain.data.mirror import local_folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder, from which modules are imported, and a cache."""
    local_folder.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def stranger(here, **values):
    """The folder of a run with a module in it that says that it was imported."""
    path = run_folder(here / "stranger", **values)
    (path / "evil.py").write_text("import pathlib\npathlib.Path('imported').touch()\nT = dict\n")
    return path


def read(*given):
    return run.read(["tftrain.run", *given])


@pytest.mark.parametrize(
    "start",
    [
        lambda path, step: run.main(["run", "--mode=evaluate", f"--output_dir={path}"]),
        lambda path, step: run.main(["run", f"--output_dir={path}"]),
        lambda path, step: run.main(["run", f"--resume={step}", "--output_dir=new"]),
        lambda path, step: run.main(["run", f"--init_checkpoint=tftrain:{path}", "--train_file=x", "--output_dir=new"]),
        lambda path, step: launch.main(["launch", "-np", "1", f"--output_dir={path}"]),
        lambda path, step: notebook.train(output_dir=str(path)),
        lambda path, step: notebook.evaluate(output_dir=str(path)),
    ],
    ids=["evaluate", "train", "resume", "init_checkpoint", "launch", "notebook.train", "notebook.evaluate"],
)
def test_a_class_that_only_a_checkpoint_names_is_not_imported(here, capsys, start):
    path = stranger(here, task="stranger.evil:T", train_file="x")
    with pytest.raises((SystemExit, ConfigError)) as raised:
        start(path, folder.find(path)[0])
    text = capsys.readouterr().err + str(raised.value)
    assert "--task=stranger.evil:T: code that only " in text
    assert "give this flag if you trust it" in text
    assert not (here / "imported").exists()
    assert "stranger.evil" not in sys.modules


def test_a_class_that_the_command_line_names_is_taken(here):
    (here / "x.jsonl").write_text("{}")
    completed, problems = read(
        "--task=stranger.evil:T", f"--output_dir={stranger(here, task='stranger.evil:T', train_file='x.jsonl')}"
    )
    assert (completed.config.model.task, problems) == ("stranger.evil:T", [])


@pytest.mark.parametrize("name", ["task", "hooks", "output_dir", "flagfile", "cache_dir", "machine_file"])
def test_a_phase_of_a_checkpoint_has_no_other_flags_than_those_of_phases(here, name):
    phases = json.dumps([{"until_samples": 8, name: "stranger.evil:T", "synthetic_data": True}, {name: "x"}])
    path = stranger(here, phases=phases)
    with pytest.raises(ConfigError, match=f"a phase has no flag {name}"):
        run.checked(*read(f"--output_dir={path}"), run.Launch())
    assert not (here / "imported").exists()


def test_flags_that_a_command_or_a_host_has_never_come_from_a_checkpoint(here):
    theirs = {"machine_file": "/m", "cache_dir": "/c", "tokenizer_dir": "/t", "report_to": "wandb", "local_dir": "/l"}
    path = stranger(here, hooks=["stranger.evil:T"], init_checkpoint="hf:/x", change_on_resume="seed", **theirs)
    config = read(f"--output_dir={path}")[0].config
    values = {**vars(config.run), **vars(config.data), **vars(config.fine_tuning), **vars(config.log)}
    assert values["hooks"] == ()
    assert not {name for name, value in theirs.items() if values[name] == value}
    assert (values["init_checkpoint"], config.checkpoint.change_on_resume) == (None, "")


@pytest.mark.parametrize("name", ["mix", "phases", "param_groups"])
def test_the_text_of_a_flag_is_not_read_from_a_file_that_a_checkpoint_names(here, name):
    (here / "secret").write_text("CANARY\n")
    with pytest.raises(ConfigError, match=f"--{name}=.*secret: a file that only ") as raised:
        read(f"--output_dir={stranger(here, **{name: str(here / 'secret')})}")
    assert "CANARY" not in str(raised.value)
    phases = json.dumps([{"until_samples": 8, "synthetic_data": True}, {"mix": str(here / "secret")}])
    with pytest.raises(ConfigError, match="expected its sources") as raised:
        run.checked(*read(f"--output_dir={run_folder(here / 'other', phases=phases)}"), run.Launch())
    assert "CANARY" not in str(raised.value)


def values_of(address):
    """Flags of a checkpoint that name an address, each in its own way."""
    return {
        "data_dir": {"data_dir": f"{address}/d", "synthetic_data": False},
        "mix": {"mix": f"a=0.5:/x,b=0.5:{address}/d", "synthetic_data": False},
        "phases": {"phases": json.dumps([{"until_samples": 8, "synthetic_data": True}, {"data_dir": f"{address}/d"}])},
        "train_files": {"train_files": f"{address}/*", "synthetic_data": False},
        "train_file": {"train_file": f"{address}/x.tsv", "task": "classification"},
        "chat_template": {"chat_template": f"{address}/x"},
        "chain": {"data_dir": f"zip://a::{address}/d", "synthetic_data": False},
        "upper case": {"data_dir": f"{address}/d".replace("http", "HTTP"), "synthetic_data": False},
        "space": {"data_dir": f" {address}/d", "synthetic_data": False},
    }


# An evaluation takes no phases.
@pytest.mark.parametrize(
    ("kind", "mode"), [*((kind, "train") for kind in values_of("")), ("data_dir", "evaluate"), ("phases", "evaluate")]
)
def test_an_address_that_only_a_checkpoint_names_gets_no_request(here, quick, kind, mode):
    with site({}) as (address, asked):
        values = values_of(address)[kind]
        path = stranger(here, **values)
        refused = pytest.raises(ConfigError, match="an address that only ")
        with contextlib.nullcontext() if (kind, mode) == ("phases", "evaluate") else refused:
            run.checked(*read(f"--output_dir={path}", f"--mode={mode}"), run.Launch())
        assert asked == []


@pytest.mark.parametrize("program", ["convert", "predict", "export", "run"])
def test_programs_that_take_the_model_of_a_run_ask_no_address_for_its_tokenizer(here, program):
    with site({}) as (address, asked):
        path = stranger(here, data_dir=f"{address}/d", num_hidden_layers=1)
        args = {
            "convert": f"--from=tftrain:{path} --to=hf:{here}/out",
            "predict": f"--output_dir={path} text",
            "export": f"--output_dir={path} --to={here}/out",
            "run": f"--init_checkpoint=tftrain:{path} --synthetic_data --output_dir={here}/new --max_steps=0",
        }
        programs.outcome(program, args[program], 2 if program == "run" else 1, {})
        assert asked == []


def test_an_address_at_a_server_that_the_command_line_names_is_taken_from_the_checkpoint(here):
    data = "s3://bucket/data"
    path = stranger(here, data_dir=data, synthetic_data=False)
    step = folder.find(path)[0]
    for given in ([f"--data_dir={data}"], [f"--init_checkpoint=hf:{data}/../x"]):
        with_address = run.flags.read(run.TrainConfig, ["run", f"--output_dir={path}", *given])
        config = run.checkpoint_flags.with_flags_of_checkpoint(with_address[0], with_address[2]).config
        assert (config.data.data_dir, config.data.max_seq_length) == (data, 16)
    for other in ("s3://other/data", "gs://bucket/data", "http://bucket/data"):
        given = run.flags.read(run.TrainConfig, ["run", f"--resume={step}", f"--output_dir={other}"])
        with pytest.raises(ConfigError, match=f"--data_dir={data}: an address that only {step} names"):
            run.checkpoint_flags.with_flags_of_checkpoint(given[0], given[2])


OTHERS = ("reference", "git", "github", "ftp", "sftp", "simplecache", "dask", "data", "jar")
IN_CHAINS = ("zip://m::{}://host/m", "{}://a::file:///b", "zip://m::{}::file:///b")


@pytest.mark.parametrize(
    ("protocol", "form"), [*((each, "{}://host/m") for each in OTHERS), *(("simplecache", form) for form in IN_CHAINS)]
)
def test_other_protocols_are_not_opened_anywhere_in_a_chain(here, protocol, form):
    code, lines = programs.outcome("prepare", f"--input_files={form.format(protocol)} --output_dir={here}/out", 1, {})
    assert code == 1
    assert f"Protocol not known: {protocol}" in lines[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_hidden_layers", value) for value in (200_000_000, 2**62, 10_001, 0, -1)),
        *(("hidden_size", value) for value in (2**41, 0)),
        *(("vocab_size", 2**41), ("num_attention_heads", 0), ("max_position_embeddings", 2**50)),
        *(("type_vocab_size", 2**45), ("rope_theta", -1.0)),
    ],
)
@pytest.mark.timeout(60)
def test_sizes_that_no_model_has_are_refused_at_once(here, name, value):
    path = stranger(here, **{name: value})
    code, lines = programs.outcome("convert", f"--from=tftrain:{path} --to=hf:{here}/out", 1, {})
    assert code == 1
    assert f"--{name}={value}: expected a number " in lines[0]
    with pytest.raises(ConfigError, match=f"--{name}={value}: expected a number |--init_checkpoint=.*{name}"):
        run.checked(*read(f"--output_dir={path}"), run.Launch())
