"""`tftrain.run` from flags to files: what a run leaves behind, how it goes on, how it fails."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint import states
from tests.kit import corpora, pictures, runs
from tests.kit.ranks import run_ranks
from tests.kit.runs import SMALL, configured, losses, rows, train_alone
from tests.model.samples import NEEDS_OPS
from tests.observe.test_metrics import EVAL_FIELDS, TRAIN_FIELDS
from tftrain import run
from tftrain.checkpoint import folder as checkpoints
from tftrain.host.exit_codes import ExitCode
from tftrain.inputs.inputs import Inputs
from tftrain.train import process

pytestmark = pytest.mark.slow
EIGHT = ("--global_batch_size=8", "--max_steps=8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Eight undisturbed steps with a checkpoint after every fourth."""
    folder = tmp_path_factory.mktemp("whole")
    every = ("--checkpoint_every=4", "--eval_every=4")
    with pictures.drawn():
        train_alone(f"--output_dir={folder}", *EIGHT, *every)
    return folder


def test_a_run_leaves_metrics_config_events_curve_and_checkpoint(whole):
    train, held_out = rows(whole)
    assert [row["step"] for row in train] == list(range(1, 9))
    assert [row["step"] for row in held_out] == [4, 8]
    assert all(set(row) == set(TRAIN_FIELDS) for row in train)
    assert all(set(row) == set(EVAL_FIELDS) for row in held_out)
    assert train[-1]["consumed_samples"] == 64
    assert train[-1]["consumed_tokens"] == 64 * 16
    assert train[0]["step_time_s"] > train[-1]["step_time_s"], "the first step compiles"
    for row in train[1:]:
        assert math.isclose(row["loss"], row["mlm_loss"] + row["nsp_loss"], rel_tol=1e-6)
        assert math.isclose(row["samples_per_sec"] * row["step_time_s"], 8, rel_tol=1e-6)
    config = json.loads((whole / "config.json").read_text())
    assert config["config"]["model"]["hidden_size"] == 32
    assert config["config"]["data"]["max_predictions_per_seq"] == 3
    assert config["packages"]["tensorflow"]
    assert list((whole / "tensorboard").glob("**/*tfevents*"))
    assert pictures.is_drawn(whole / "loss_curve.png")
    assert [path.name for path in checkpoints.find(whole)] == ["step_00000004", "step_00000008"]


def test_synthetic_tokens_are_uniform(whole):
    _, held_out = rows(whole)
    # An entropy estimated from n tokens of k kinds is too small by (k - 1) / 2n: 96 / 3584 nats here.
    assert math.isclose(held_out[-1]["eval_unigram_nats"], math.log(97), rel_tol=0.05)


@NEEDS_OPS
def test_auto_attention_is_recorded_and_what_an_older_version_drew_is_told(whole, tmp_path, caplog):
    """A manifest without `attention` is one of a version whose masks of probabilities had 16 bits."""
    states.begun_from(checkpoints.find(whole)[0], tmp_path)
    path = checkpoints.find(tmp_path)[0] / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["run"].pop("attention") == {"core": "softmax", "dropout_bits": 8}
    path.write_text(json.dumps(manifest))
    with caplog.at_level("INFO"):
        train_alone(f"--output_dir={tmp_path}", *EIGHT, "--attn_impl=auto", "--eval_every=-1")
    assert "attn_impl=flash" in caplog.text
    assert "masks of attention probabilities from 8 bits each, saved with 16" in caplog.text
    last = json.loads((checkpoints.find(tmp_path)[-1] / "manifest.json").read_text())["run"]
    assert (last["attention"], last["config"]["model"]["attn_impl"]) == ({"core": "flash", "dropout_bits": 8}, "auto")
    runs.evaluate(
        configured(f"--output_dir={tmp_path}", "--global_batch_size=8", "--mode=evaluate", "--attn_impl=auto")
    )


def test_a_finished_run_has_nothing_to_do_but_to_remove_what_a_killed_save_left(whole, capsys):
    names = (".trash_step_00000002", ".partial_step_00000008_00000000000a")
    left = [checkpoints.checkpoint_folder(whole) / name for name in names]
    for path in left:
        path.mkdir()
    before = (whole / "metrics.jsonl").read_text()
    train_alone(f"--output_dir={whole}", *EIGHT)
    assert "nothing to do" in capsys.readouterr().out
    assert (whole / "metrics.jsonl").read_text() == before
    assert not any(path.exists() for path in left)


def test_evaluate_prints_what_the_run_recorded(whole, capsys):
    runs.evaluate(configured(f"--output_dir={whole}", "--global_batch_size=8", "--mode=evaluate"))
    output = capsys.readouterr().out
    assert re.search(r"^held-out examples +128 of 1024$", output, re.MULTILINE)
    _, held_out = rows(whole)
    loss = held_out[-1]["eval_mlm_loss"]
    assert f"{loss:.4f} nats (perplexity {math.exp(loss):.2f})" in output
    for field in ("eval_unigram_nats", "eval_mlm_accuracy", "eval_nsp_accuracy"):
        assert f"{held_out[-1][field]:.4f}" in output


def test_starting_over_keeps_the_old_checkpoints_aside(whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    train_alone(f"--output_dir={tmp_path}", *EIGHT, "--max_steps=3", "--resume=none", "--eval_every=-1")
    assert [path.name for path in checkpoints.find(tmp_path)] == ["step_00000003"]
    aside = checkpoints.checkpoint_folder(tmp_path) / "set_aside_1"
    reports = {"metrics.jsonl", "log.txt", "tensorboard", "goodput.json", "report.html"}
    assert {path.name for path in aside.iterdir()} == {"step_00000004", "step_00000008", *reports}
    assert (aside / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert not (aside / "tensorboard" / events.name).exists()
    train, held_out = rows(tmp_path)
    assert ([row["step"] for row in train], held_out) == ([1, 2, 3], [])


def test_a_resume_from_elsewhere_sets_aside_what_is_there_and_may_bring_a_loss_scale(whole, tmp_path):
    path = checkpoints.find(whole)[0]
    shutil.copytree(path, older := checkpoints.checkpoint_folder(tmp_path) / "step_00000002")
    others = {"metrics.jsonl": '{"step": 1, "loss": 9.0}\n', "best.json": "{}", "trackers.json": '{"wandb": "other"}'}
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    settings = (*EIGHT, "--max_steps=6", "--precision=fp16", "--eval_every=-1", f"--resume={path}")
    train_alone(f"--output_dir={tmp_path}", *settings)
    assert rows(tmp_path)[0][-1]["loss_scale"] == 2**15
    assert [each.name for each in checkpoints.find(tmp_path)] == ["step_00000006"]
    assert {path.name for path in (older.parent / "set_aside_1").iterdir()} == {older.name, *others}
    assert min(row["step"] for row in rows(tmp_path)[0]) > 4, "the rows of another run do not stay"


def test_standard_records_train_and_a_damaged_one_ends_the_run_in_one_line(tmp_path):
    shard = tmp_path / "x.tfrecord"
    rng = np.random.default_rng(0)
    corpora.write_tfrecords(shard, [corpora.standard_example(rng)[0] for _ in range(16)])
    sizes = [arg for arg in SMALL if arg not in ("--synthetic_data", "--max_seq_length=16")]
    batch = ("--global_batch_size=8", "--max_steps=2")
    args = [*sizes, f"--train_files={tmp_path}/*.tfrecord", *batch]
    runs.run_alone(*args, f"--output_dir={tmp_path / 'good'}")
    assert np.isfinite(losses(tmp_path / "good")).all()

    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    command = ["-m", "tftrain.run", *args, f"--output_dir={tmp_path / 'bad'}"]
    output = run_ranks(1, command, expected_code=ExitCode.FAILED)
    last = output.strip().splitlines()[-1]
    assert re.search(r"tftrain\.run: rank 0: .*x\.tfrecord.*byte", last), output
    assert "Traceback" not in output


def test_data_that_vanishes_before_its_sizes_are_read_ends_the_run_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Inputs, "problems", lambda inputs: [])  # It was still there when it was checked.
    args = (f"--data_dir={tmp_path / 'gone'}", f"--output_dir={tmp_path}", "--global_batch_size=8")
    assert run.main(["tftrain.run", *args]) == ExitCode.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tftrain.run: rank 0: {tmp_path / 'gone'}")


def test_a_run_of_one_process_needs_no_horovod(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ImportError('no Horovod here')")
    settings = (f"--output_dir={tmp_path / 'out'}", "--global_batch_size=4", "--max_steps=2")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from tftrain import run; sys.exit(run.main(sys.argv))"
    )
    output = run_ranks(1, ["-c", program, *SMALL, *settings], fresh=True)
    assert re.search(r"loss_curve\.png", output)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("OOM when allocating tensor with shape[64,512] and type float on /device:CPU:0 by allocator cpu", 81),
        ("Graph execution error:\n\nOut of memory while trying to allocate 1073741824 bytes.", 81),
        ("/data/file; No space left on device", None),
    ],
)
def test_a_tensor_that_can_not_be_allocated_has_an_exit_code_and_one_line(message, code):
    found = process.cause_of(tf.errors.ResourceExhaustedError(None, None, message), deterministic=False)
    assert (None if found is None else found.exit_code) == code
    assert found is None or (str(found).startswith(message.splitlines()[-1]) and "--micro_batch_size" in str(found))


OWN_GEMM = "--xla_gpu_enable_triton_gemm=true"
OWN_GRAPHS = "--xla_gpu_enable_command_buffer=FUSION"


@pytest.mark.parametrize(
    ("flags", "has_gpu", "given", "expected"),
    [
        ((), False, "", ""),
        ((), True, "", run.CUBLAS_LT),
        ((), True, "--xla_dump_to=x", f"{run.CUBLAS_LT} --xla_dump_to=x"),
        ((), True, "--xla_gpu_enable_cublaslt=false", "--xla_gpu_enable_cublaslt=false"),
        (("--activation_checkpointing=full",), False, "", run.LOW_MEMORY_XLA),
        (("--gradient_transport=xla",), False, "", ""),
        (("--gradient_transport=xla",), True, "", " ".join([*run.SUMS_OF_XLA[::-1], run.CUBLAS_LT])),
        (("--gradient_transport=xla",), True, OWN_GEMM, " ".join([run.SUMS_OF_XLA[0], run.CUBLAS_LT, OWN_GEMM])),
        (("--activation_checkpointing=full",), True, "", f"{run.CUBLAS_LT} {run.LOW_MEMORY_XLA}"),
        (("--cuda_graphs=false",), False, "", run.NO_CUDA_GRAPHS),
        (("--cuda_graphs=false",), False, OWN_GRAPHS, f"{OWN_GRAPHS} {run.NO_CUDA_GRAPHS}"),  # The last one counts.
    ],
)
def test_the_flags_of_xla_are_added_before_those_of_the_user(monkeypatch, tmp_path, flags, has_gpu, given, expected):
    monkeypatch.setattr(run.hardware, "has_driver", lambda: has_gpu)
    monkeypatch.setenv("XLA_FLAGS", given)
    run.prepare_process(configured(*flags, f"--output_dir={tmp_path}").compute, may_restart=False)
    assert run.os.environ["XLA_FLAGS"].split() == expected.split()
