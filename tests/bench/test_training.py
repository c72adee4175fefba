"""A run's figures by hand arithmetic, its words when it fails, and rows against the base beside them."""

import pytest

from tftrain.bench.table import TableRow
from tftrain.bench.training import run
from tftrain.bench.training.alternation import in_alternation, record
from tftrain.bench.training.run import Figures
from tftrain.bench.worker import MeasureError

TINY = ["--synthetic_data", "--num_hidden_layers=1", "--hidden_size=16", "--num_attention_heads=2", "--vocab_size=101"]
TINY += ["--max_seq_length=16"]


def step(number, seconds, skipped=0, peak=1.0, rank=0):
    return {
        "step": number,
        "step_time_s": seconds,
        "global_batch_size": 12,
        "skipped_steps": skipped,
        "peak_memory_gb": peak,
        "peak_memory_rank": rank,
    }


ROWS = [
    step(1, None),
    step(2, 9.0),
    {"step": 2, "memory_rank": 1, "memory_weights_bytes": 7},
    step(3, 2.0),
    step(4, 100.0, skipped=1),
    step(5, 4.0, skipped=1),
    step(6, 3.0, skipped=1, peak=1.5, rank=3),
    {"step": 6, "eval_mlm_loss": 5.0},
]
SAID = "compute fp32\nstate bytes per rank: 400 (rank 2) to 900 (rank 1)\niteration 1"


def test_figures_leave_out_warm_up_and_skipped_steps():
    found = run.figures(ROWS, SAID, warm_up=2)
    assert found.step_seconds == [2.0, 4.0, 3.0]
    assert found.samples_per_sec == 12 / 3.0
    assert (found.peak_gb, found.peak_rank) == (1.5, 3)
    assert (found.state_gb_per_rank, found.state_rank) == (900e-9, 1)
    assert found.memory == {"memory_rank": 1, "memory_weights_bytes": 7}
    assert found.skipped_steps == 1


def test_state_of_equal_ranks_is_one_number():
    found = run.figures(ROWS, "state bytes per rank: 500\n", warm_up=2)
    assert (found.state_gb_per_rank, found.state_rank) == (500e-9, 0)


def test_without_a_step_that_counts_there_are_no_figures():
    with pytest.raises(MeasureError, match="of 5 steps, 5 of them to warm up, 1 were skipped"):
        run.figures(ROWS[:6], SAID, warm_up=5)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            [
                "[horovod] start",
                "tftrain.run: --a=1: expected 2",
                "tftrain.run: --help=FLAG explains a flag, --help=all lists all flags",
                "exit code 2",
            ],
            "exit code 9: --a=1: expected 2",
        ),
        (
            ["Traceback:", "ValueError: too   much", "more"],
            "exit code 9: ValueError: too much",
        ),
        (["tftrain.launch: --a=1: expected 2", "tftrain.launch: --help=FLAG"], "exit code 9: --a=1: expected 2"),
        (["a.b.FirstError: bad", "more", "tftrain.launch: rank 1 failed"], "exit code 9: a.b.FirstError: bad"),
        (["a", "the last line", ""], "exit code 9: the last line"),
        ([], "exit code 9: it printed nothing"),
    ],
)
def test_the_reason_is_the_programs_own_words_or_the_last_that_there_are(said, words):
    assert run.reason(said, 9) == words


def test_a_wrong_flag_is_the_reason():
    with pytest.raises(MeasureError, match="exit code 2: --precision=fp8: expected one of fp32, fp16, bf16"):
        run.measure([*TINY, "--precision=fp8"], ranks=1, steps=1)


def test_a_run_that_takes_too_long_is_ended():
    with pytest.raises(MeasureError, match="not done after 1 s"):
        run.measure(TINY, ranks=1, steps=1, seconds=1)


def figures(speed, peak=1.0):
    return Figures([12 / speed], speed, peak, 0, 1.0, 0, {}, 0)


BASE, OTHERS = TableRow("base", "g"), [TableRow(name, "g") for name in "abcd"]


def alternated(measured, every=3, rounds=1):
    """Compares OTHERS with BASE; `measured` holds by row the figures, or errors, of one measurement after the other."""
    order = []

    def measure(row):
        order.append(row.name)
        found = measured[row.name].pop(0)
        if isinstance(found, MeasureError):
            raise found
        return found

    return {each.row.name: each for each in in_alternation(BASE, OTHERS, measure, lambda _: None, every, rounds)}, order


def test_rows_are_compared_with_the_base_before_and_after_them():
    measured = {name: [figures(6.0, 2.0)] for name in "abcd"}
    measured["base"] = [figures(4.0, 1.0), figures(6.0, 1.5), figures(10.0, 2.5)]
    found, order = alternated(measured)
    assert order == ["base", "a", "b", "c", "base", "d", "base"]
    for name in "abc":  # against 4 and 6
        one = record(found[name])
        assert (one["samples_per_sec_change"], one["base_spread"]) == pytest.approx((20.0, 40.0))
        assert (one["peak_gb_change"], one["base_peak_spread"]) == pytest.approx((0.75, 0.5))
    last = record(found["d"])  # against 6 and 10
    assert (last["samples_per_sec_change"], last["base_spread"]) == pytest.approx((-25.0, 50.0))
    base = record(found["base"])
    assert (base["samples_per_sec"], base["base_samples_per_sec"]) == (6.0, [4.0, 6.0, 10.0])


def test_rows_take_turns_as_often_as_asked_and_the_median_counts():
    measured = {name: [figures(6.0)] * 3 for name in "bcd"}
    measured["a"] = [figures(9.0), figures(3.0), figures(8.0)]
    measured["base"] = [figures(speed) for speed in (1.0, 4.0, 5.0, 100.0, 6.0, 7.0, 8.0)]
    found, order = alternated(measured, rounds=3)
    assert order == ["base", *["a", "b", "c", "base"] * 3, *["d", "base"] * 3]
    one = record(found["a"])
    assert one["samples_per_sec"] == 8.0
    assert one["spread"] == pytest.approx(100 * (9 - 3) / 8)
    assert one["samples_per_sec_change"] == pytest.approx(100 * (8 / 4.5 - 1))
    assert record(found["base"])["samples_per_sec"] == 6.0


def test_a_row_that_fails_says_why_its_other_runs_count_and_the_rest_go_on():
    measured = {name: [figures(6.0)] * 2 for name in "cd"} | {"a": [MeasureError("it broke")]}
    measured |= {"b": [figures(5.0), MeasureError("it broke")], "base": [figures(6.0)] * 5}
    found, _ = alternated(measured, rounds=2)
    assert (found["a"].figures, found["a"].error) == (None, "it broke")
    assert (record(found["b"])["samples_per_sec"], found["b"].error) == (5.0, "it broke")
    assert record(found["c"])["samples_per_sec_change"] == 0


def test_where_the_base_fails_on_one_side_the_other_counts():
    measured = {name: [figures(6.0)] for name in "abcd"}
    measured["base"] = [figures(4.0), MeasureError("once"), MeasureError("twice")]
    found, _ = alternated(measured)
    assert record(found["a"])["samples_per_sec_change"] == pytest.approx(50.0)
    assert "samples_per_sec_change" not in record(found["d"])
    assert found["base"].error is None


def test_a_base_that_always_fails_says_why():
    measured = {name: [figures(6.0)] for name in "abcd"} | {"base": [MeasureError("no")] * 3}
    assert alternated(measured)[0]["base"].error == "no"


@pytest.mark.nightly
@pytest.mark.multirank
def test_two_ranks_train_and_are_measured():
    found = run.measure([*TINY, "--global_batch_size=4", "--split_opt_state"], ranks=2, steps=2)
    assert len(found.step_seconds) == 2
    assert found.samples_per_sec > 0
    assert 0.1 < found.peak_gb < 10
    weights = found.memory["memory_weights_bytes"]
    assert weights < 1e9 * found.state_gb_per_rank < 4 * weights
