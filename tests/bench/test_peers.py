"""Implementations in turns, and what is made of their seconds."""

import sys

import numpy as np
import pytest

from tests.kit.tf_models import tf_models
from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.peers import table, task, text, torch_worker, training
from tftrain.bench.table import TableRow
from tftrain.config.fields import ConfigError

MODULE = """
from tftrain.bench.peers import task
from tftrain.bench.worker import serve

def build(settings):
    if settings["precision"] == "broken":
        import a_module_that_does_not_exist
    def take(count):
        with open(settings["log"], "a") as log:
            log.write(f"{settings['implementation']} {count}\\n")
        return [9.0] + [settings["seconds"]] * (count - 1)
    return take

serve(build)
"""


def row(name, **settings):
    return TableRow(
        f"{name}/bf16", "bf16", {"implementation": name, "precision": "bf16", "task": "synthetic_128", **settings}
    )


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_peer.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(host, "available_memory_gb", lambda: 1000.0)

    def make(name, seconds, **settings):
        return row(name, module="fake_peer", seconds=seconds, log=str(tmp_path / "log"), **settings)

    return make


def test_they_take_turns_and_the_first_step_of_a_turn_is_not_counted(fake, tmp_path):
    group = [fake("tftrain", 2.0), fake("one", 4.0), fake("two", 8.0)]
    found = {outcome.row: outcome.records[0] for outcome in table.measure(group, BenchConfig(steps=3), lambda _: None)}
    turns = [f"{name} {task.TURN_STEPS}" for name in ("tftrain", "one", "two")] * 2
    warm_up = [f"{name} {table.WARM_UP}" for name in ("tftrain", "one", "two")]
    assert (tmp_path / "log").read_text().splitlines() == warm_up + turns
    assert [record["samples_per_sec"] for record in found.values()] == [4.0, 2.0, 1.0]
    assert [record["ratio_to_best_peer"] for record in found.values()] == [2.0, 1.0, 0.5]
    assert [record["speed_change_pct"] for record in found.values()] == [100.0, 0.0, -50.0]
    assert {record["base_spread_pct"] for record in found.values()} == {0.0}  # every step of the best peer took as long
    assert found["tftrain/bf16"]["steps"] == 4


def test_an_implementation_that_fails_says_why_and_the_rest_go_on(fake):
    group = [fake("tftrain", 2.0), fake("one", 4.0, torch=True)]
    group[1].settings["precision"] = "broken"
    ours, other = table.measure(group, BenchConfig(steps=1), lambda _: None)
    assert ours.records[0]["samples_per_sec"] == 4.0
    assert ours.records[0]["ratio_to_best_peer"] is None
    assert "a_module_that_does_not_exist" in other.error
    assert "--torch_python" in other.error


def test_too_little_memory_is_said_before_a_model_is_built(fake, monkeypatch):
    monkeypatch.setattr(host, "available_memory_gb", lambda: 1.25)
    (outcome,) = table.measure([fake("one", 1.0)], BenchConfig(), lambda _: None)
    assert "1.2 GB of memory are free" in outcome.error


def test_where_memory_is_short_ours_meets_one_peer_after_the_other():
    group = [row("tftrain"), row("one"), row("two")]
    ours, one, two = group
    assert table.concurrent_rows(group, 3 * table.MEMORY_GB[task.SYNTHETIC]) == [group]
    assert table.concurrent_rows(group, 3 * table.MEMORY_GB[task.SYNTHETIC] - 1) == [[ours, one], [ours, two]]
    assert table.concurrent_rows([one, two], 1.0) == [[one, two]]


def test_in_pairs_our_process_stays_and_measures_with_every_peer(fake, tmp_path, monkeypatch):
    group = [fake("tftrain", 2.0), fake("one", 4.0), fake("two", 8.0)]
    monkeypatch.setattr(host, "available_memory_gb", lambda: 2 * table.MEMORY_GB[task.SYNTHETIC])
    found = {outcome.row: outcome.records[0] for outcome in table.measure(group, BenchConfig(steps=2), lambda _: None)}
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [
        *("tftrain 3", "one 3", "tftrain 3", "one 3"),
        *("two 3", "tftrain 3", "two 3"),
    ]
    assert [record["steps"] for record in found.values()] == [4, 2, 2]


def test_only_torch_rows_run_in_the_interpreter_of_the_flag(monkeypatch):
    started = []
    monkeypatch.setattr(table, "Worker", lambda module, settings, python: started.append((module, python)))
    monkeypatch.setattr(table.host, "available_memory_gb", lambda: 24.0)
    for other in [row for row in table.rows() if row.name.startswith(task.TEXT) and row.name.endswith("fp32")]:
        table.start(other, BenchConfig(torch_python="/torch/python"))
    assert [python for _, python in started] == [sys.executable] * 3 + ["/torch/python"] * 3


@pytest.mark.parametrize("name", [task.SYNTHETIC, task.MODERN])
def test_a_random_batch_is_full_and_masks_distinct_positions(name):
    (batch,) = task.batches({"task": name})
    rows, length, slots = task.TASKS[name][:3]
    assert (batch["input_ids"].shape, batch["masked_lm_ids"].shape) == ((rows, length), (rows, slots))
    assert batch["input_mask"].all()
    assert batch["segment_ids"].mean() == 0.5
    assert (np.diff(batch["masked_lm_positions"], axis=1) > 0).all()
    assert all(value.dtype in (np.int32, np.float32) for value in batch.values())


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(FloatingPointError, match="nan"):
        task.turns(float, ["nan"])(1)


def test_counted_steps_take_every_batch_in_turn():
    taken = []
    take = task.turns(lambda batch: taken.append(batch) or 0.0, "abc")
    for _ in range(4):
        take(3)
    counted = [taken[first + 1 : first + 3] for first in range(0, 12, 3)]
    assert [batch for pair in counted for batch in pair] == list("abcabcab")
    assert [taken[first] == taken[first + 1] for first in range(0, 12, 3)] == [True] * 4


def test_our_configuration_is_bert_base_with_the_defaults_of_the_program():
    config = training.configuration("bf16", 2, "--optimizer=adamw --learning_rate=0.5", task.TASKS[task.TEXT])
    assert (config.model.num_hidden_layers, config.model.hidden_size) == (12, 768)
    assert (config.model.vocab_size, config.batch.global_batch_size) == (task.VOCAB, 4)
    assert (config.data.max_seq_length, config.data.max_predictions_per_seq) == (512, 77)
    assert (config.compute.precision, config.compute.jit_compile) == ("bf16", "auto")
    assert (config.optimizer.optimizer, config.optimizer.learning_rate) == ("adamw", 0.5)


def test_a_wrong_extra_flag_is_refused():
    with pytest.raises(ConfigError, match="--optimiser"):
        training.configuration("bf16", 2, "--optimiser=lamb", task.TASKS[task.SYNTHETIC])


def packed_batch():
    """One row of 16 tokens with examples of 6 and 9, and one with a single example of 16."""
    lengths = np.array([[6, 9, 0], [16, 0, 0]])
    ids = np.arange(100, 132, dtype=np.int32).reshape(2, 16)
    ids[0, 15] = 0
    sequences = [[1] * 6 + [2] * 9 + [0], [1] * 16]
    return {
        "input_ids": ids,
        "input_mask": (ids > 0).astype(np.int32),
        "segment_ids": np.array([[0, 0, 0, 1, 1, 1] + [0] * 4 + [1] * 5 + [0], [0] * 8 + [1] * 8], np.int32),
        "masked_lm_positions": np.array([[2, 7, 14, 0], [3, 11, 0, 0]], np.int32),
        "masked_lm_ids": np.array([[12, 17, 24, 0], [33, 41, 0, 0]], np.int32),
        "masked_lm_weights": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.float32),
        "next_sentence_labels": np.array([[1, 0, 0], [1, 0, 0]], np.int32),
        "sequence_ids": np.array(sequences, np.int32),
        "sequence_starts": np.array([[0, 6, 0], [0, 0, 0]], np.int32),
        "sequence_weights": (lengths > 0).astype(np.float32),
    }


def test_padded_rows_are_the_examples_of_packed_rows():
    (batch,) = text.padded([packed_batch()], rows=3, slots=3)
    rows = {row["input_ids"][0]: row for row in ({name: batch[name][i] for name in batch} for i in range(3))}
    first, second, third = rows[100], rows[106], rows[116]
    assert second["input_ids"].tolist() == [*range(106, 115), *[0] * 7]
    assert (second["input_mask"].sum(), second["segment_ids"].tolist()) == (9, [0] * 4 + [1] * 5 + [0] * 7)
    assert second["masked_lm_positions"].tolist() == [1, 8, 0]
    assert second["masked_lm_ids"].tolist() == [17, 24, 0]
    assert second["masked_lm_weights"].tolist() == [1, 1, 0]
    assert first["masked_lm_positions"].tolist() == [2, 0, 0]
    assert third["masked_lm_positions"].tolist() == [3, 11, 0]
    assert [row["next_sentence_labels"] for row in (first, second, third)] == [1, 0, 1]


def test_real_samples_are_examples_and_padded_rows_hold_one(fake, tmp_path):
    found = {
        name: {"batches": str(tmp_path / f"{name}.npz"), "rows": 4, "tokens": tokens}
        # The warm-up takes the first two batches.
        for name, tokens in (("packed", [1500, 7, 2500]), ("padded", [1000, 9, 600]))
    }
    found["examples_per_row"] = 2.5
    group = [fake("tftrain", 2.0, task=task.TEXT), fake("one", 4.0, task=task.TEXT)]
    given = [table.of_text(row, found) for row in group]
    assert [row.settings["batches"] for row in given] == [found[name]["batches"] for name in ("packed", "padded")]
    ours, peer = (outcome.records[0] for outcome in table.take_turns(given, BenchConfig(steps=2), lambda _: None))
    assert (ours["samples_per_sec"], ours["real_samples_per_sec"]) == (2.0, 5.0)
    assert (peer["samples_per_sec"], peer["real_samples_per_sec"]) == (1.0, 1.0)
    assert (ours["real_tokens_per_sec"], peer["real_tokens_per_sec"]) == (1000.0, 200.0)
    assert ours["ratio_to_best_peer"] == 5.0
    assert (ours["task"], ours["speed_change_pct"]) == (task.TEXT, 400.0)


def test_the_batches_of_a_file_are_those_that_were_written(tmp_path):
    path = str(tmp_path / "packed.npz")
    task.write(path, [packed_batch(), packed_batch()])
    found = task.batches({"batches": path})
    assert len(found) == 2
    for name, value in packed_batch().items():
        np.testing.assert_array_equal(found[1][name], value)
    assert task.size({"batches": path, "task": task.TEXT}) == task.PeerTask(2, 16, 4, of_text=True)


@pytest.mark.parametrize(("longest", "length"), [(True, 9), (False, 16)])
def test_labels_are_those_of_the_masked_words_at_either_length(longest, length):
    (batch,) = text.padded([{name: value[:1] for name, value in packed_batch().items()}], rows=2, slots=3)
    found = torch_worker.model_inputs(batch, longest)
    assert {value.shape for value in found.values()} == {(2, length), (2,)}
    expected = np.full([2, length], torch_worker.IGNORED)
    long, short = np.argsort(-batch["input_mask"].sum(1))
    expected[long, [1, 8]], expected[short, 2] = [17, 24], 12
    np.testing.assert_array_equal(found["labels"], expected)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_packed_and_padded_text_train():
    tf_models("official")
    small = "--num_hidden_layers=1 --hidden_size=32 --num_attention_heads=2"
    names = ("text_512/tftrain/bf16", "text_512/tf_models_graph/bf16")
    group = [row for row in table.rows() if row.name in names]
    ours, peer = table.measure(group, BenchConfig(steps=1, extra_flags=small), lambda _: None)
    assert ours.error is peer.error is None
    assert ours.records[0]["real_samples_per_sec"] > 2 * ours.records[0]["samples_per_sec"]
    assert peer.records[0]["real_samples_per_sec"] == peer.records[0]["samples_per_sec"]


def test_examples_of_similar_length_share_a_batch():
    packed = [packed_batch(), {name: np.roll(value, 1, 0) for name, value in packed_batch().items()}]
    found = text.padded(packed, rows=2, slots=3, by_length=True)
    assert sorted(batch["input_mask"].sum(1).tolist() for batch in found) == [[6, 6], [9, 9], [16, 16]]


@pytest.mark.parametrize("work", [task.MODERN, task.MODERN_LONG_TEXT])
def test_our_modernbert_has_the_size_of_the_task(work):
    config = training.configuration("fp32", 2, table.OUR_FLAGS[task.MODERNBERT], task.TASKS[work])
    model = config.model
    assert (model.model_family, model.num_hidden_layers, model.hidden_size) == ("modernbert", 6, 512)
    assert config.data.max_seq_length == task.TASKS[work].length
