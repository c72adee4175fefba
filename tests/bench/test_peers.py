"""Implementations in turns, and what is made of their seconds."""

import sys

import numpy as np
import pytest

from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.peers import table, task, training
from tftrain.bench.table import Row
from tftrain.fields import ConfigError

MODULE = """
from tftrain.bench.peers import task
from tftrain.bench.worker import serve

def build(settings):
    if settings["precision"] == "broken":
        import a_module_that_does_not_exist
    def take(count):
        if count == "products":
            return [settings["seconds"] / 4]
        with open(settings["log"], "a") as log:
            log.write(f"{settings['implementation']} {count}\\n")
        return [9.0] + [settings["seconds"]] * (count - 1)
    return take

serve(build)
"""


def row(name, **settings):
    return Row(f"{name}/bf16", "bf16", {"implementation": name, "precision": "bf16", **settings})


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_peer.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(host, "available_memory_gb", lambda: None)

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


def test_the_share_of_products_is_that_of_the_rows_that_know_their_products(fake):
    group = [fake("tftrain", 2.0, knows_products=True), fake("one", 4.0)]
    found = [outcome.records[0] for outcome in table.measure(group, BenchConfig(steps=3), lambda _: None)]
    assert [record["share_of_products"] for record in found] == [0.25, None]


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
    assert table.concurrent_rows(group, None) == table.concurrent_rows(group, 3 * table.MEMORY_GB) == [group]
    assert table.concurrent_rows(group, 3 * table.MEMORY_GB - 1) == [[ours, one], [ours, two]]
    assert table.concurrent_rows([one, two], 1.0) == [[one, two]]


def test_in_pairs_our_process_stays_and_measures_with_every_peer(fake, tmp_path, monkeypatch):
    group = [fake("tftrain", 2.0), fake("one", 4.0), fake("two", 8.0)]
    monkeypatch.setattr(host, "available_memory_gb", lambda: 2 * table.MEMORY_GB)
    found = {outcome.row: outcome.records[0] for outcome in table.measure(group, BenchConfig(steps=2), lambda _: None)}
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [
        *("tftrain 3", "one 3", "tftrain 3", "one 3"),
        *("two 3", "tftrain 3", "two 3"),
    ]
    assert [record["steps"] for record in found.values()] == [4, 2, 2]


def test_only_torch_rows_run_in_the_interpreter_of_the_flag(monkeypatch):
    started = []
    monkeypatch.setattr(table, "Worker", lambda module, settings, python: started.append((module, python)))
    for other in table.rows()[:5]:
        table.start(other, BenchConfig(torch_python="/torch/python"))
    assert [python for _, python in started] == [sys.executable] * 3 + ["/torch/python"] * 2


def test_the_batch_is_full_and_masks_distinct_positions():
    batch = task.batch()
    assert batch["input_ids"].shape == (8, 128)
    assert batch["segment_ids"].mean() == 0.5
    assert (np.diff(batch["masked_lm_positions"], axis=1) > 0).all()
    assert all(value.dtype in (np.int32, np.float32) for value in batch.values())


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(FloatingPointError, match="nan"):
        task.turns(lambda: float("nan"))(1)


def test_our_configuration_is_bert_base_with_the_defaults_of_the_program():
    config = training.configuration("bf16", 2, "--optimizer=adamw --learning_rate=0.5")
    assert (config.model.num_hidden_layers, config.model.hidden_size) == (task.LAYERS, task.HIDDEN)
    assert (config.model.vocab_size, config.batch.global_batch_size) == (task.VOCAB, task.BATCH)
    assert (config.compute.precision, config.compute.jit_compile) == ("bf16", "auto")
    assert (config.optimizer.optimizer, config.optimizer.learning_rate) == ("adamw", 0.5)


def test_a_wrong_extra_flag_is_refused():
    with pytest.raises(ConfigError, match="--optimiser"):
        training.configuration("bf16", 2, "--optimiser=lamb")


@pytest.mark.slow
def test_our_worker_trains_a_small_model():
    small = "--num_hidden_layers=1 --hidden_size=32 --num_attention_heads=2 --vocab_size=101"
    group = [next(row for row in table.rows() if row.name == "tftrain/bf16")]
    (outcome,) = table.measure(group, BenchConfig(steps=1, extra_flags=small), lambda _: None)
    assert outcome.error is None
    assert outcome.records[0]["samples_per_sec"] > 0
