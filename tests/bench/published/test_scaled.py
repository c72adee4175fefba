"""Every published row is in its table, and its flags are ones that a run accepts and that mean what its file says."""

import csv
import dataclasses
import random

import pytest

from tftrain.bench.config import BenchConfig
from tftrain.bench.published import rows, scale
from tftrain.bench.published.case import prepare, resolved
from tftrain.bench.published.scale import LocalMachine
from tftrain.bench.tables import TABLES
from tftrain.bench.worker import ROOT
from tftrain.config.fields import sections
from tftrain.config.train import TrainConfig
from tftrain.plan.system import Constants
from tftrain.plan.workload import reference_optimizer

REFERENCE = ROOT / "tftrain" / "bench" / "published" / "reference"
RANKS = 4
PUBLISHED = rows.by_table()


def cells():
    """Yields every row of the reference files as they stand."""
    for path in sorted(REFERENCE.glob("*.csv")):
        with path.open() as file:
            yield from csv.DictReader(file)


def table_cases(name, factor=1 / 16, ranks=RANKS):
    works = [each.workload for each in PUBLISHED[name]]
    size = scale.of_table(factor, works, ranks)
    return {each.name: prepare(each, size, ranks, BenchConfig()) for each in PUBLISHED[name]}


@pytest.fixture(scope="module")
def cases():
    """Every row at one scale, by name."""
    return {row: case for name in PUBLISHED for row, case in table_cases(name).items()}


@pytest.fixture(scope="module")
def configs(cases):
    """What the flags of every row come to; rows with the same flags share it."""
    known = {}
    for case in cases.values():
        key = (tuple(case.flags), case.work.ranks)
        if key not in known:
            known[key] = resolved(case)
    return {name: known[tuple(case.flags), case.work.ranks] for name, case in cases.items()}


def test_every_row_of_the_reference_files_is_in_its_table():
    own = {}
    for each in cells():
        own.setdefault(each["table"], []).append(each["row"])
    for name, names in own.items():
        listed = [row.name for row in TABLES[name].rows]
        assert listed[-len(names) :] == names
        extra = ["large_precision/04"] if name.startswith("large_") and name != "large_precision" else []
        assert listed[: -len(names)] == extra
    assert set(own) <= set(TABLES)


def test_the_base_of_the_large_tables_is_the_one_that_its_note_names():
    (noted,) = (each["row"] for each in cells() if 'the row "base"' in each.get("note", ""))
    assert noted == rows.LARGE_BASE


def values(config: TrainConfig) -> dict[str, str]:
    found = {name: value for section in sections(config) for name, value in vars(section).items()}
    return {name: str(value).lower() for name, value in found.items()}


def test_every_lever_of_every_row_reaches_the_run_or_is_in_its_note(cases, configs):
    excused = []
    for each in cells():
        name, given = each["row"], dict(pair.split("=") for pair in each.get("levers", "").split())
        reached = values(configs[name])
        for lever, value in given.items():
            if reached.get(lever) in (value, reference_optimizer(value)):
                continue
            excused.append(lever)
            word = {"state_split_strategy": value}.get(lever, lever)
            assert lever == "tensor_parallel_size" or word in cases[name].note, (name, lever)
    # As many tensor parallel ranks as fit here.
    assert set(excused) == {"tokenizer_type", "state_split_strategy", "tensor_parallel_size"}


def test_what_a_run_can_not_be_is_in_the_note(cases, configs):
    for each in cells():
        note = cases[each["row"]].note
        assert configs[each["row"]].model.is_causal == ("levers" not in each)
        assert configs[each["row"]].model.norm_position == ("post" if "levers" in each else "pre")
        assert ("resource variables are on" in note) == ("levers" in each)
        if "levers" not in each and int(each["dp"]) * int(each["tp"]) * int(each["pp"]) > 2 * 2 * RANKS:
            assert "times as many ranks there" in note
        assert each.get("note", "") in note


def test_what_is_assumed_of_a_row_is_in_its_note(cases):
    words = {
        name: [part for part in case.note.split("; ") if part.endswith("not stated: assumed")]
        for name, case in cases.items()
    }
    assumed = ["model", "batch", "precision", "XLA"]
    assert words["local_fused/02"] == [f"{what} not stated: assumed" for what in assumed]
    assert words["large_precision/01"] == ["batch not stated: assumed"]
    given = cases["local_fused/02"].flags
    assert {"--precision=fp16", "--jit_compile=true"} <= set(given)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["large_other", "prepretrain_5p75b", "gpt_low_tp"])
def test_other_rank_counts_are_accepted_too(name, ranks):
    for case in table_cases(name, 1 / 32, ranks).values():
        assert case.work.ranks <= ranks
        resolved(case)


# 3 ranks do not divide the heads: such a run is refused, and not one of other heads.
@pytest.mark.parametrize("ranks", [3, 6, 8])
def test_full_scale_changes_nothing_but_ranks_and_stages(ranks):
    for name in ("large_other", "gpt_heads", "sweep_multi_node"):
        for case in table_cases(name, 1.0, ranks).values():
            given = case.published.workload
            for field in ("seq", "micro_batch", "micro_batches"):
                assert getattr(case.work, field) == getattr(given, field), (case.published.name, field)
            # A pipeline may change the number of layers.
            layers = case.work.model.layers
            assert case.work.model == dataclasses.replace(given.model, layers=layers), case.published.name
            assert abs(case.work.model.layers - given.model.layers) < case.work.pp * case.work.chunks


def test_scaled_rows_keep_head_size_and_the_differences_of_their_table(cases):
    def sizes(*names):
        return [
            (cases[name].work.model.layers, cases[name].work.model.width, cases[name].work.micro_batch)
            for name in names
        ]

    for case in cases.values():
        given, work = case.published.workload, case.work
        assert work.model.width * given.model.attention_heads == given.model.width * work.model.attention_heads
        assert work.model.attention_heads % work.tp == 0
        assert work.model.inner == 4 * work.model.width
    # 14400 wide with heads of 150: a sixteenth is 900.
    assert [size[1:] for size in sizes("gpt_topology/01", "gpt_topology/09")] == [(900, 1), (900, 1)]
    assert [size[2] for size in sizes(*(f"gpt_topology_mbs/0{n}" for n in range(1, 5)))] == [1, 2, 4, 8]
    assert [size[2] for size in sizes("deeper/01", "deeper/02", "deeper/05")] == [1, 4, 3]
    assert {cases[f"gpt_heads/{n:02}"].work.model.width for n in range(1, 7)} == {1792}


def workload(**changes):
    return PUBLISHED["deeper"][0].workload._replace(**changes)


def test_divisions_keep_both_kinds_of_ranks_where_there_are_enough():
    draw = random.Random(7)
    for _ in range(300):
        dp, tp, ranks = draw.randint(1, 64), draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4, 6, 8, 16])
        here_dp, here_tp, here_pp = scale.division(workload(dp=dp, tp=tp), ranks)
        assert here_pp == 1
        assert here_dp * here_tp == min(ranks, dp * tp)
        assert (here_tp > 1) == (tp > 1 and ranks > 1)
        if ranks > 3:
            assert (here_dp > 1) == (dp > 1)
    assert scale.division(workload(dp=8, tp=8), 16) == (4, 4, 1)
    assert scale.division(workload(dp=2, tp=4), 8) == (2, 4, 1)
    assert scale.division(workload(dp=8, tp=4, pp=12), 16) == (2, 2, 4)
    assert scale.division(workload(dp=1, tp=8, pp=35), 16) == (1, 2, 8)
    assert scale.division(workload(dp=8, tp=1, pp=4), 4) == (2, 1, 2)


def test_owners_stay_in_order_and_within_the_ranks():
    size = scale.of_table(1.0, [workload()], 4)

    def owners(count, ranks):
        row = PUBLISHED["deeper"][0]._replace(workload=workload(dp=48, split_strategy=f"greedy:{count}"))
        _, work = scale.scaled(row, size, ranks)
        return int(work.split_strategy.removeprefix("greedy:"))

    assert [owners(count, 4) for count in (1, 8, 16, 48)] == [1, 2, 3, 4]
    assert [owners(count, 2) for count in (1, 8, 16, 48)] == [1, 1, 2, 2]


def machine(gb=1e3, flops=1e15):
    return LocalMachine(4, gb, flops, Constants(reserve_gb=0.6), gpu=False)


def test_auto_is_the_largest_power_that_fits_memory_and_time():
    rows = PUBLISHED["large_precision"]
    works = [row.workload for row in rows]
    assert scale.choose("auto", rows, machine()).factor == 1
    for short in (machine(gb=6), machine(flops=1e10)):
        found = scale.choose("auto", rows, short).factor
        assert 1 / 64 < found < 1
        larger = [scale.scaled(row, scale.of_table(2 * found, works, 4), 4)[1] for row in rows]
        fits = [scale.work_fits(work, short) for work in larger]
        quick = [3 * 2 * work.model.layers * 12 * work.model.width**2 * work.seq * work.global_batch for work in larger]
        assert not all(fits) or max(quick) > 0.3 * scale.MAX_SECONDS * short.flops
    assert scale.choose("full", rows, machine(gb=1)).factor == 1
    assert scale.choose("0.5", rows, machine(gb=1)).factor == 0.5
