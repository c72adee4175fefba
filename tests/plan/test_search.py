"""Divisions that a search finds: all there are, none that breaks a constraint, and the fastest first."""

import itertools

from tests.plan.works import BERT, GPT
from tftrain.plan import levers
from tftrain.plan.cluster import A100, CLUSTERS
from tftrain.plan.forecast import forecast
from tftrain.plan.search import candidates, search
from tftrain.plan.system import systems


def test_every_division_that_multiplies_out_is_a_candidate():
    work = GPT.replaced(layers=6, heads=8, hidden=512, inner=2048, global_batch=24)
    found = {(each.dp, each.tp, each.pp, each.micro_batch) for each in candidates(work, A100, 2)}
    expected = set()
    for dp, tp, pp, micro in itertools.product(range(1, 17), range(1, 17), range(1, 7), range(1, 25)):
        whole = dp * tp * pp in (8, 16) and 8 % tp == 0 and 6 % pp == 0
        if whole and 24 % (dp * micro) == 0 and (8 // tp * micro) % 4 == 0:
            expected.add((dp, tp, pp, micro))
    assert found == expected


def test_every_batch_of_a_ramp_divides():
    ramp = (16, 32, 48)
    found = list(candidates(BERT.replaced(global_batch=64), A100, 1, ramp))
    assert found
    assert all(batch % (each.dp * each.micro_batch) == 0 for each in found for batch in (64, *ramp))


def test_the_fastest_that_fits_comes_first():
    work = GPT.replaced(layers=24, hidden=4096, heads=32, inner=16384)
    constants = systems()["megatron"]
    found = search(work, A100, constants, 4)
    assert 0 < len(found.fitting) < found.candidates
    assert all(plan.fits and plan.work.ranks <= 32 for plan in found.fitting)
    seconds = [plan.seconds for plan in found.fitting]
    assert seconds == sorted(seconds)
    best = min(
        (plan for plan in (forecast(each, A100, constants) for each in candidates(work, A100, 4)) if plan.fits),
        key=lambda plan: plan.seconds,
    )
    assert found.fitting[0].seconds == best.seconds


def test_remedies_fit_keep_the_batch_and_come_fastest_first():
    cluster, constants = CLUSTERS["a100_40gb"], systems()["encoder"]
    work = BERT.replaced(
        layers=48, hidden=2048, heads=32, inner=8192, seq=512, micro_batch=32, global_batch=256, dp=8,
        precision="bf16", fused=frozenset(), compiled=True,
    )  # fmt: skip
    assert not forecast(work, cluster, constants).fits
    found = levers.cheapest(work, cluster, constants)
    assert found
    assert all(remedy.plan.fits and remedy.plan.work.global_batch == 256 for remedy in found)
    assert all(remedy.plan.work.ranks == 8 for remedy in found)
    assert [remedy.plan.seconds for remedy in found] == sorted(remedy.plan.seconds for remedy in found)


def test_two_levers_are_tried_where_one_is_not_enough():
    cluster, constants = CLUSTERS["a100_40gb"], systems()["encoder"]
    work = BERT.replaced(
        layers=48, hidden=3072, heads=48, inner=12288, seq=512, micro_batch=32, global_batch=256, dp=8,
        precision="fp32", fused=frozenset(), compiled=True,
    )  # fmt: skip
    found = levers.cheapest(work, cluster, constants)
    assert found
    assert all(remedy.flags.count("--") == 2 for remedy in found)
