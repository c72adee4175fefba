"""Table transports: which runs a row has, and what it makes of their steps."""

import pytest

from tftrain.bench import transports
from tftrain.bench.config import BenchConfig


def test_a_row_has_the_median_step_of_each_transport_in_turn(monkeypatch):
    runs = []

    def train(flags, ranks, steps, **options):
        runs.append((flags[-1], ranks, steps))
        seconds = len(runs) * (1.0 if "horovod" in flags[-1] else 0.25)
        return [{"step": step, "step_time_s": 99.0 if step <= transports.WARM_UP else seconds} for step in range(9)], ""

    monkeypatch.setattr(transports, "train", train)
    row = next(row for row in transports.TRANSPORTS.rows if row.name == "tp4/small/bf16")
    (found,) = transports.records(row, BenchConfig(rounds=2, steps=3), print)
    both = ["--group_transport=horovod", "--group_transport=tensorflow"]
    assert runs == [(flag, 4, transports.WARM_UP + 3) for flag in both * 2]
    # Of Horovod's runs 1 and 3 seconds a step, of TensorFlow's 2 and 4 quarters.
    assert found["horovod_ms"] == pytest.approx(2000)
    assert found["tensorflow_ms"] == pytest.approx(750)
    assert found["ratio"] == pytest.approx(0.375)
