"""`tftrain.notebook`: the documented code runs, wrong flags are those of the programs, and a kernel stays usable."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests.formats.models import DATA
from tests.kit.runs import SMALL, read_rows
from tftrain import notebook, predict, run
from tftrain.config.fields import ConfigError

ROOT = Path(__file__).parents[1]
FLAGS = {name: value or True for name, _, value in (each.removeprefix("--").partition("=") for each in SMALL)}
BERT = f"hf:{DATA / 'hf_bert'}"


def test_the_documented_code_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/notebook.md").read_text(), re.DOTALL)
    for given, shorter in (("max_steps=100", "max_steps=4"), ("corpus_mb=1", "corpus_mb=0.1"), ("2000", "500")):
        assert f"{given}," in code
        code = code.replace(f"{given},", f"{shorter},")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/notebook.md", "exec"), {})
    *_, loss, masks = capsys.readouterr().out.splitlines()
    rows = read_rows(tmp_path / "run")
    assert float(loss) == pytest.approx(next(row["eval_mlm_loss"] for row in rows if "eval_mlm_loss" in row), rel=1e-5)
    assert masks.startswith("[{'position': 3, 'candidates': [{'token': ")


def test_the_import_loads_no_tensorflow_and_chooses_its_keras():
    program = "import os, sys; from tftrain import notebook; assert 'tensorflow' not in sys.modules;"
    program += "assert os.environ['TF_USE_LEGACY_KERAS'] == '1'"
    environ = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env=environ)


def test_wrong_flags_raise_what_the_programs_print(capsys, tmp_path):
    with pytest.raises(ConfigError) as of_run:
        notebook.train(hiden_size=3, learning_rate=-1.0, jit_compile=False, seq_length_buckets=[32, 16])
    with pytest.raises(SystemExit):
        run.main(["run", "--hiden_size=3", "--learning_rate=-1.0", "--jit_compile=False", "--seq_length_buckets=32,16"])
    printed = capsys.readouterr().err.splitlines()[:-1]
    assert [f"tftrain.run: {line}" for line in str(of_run.value).splitlines()] == printed
    with pytest.raises(ConfigError) as of_predict:
        notebook.predict(output_dir=tmp_path, top_k=0)
    with pytest.raises(SystemExit):
        predict.main(["predict", f"--output_dir={tmp_path}", "--top_k=0"])
    printed = capsys.readouterr().err.splitlines()[:-1]
    assert [f"predict: {line}" for line in str(of_predict.value).splitlines()] == printed


def test_predictions_are_those_of_the_program(capsys):
    texts = ["a [MASK] c", "--top_k=1"]
    found = notebook.predict(*texts, init_checkpoint=BERT, top_k=2)
    assert predict.main(["predict", "--format=jsonl", f"--init_checkpoint={BERT}", "--top_k=2", "--", *texts]) == 0
    assert found == [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.nightly  # `supervise/test_signals` has the signals.
@pytest.mark.slow
def test_an_interrupt_saves_and_leaves_the_handlers_as_they_were_and_the_same_call_continues(tmp_path):
    metrics, before = tmp_path / "metrics.jsonl", signal.getsignal(signal.SIGINT)

    def interrupt_after_first_row():
        while not metrics.exists() or not metrics.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    flags = {**FLAGS, "output_dir": tmp_path, "global_batch_size": 8, "eval_every": -1}
    threading.Thread(target=interrupt_after_first_row).start()
    with pytest.raises(KeyboardInterrupt):
        notebook.train(**flags, max_steps=100_000, warmup_steps=2)
    assert signal.getsignal(signal.SIGINT) is before
    done = json.loads(metrics.read_text().splitlines()[-1])["step"]
    again = time.time()
    rows = notebook.train(**flags, max_steps=done + 2, warmup_steps=2)
    # The seconds of a start are not those since the kernel began.
    assert json.loads((tmp_path / "goodput.json").read_text())[-1]["began"] >= again
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, done + 3))
    found = notebook.evaluate(output_dir=tmp_path)
    assert (found["step"], found["eval_mlm_loss"] > 0) == (done + 2, True)


def test_what_tensorflow_reads_once_is_refused_after_it_has_started(tmp_path, monkeypatch):
    tf.constant(1.0).numpy()
    flags = {**FLAGS, "output_dir": tmp_path, "global_batch_size": 8, "max_steps": 1}
    with pytest.raises(ConfigError, match=r"--cpu_threads=1023: .*restart the kernel"):
        notebook.train(**flags, cpu_threads=1023)
    with pytest.raises(ConfigError, match=r"--deterministic=true: .*restart the kernel"):
        notebook.train(**flags, deterministic=True)
    with pytest.raises(ConfigError, match=r"--cuda_graphs=false: .*restart the kernel"):
        notebook.train(**flags, cuda_graphs=False)
    monkeypatch.setattr(tf.keras.layers, "__name__", "keras.layers")
    with pytest.raises(ImportError, match="Keras 3 in this process; expected Keras 2: restart the kernel"):
        notebook.predict("a [MASK] c", init_checkpoint=BERT)
