"""A secret in an address is in no line, file or name of a folder."""

import json

import pytest

from tests.kit import programs, runs
from tests.security.strangers import links, run_folder, site
from tftrain import run
from tftrain.checkpoint import folder, remote
from tftrain.checkpoint import manifest as of_checkpoint
from tftrain.cli import flags
from tftrain.config.fields import ConfigError, Problem
from tftrain.config.train import TrainConfig
from tftrain.files import addresses
from tftrain.files.addresses import Cache
from tftrain.files.names import foreign_addresses
from tftrain.host.exit_codes import RunError
from tftrain.host.text import shown
from tftrain.state import resume_compatibility

CANARY = "s3cr3tCANARY"
WITH_SECRET = [
    f"https://alice:{CANARY}@host/m",
    f"https://{CANARY}@host/m",
    f"https://al:a/b?{CANARY}@host/m",
    f"https://host/m?X-Amz-Signature={CANARY}&X-Amz-Expires=9",
    f"https://host/m?a=1,{CANARY}",
    f"https://host/m?{CANARY}",
    f"https://host/m#{CANARY}",
    f"HTTPS://host/m?token={CANARY}",
    f"s3://key:{CANARY}@bucket/m",
    f"s3://key:a/{CANARY}@bucket/m",
    f"s3://bucket/m?token={CANARY}",
    f"gs://bucket/m#{CANARY}",
    f"abfs://container@account/m?sig={CANARY}",
    f"zip://a::https://host/m.zip?token={CANARY}",
    f"zip://a?t={CANARY}::https://u:{CANARY}@host/m.zip",
]
HARMLESS = [
    *("abfs://container@account.dfs.core.windows.net/m", "hf://datasets/owner/name@main/x"),
    *("http://localhost:8000/model@v1/x", "s3://bucket/part-??.jsonl", "zip://b/*.jsonl::s3://bucket/t.zip"),
    "a=0.5:s3://b/x,c=0.5:/local",
    "how? see https://host/page and a#b",
]


@pytest.mark.parametrize("address", WITH_SECRET)
@pytest.mark.parametrize("text", ["{}", "hf:{}", "a=0.5:{},b=0.5:s3://other/x", "it's at '{}', and", '["{}"]'])
def test_what_is_shown_of_an_address_has_no_secret(address, text):
    public = shown(text.format(address))
    assert CANARY not in public
    assert "host" in public or "bucket" in public or "account" in public
    assert ("s3://other/x" in public) == ("s3://other/x" in text)
    assert shown(public) == public
    assert CANARY not in f"{RunError(address)}{Problem('flag', address, address)}"
    assert CANARY not in addresses.local_name(address)


@pytest.mark.parametrize("text", HARMLESS)
def test_an_address_without_a_secret_is_shown_as_it_is(text):
    assert shown(text) == text


@pytest.mark.parametrize("address", [address for address in WITH_SECRET if "@host" in address or "@bucket" in address])
@pytest.mark.parametrize(
    ("program", "args"),
    [
        *(("prepare", "--input_files={} --output_dir={out}"), ("convert", "--from=hf:{} --to=tftrain:{out}")),
        *(("predict", "--output_dir={} text"), ("run", "--data_dir={} --output_dir={out}")),
        *(("run", "--mix=a=1:{} --output_dir={out}"), ("run", "--output_dir={} --synthetic_data --vocab_size=90")),
        ("run", "--resume={}/checkpoints/step_00000001 --output_dir={out}"),
        ("run", "--init_checkpoint=hf:{} --output_dir={out}"),
    ],
)
def test_a_password_in_an_address_is_refused(tmp_path, monkeypatch, address, program, args):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    args = args.replace("{out}", str(tmp_path / "out")).replace("{}", address)
    code, lines = programs.outcome(program, args, 2, {})
    assert code in (1, 2)
    assert any("remove it, and give it by environment variables" in line for line in lines)
    assert CANARY not in "".join([*lines, *map(str, tmp_path.rglob("*"))])


def test_a_copy_has_no_secret_in_its_name_and_its_errors(tmp_path, quick, caplog):
    query = f"?token={CANARY}"

    def page(path):
        name = path.partition(query)[2].strip("/")
        return links("config.json", "lost") if not name else None if name == "lost" else b"{}"

    with site(page) as (address, asked):
        with pytest.raises(OSError, match="no such file") as raised:
            remote.local_copy(f"{address}/m/{query}", Cache(str(tmp_path)))
        assert any(path.endswith("config.json") for path in asked), "the server is asked with the secret"
        with pytest.raises(ConfigError) as refused:
            run.checked(
                *run.read(["run", f"--data_dir={address}/m/{query}", f"--output_dir={tmp_path}/o"]), run.Launch()
            )
    assert CANARY not in f"{raised.value}{raised.value.filename}{refused.value}{caplog.text}"
    assert CANARY not in "".join(map(str, tmp_path.rglob("*")))


def test_a_run_writes_no_secret_anywhere(tmp_path, monkeypatch, capfd):
    """The flags with an address are those that a run without a server takes."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlflow")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    address = f"https://host/x?X-Amz-Signature={CANARY}"
    given = [
        *("run", "--synthetic_data", "--vocab_size=90", "--num_hidden_layers=1", "--hidden_size=16"),
        *("--num_attention_heads=2", "--max_seq_length=16", "--max_predictions_per_seq=2", "--global_batch_size=2"),
        *("--max_steps=2", "--eval_every=-1", "--report_to=csv,tensorboard,mlflow", f"--output_dir={tmp_path}/run"),
        f"--machine_file={address}",
    ]
    config, _ = run.checked(*run.read(given), run.Launch())
    run.prepare_process(config.compute, may_restart=False)
    assert runs.train(config) == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.json", "report.html", "manifest.json", "metrics.csv"} <= {path.name for path in written}
    assert [str(path) for path in written if CANARY.encode() in path.read_bytes()] == []
    assert CANARY not in "".join((*map(str, written), *capfd.readouterr()))
    saved = json.loads((folder.find(tmp_path / "run")[-1] / of_checkpoint.NAME).read_text())["run"]["config"]
    assert saved["run"]["machine_file"] == "https://host/x"


def test_a_resume_with_the_same_secret_address_is_the_same_run(tmp_path):
    mix = f"--mix=a=1:https://host/d?t={CANARY}"
    path = run_folder(tmp_path, mix="a=1:https://host/d", synthetic_data=False, learning_rate=0.003)
    config, _, named = flags.read(TrainConfig, ["run", f"--output_dir={path}", mix])
    config = run.checkpoint_flags.with_flags_of_checkpoint(config, named).config.resolve(1)
    (step,) = folder.find(path)
    saved = of_checkpoint.read(step).run
    assert CANARY not in "".join(resume_compatibility.changes(config, {}, saved, step))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["a" * 10**6 + ":/", "a:" * 10**6 + "//", ",a=" * 10**6 + "x://", "x://" + ":@" * 10**5]
)
def test_a_long_text_is_shown_in_linear_time(text):
    assert shown(text)
    assert foreign_addresses({"x": text}, [text]) == []
