"""Divisions that a search finds: all there are, none that breaks a constraint, and the fastest first."""

import itertools
import time

from tests.plan.workloads import BERT, GPT, resized
from tftrain.plan.cluster import A100
from tftrain.plan.forecast import forecast
from tftrain.plan.search import SearchSpace, candidates, search
from tftrain.plan.system import systems

SMALL = {"num_hidden_layers": 6, "num_attention_heads": 8, "hidden_size": 512, "intermediate_size": 2048}


def test_every_division_that_multiplies_out_is_a_candidate():
    work = resized(GPT, **SMALL)._replace(global_batch=24)
    found = {(each.dp, each.tp, each.pp, each.micro_batch) for each in candidates(SearchSpace(work, A100, 2))}
    expected = set()
    for dp, tp, pp, micro in itertools.product(range(1, 17), range(1, 17), range(1, 7), range(1, 25)):
        whole = dp * tp * pp in (8, 16) and 8 % tp == 0 and 6 % pp == 0
        if whole and 24 % (dp * micro) == 0 and (8 // tp * micro) % 4 == 0:
            expected.add((dp, tp, pp, micro))
    assert found == expected


def test_every_zero_stage_is_tried_where_it_does_something():
    stages = {}
    for each in candidates(SearchSpace(BERT._replace(global_batch=64), A100, 2)):
        stages.setdefault((each.dp > 1, each.pp > 1), set()).add(each.zero_stage)
    assert stages == {(False, True): {0}, (True, True): {0, 1}, (True, False): {0, 1, 2, 3}}


def test_what_is_given_of_a_division_holds_and_the_rest_is_free():
    work = resized(GPT, **SMALL)._replace(global_batch=24)
    every = set(candidates(SearchSpace(work, A100, 2)))
    for given in ({"tp": 4}, {"pp": 2, "dp": 4}, {"micro_batch": 2}, {"micro_batches": 3}, {"checkpointing": "full"},
                  {"zero_stage": 1, "tp": 2}):  # fmt: skip
        found = set(candidates(SearchSpace(work, A100, 2, fixed=given)))
        expected = {each for each in every if all(getattr(each, name) == value for name, value in given.items())}
        assert found == expected
        assert 0 < len(found) < len(every)


def test_there_are_data_parallel_ranks_for_all_owners():
    work = BERT._replace(global_batch=64, split_strategy="greedy:4")
    assert min(each.dp for each in candidates(SearchSpace(work, A100, 2))) == 4


def test_a_batch_of_a_million_samples_takes_no_longer():
    begin = time.process_time()
    found = list(candidates(SearchSpace(BERT._replace(global_batch=10**9), A100, 1)))
    assert found
    assert max(each.micro_batch for each in found) == 64
    assert time.process_time() - begin < 1


def test_every_batch_of_a_ramp_divides():
    ramp = (16, 32, 48)
    found = list(candidates(SearchSpace(BERT._replace(global_batch=64), A100, 1, ramp)))
    assert found
    assert all(batch % (each.dp * each.micro_batch) == 0 for each in found for batch in (64, *ramp))


def test_the_fastest_that_fits_comes_first():
    work = resized(GPT, num_hidden_layers=24, hidden_size=4096, num_attention_heads=32, intermediate_size=16384)
    constants = systems()["megatron"]
    found = search(SearchSpace(work, A100, 4), constants, top=7)
    plans = [forecast(each, A100, constants) for each in candidates(SearchSpace(work, A100, 4))]
    fitting = [plan for plan in plans if plan.fits]
    assert 7 < found.fitting == len(fitting) < found.candidates == len(plans)
    assert all(plan.fits and plan.work.ranks <= 32 for plan in found.fastest)
    assert [plan.seconds for plan in found.fastest] == sorted(plan.seconds for plan in fitting)[:7]
