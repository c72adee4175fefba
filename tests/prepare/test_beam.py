"""`--runner=beam`: the bytes of the local way, also if tasks fail or run twice, and one line for what goes wrong."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit import corpora
from tests.prepare.test_prepare import contents, refused
from tests.prepare.test_sources import COMPRESS, json_lines, parquet
from tftrain.data.manifest import read_manifest
from tftrain.files.errors import DataError
from tftrain.prepare import appended_files, beam_workers, corpus_chunks, preparation
from tftrain.prepare.beam_workers import BeamWorkers
from tftrain.prepare.preparation import prepare
from tftrain.prepare.spool import Spool
from tftrain.prepare.workers import Workers

MASKED = {"masking": "static", "whole_word_masking": True, "vocab_size": 100, "heldout_window": 5}
DIED = "of the stage 'count words' failed: a worker process died, probably because memory was short$"
CAUSAL = {"objective": "causal", "tokenizer_type": "bpe", "vocab_size": 300}


@pytest.fixture
def changes(tmp_path, monkeypatch):
    """Text, JSON lines and Parquet, whose files repeat documents of each other; each is more than one task."""
    monkeypatch.setattr(corpus_chunks, "_TASK_BYTES", 4000)
    documents = [corpora.text(24, seed=seed).strip().split("\n\n") for seed in range(3)]
    (tmp_path / "a.txt").write_text("\n\n".join(documents[0]))
    (tmp_path / "b.jsonl.zst").write_bytes(COMPRESS[".zst"](json_lines(documents[1] + documents[0][:12])))
    (tmp_path / "c.parquet").write_bytes(parquet(documents[2] + documents[1][:12], rows=9))
    inputs = tuple(str(tmp_path / name) for name in ("a.txt", "b.jsonl.zst", "c.parquet"))
    return {"input_files": inputs, "vocab_file": None}


def by_beam(*options):
    return {"runner": "beam", "num_workers": None, "beam_options": options}


def check_equal(folder, expected):
    assert contents(folder) == contents(expected)
    dropped = read_manifest(str(expected)).tokens_dropped
    assert dropped["duplicate_paragraph"] > 1000
    assert dropped["shared_with_training"] > 10


# Each stage is a pipeline. MASKED has the same stages and more: its tasks are repeated below.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode", "workers"),
    [pytest.param(MASKED, "multi_threading", 2, marks=pytest.mark.nightly), (CAUSAL, "multi_processing", 1)],
)
def test_output_is_that_of_the_local_way(changes, prepare_config, tmp_path, kind, mode, workers):
    prepare(prepare_config(tmp_path / "local", **changes, **kind))
    beam = by_beam(f"--direct_running_mode={mode},--direct_num_workers={workers}")
    prepare(prepare_config(tmp_path / "beam", **(changes | kind | beam)))
    check_equal(tmp_path / "beam", tmp_path / "local")


class Repeating(Workers):
    """Every task fails in its first write, and is repeated. Each second one runs in another thread, too."""

    def run(self, stage, function, tasks):
        for number, task in enumerate(tasks):
            with cut_writes(), contextlib.suppress(OSError):
                function(*task)
            yield function(*task)
            if number % 2:
                with ThreadPoolExecutor(1) as other:
                    other.submit(function, *task).result()


@contextlib.contextmanager
def cut_writes():
    append = appended_files.append

    def cut(folder, prefix, rows, *args):
        append(folder, prefix, rows[:5], *args)
        raise OSError("cut")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appended_files, "append", cut)
        yield


@pytest.mark.parametrize("kind", [MASKED, CAUSAL])
def test_tasks_that_fail_and_run_twice_change_no_byte(changes, prepare_config, tmp_path, monkeypatch, kind):
    prepare(prepare_config(tmp_path / "once", **changes, **kind))
    monkeypatch.setattr(preparation, "Workers", lambda _: Repeating(1))
    prepare(prepare_config(tmp_path / "repeated", **changes, **kind))
    check_equal(tmp_path / "repeated", tmp_path / "once")


def test_documents_that_the_file_system_lost_are_missed(prepare_config, tmp_path, monkeypatch):
    read = Spool.read
    monkeypatch.setattr(Spool, "read", lambda spool, chunk: read(spool, chunk)[1:])
    refused(prepare_config(tmp_path / "out"), "have written 120 documents into it, and found .* of them there")


def test_workers_that_do_not_see_the_folder(prepare_config, tmp_path, monkeypatch):
    monkeypatch.setattr(beam_workers, "_write", lambda *_: None)
    expected = f"failed: {tmp_path}/out/.unfinished/stage-.* a Beam worker on .* does not see this folder; expected an"
    refused(prepare_config(tmp_path / "out", **by_beam()), expected)


def test_results_come_in_task_order_and_a_task_with_a_defect_is_one_line(tmp_path):
    with BeamWorkers([], str(tmp_path)) as workers:
        assert list(workers.run("square", pow, [(n, 2) for n in range(20)])) == [n**2 for n in range(20)]
        assert not os.listdir(tmp_path)
        with pytest.raises(DataError) as caught:
            list(workers.run("divide", divmod, [(1, 0)]))
    assert str(caught.value).startswith("the Beam pipeline of the stage 'divide' failed: integer division or modulo")
    assert "\n" not in str(caught.value)


TWO = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


@pytest.mark.parametrize("options", [(), pytest.param(TWO, marks=pytest.mark.slow)])
def test_a_process_of_the_pipeline_that_dies_is_one_line(tmp_path, options):
    with BeamWorkers([*options], str(tmp_path)) as workers, pytest.raises(DataError, match=DIED):
        list(workers.run("count words", os._exit, [(1,), (2,), (3,)]))


def test_wrong_values_of_beam_options_are_named():
    for option, message in (("--direct_num_workers=two", "invalid int value"), ("--runner=FlunkRunner", "Unexpected")):
        with pytest.raises(ValueError, match=message):
            beam_workers._checked([option])


def test_values_of_beam_options_may_have_commas(prepare_config, tmp_path):
    config = prepare_config(tmp_path, **by_beam("--runner=FlinkRunner,--experiments=a,b", "--parallelism=2"))
    assert config.split_beam_options == ["--runner=FlinkRunner", "--experiments=a,b", "--parallelism=2"]


def program_in_first_stage(folder, corpus, *flags):
    """Starts the program, and returns it when its workers are about to begin."""
    flags += (f"--input_files={corpus}/*.txt", f"--output_dir={folder}", f"--vocab_file={corpus}/vocab.vocab")
    command = [sys.executable, "-m", "tftrain.prepare", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    while not list(folder.glob(".unfinished/*")) and process.poll() is None:
        time.sleep(0.01)
    time.sleep(1)
    return process


PROCESSES = ("--runner=beam", f"--beam_options={','.join(TWO)}")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_signal_to_the_program_alone_ends_all_processes(tmp_path, corpus, number):
    process = program_in_first_stage(tmp_path / "out", corpus, *PROCESSES)
    process.send_signal(number)
    # The error stream ends with the last process that has it.
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == b"prepare: interrupted; nothing was left in the output folder"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--num_workers=2",), pytest.param(PROCESSES, marks=pytest.mark.nightly)])
def test_processes_end_with_a_program_that_is_killed(tmp_path, corpus, flags):
    process = program_in_first_stage(tmp_path / "out", corpus, *flags)
    process.kill()
    process.communicate(timeout=10)
