"""--report_to: real trackers, without network, get the rows of metrics.jsonl; one that fails costs nothing."""

import csv
import json
import re
import struct
import time

import pytest

from tests.kit.runs import configured, train_alone
from tests.kit.waiting import wait_until
from tftrain.config.fields import ConfigError
from tftrain.host.exit_codes import ExitCode
from tftrain.observe import trackers
from tftrain.observe.metrics import read_rows


@pytest.fixture(autouse=True)
def _without_network(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def test_mlflow_and_csv_have_one_run_with_all_rows_the_flags_and_the_curve(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path / "run"
    for steps in (4, 6):
        given = ("--report_to=csv,mlflow", f"--output_dir={folder}", f"--max_steps={steps}", "--eval_every=2")
        assert train_alone(*given) == ExitCode.DONE
    written = read_rows(folder / "metrics.jsonl")
    rows = [row for row in written if "loss" in row]
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("tftrain").experiment_id])
    losses = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(each.step, pytest.approx(each.value)) for each in losses] == [(row["step"], row["loss"]) for row in rows]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert client.get_metric_history(found.info.run_id, "eval/mlm_loss")
    assert found.data.params["hidden_size"] == "32"
    assert len(found.data.params) > 150
    assert {each.path for each in client.list_artifacts(found.info.run_id)} == {"config.json", "loss_curve.png"}
    assert found.info.status == "FINISHED"
    assert re.search(r"held-out at +6/ +6", found.data.tags["last_line"])
    assert not (folder / "tensorboard").exists()
    with (folder / "metrics.csv").open() as file:
        table = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    assert table == [{name: value for name, value in row.items() if value is not None} for row in written]


def test_mlflow_has_the_losses_of_sources_in_a_folder(tmp_path):
    """There, a metric is a file, so no other metric can lie below its name."""
    mlflow = pytest.importorskip("mlflow")
    tracker = trackers.Mlflow(tmp_path, {}, None)
    values = {"train/lm_loss": 3.0, "train/lm_loss/wiki": 2.0, "train/lm_loss/..": 4.0, "eval/lm_loss/a": 1.0}
    tracker.log(1, values)
    assert mlflow.MlflowClient().get_run(tracker.id).data.metrics == {
        name.replace("loss/", "loss."): value for name, value in values.items()
    }


def records(folder):
    """Yields the records of wandb so far: a log in the format of LevelDB after wandb's own header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        content, at, data = path.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if (left := 32768 - at % 32768) < 7:  # No header begins at the end of a block.
                at += left
                continue
            _, size, kind = struct.unpack_from("<IHB", content, at)
            data += content[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # a whole record, or the last part of one
                yield wandb_internal_pb2.Record.FromString(data)
                data = b""


def test_wandb_has_one_run_with_all_rows_the_flags_and_each_exit_code(tmp_path):
    pytest.importorskip("wandb")
    for steps, code in ((range(1, 5), 75), (range(5, 7), 0)):
        found = trackers.Trackers(["wandb"], tmp_path, {"hidden_size": 32}, is_resumed=code == 0)
        for step in steps:
            found.log(step, {"train/loss": 1 / step})
        found.close([tmp_path / "nosuch.png"], "the last line", code)
    codes = lambda: [each.exit.exit_code for each in records(tmp_path) if each.HasField("exit")]  # noqa: E731
    wait_until(lambda: codes() == [75, 0], 30, lambda: str(codes()))  # wandb's own process may still write.
    written = [*records(tmp_path)]
    runs = [each.run for each in written if each.HasField("run")]
    assert len({run.run_id for run in runs}) == 1
    assert {item.key: item.value_json for item in runs[0].config.update}["hidden_size"] == "32"
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in each.history.item}
        for each in written
    ]
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(step, pytest.approx(1 / step)) for step in range(1, 7)]


@pytest.mark.parametrize(("code", "status"), [(0, "FINISHED"), (75, "KILLED"), (143, "KILLED"), (76, "FAILED")])
def test_mlflow_knows_how_a_run_ended_though_no_file_of_it_arrives(tmp_path, monkeypatch, code, status):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "broken")
    client = mlflow.MlflowClient()
    client.create_experiment("broken", artifact_location="file:///proc/nowhere")
    found = trackers.Trackers(["mlflow"], tmp_path, {"seed": 1}, False)
    found.log(1, {"train/loss": 2.0})
    found.close([tmp_path / "curve.png"], "the last line", code)
    (run,) = client.search_runs([client.get_experiment_by_name("broken").experiment_id])
    assert run.info.status == status
    assert run.data.metrics == {"train/loss": 2.0}
    assert (run.data.params, run.data.tags["exit_code"]) == ({"seed": "1"}, str(code))
    assert run.data.tags["last_line"] == "the last line"
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"mlflow": run.info.run_id}


def test_a_damaged_file_of_numbers_is_named_and_a_new_run_begins(tmp_path, caplog):
    (tmp_path / "trackers.json").write_text('{"csv": ')
    trackers.Trackers(["csv"], tmp_path, {}, is_resumed=True).close([], "", 0)
    assert f"{tmp_path}/trackers.json: Input data was truncated" in caplog.text


class Broken:
    id = None
    ends = []  # noqa: RUF012

    def __init__(self, folder, config, known):
        self.rows = 0

    def log(self, step, values):
        self.rows += 1
        if self.rows == 2:
            raise ConnectionError("the server\nis gone")

    def close(self, pictures, last_line, code):
        self.ends.append((self.rows, code))


class Slow(Broken):
    def log(self, step, values):
        time.sleep(60)


@pytest.mark.parametrize(
    ("kind", "words", "ends"),
    [
        (Broken, "ConnectionError: the server is gone; it may lack rows, metrics.jsonl has all rows", [(6, 75)]),
        (Slow, "it has not taken all rows after 1 s; the run ends", []),
    ],
)
def test_a_tracker_that_fails_or_hangs_is_named_and_costs_no_step(tmp_path, monkeypatch, caplog, kind, words, ends):
    monkeypatch.setitem(trackers.KINDS, "csv", kind)
    monkeypatch.setattr(trackers, "EXIT_SECONDS", 1.0)
    kind.ends.clear()
    begin, found = time.monotonic(), trackers.Trackers(["csv"], tmp_path, {}, False)
    for step in range(6):
        found.log(step, {})
    found.close([], "", 75)
    assert time.monotonic() - begin < 10
    assert kind.ends == ends, "the later rows and the end arrive"
    assert f"--report_to=csv: {words}" in caplog.text
    assert caplog.text.count("--report_to") == 1


def test_rows_that_a_tracker_is_too_slow_for_are_dropped_and_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(trackers.KINDS, "csv", Slow)
    monkeypatch.setattr(trackers, "MOST_WAITING", 3)
    found = trackers.Trackers(["csv"], tmp_path, {}, False)
    for step in range(9):
        found.log(step, {})
    assert caplog.text.count("it has not taken 3 rows yet, and loses some from now on") == 1


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("wandb,tensorbord", "expected some of tensorboard, csv, wandb, mlflow, separated by commas"),
        ("mlflow", "expected mlflow to be installed: pip install 'tftrain[trackers]'"),
    ],
)
def test_a_name_or_a_package_that_is_missing_is_refused(monkeypatch, names, words):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == "mlflow" else True)
    with pytest.raises(ConfigError, match=f"^--report_to={names.rpartition(',')[2]}: {re.escape(words)}$"):
        configured(f"--report_to={names}", "--output_dir=x")
