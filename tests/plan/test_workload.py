"""What a run's configuration amounts to: the planner's rules are those of the trainer."""

import dataclasses

import pytest

from tftrain.config import ComputeConfig, TrainConfig
from tftrain.parallel_config import BatchConfig, ParallelConfig
from tftrain.plan.workload import from_config

BATCH = BatchConfig(micro_batch_size=4, grad_accum_steps=1, global_batch_size=8)


def workload(config, gpu=True, **options):
    return from_config(dataclasses.replace(config, batch=BATCH), 2, gpu=gpu, **options)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("jit_compile", ["auto", "true", "false"])
def test_xla_is_planned_where_the_trainer_compiles_and_grappler_where_it_does_not(jit_compile, tp):
    config = TrainConfig(
        parallel=ParallelConfig(tensor_parallel_size=tp),
        compute=ComputeConfig(jit_compile=jit_compile, memory_optimization="heuristics"),
    )
    for gpu in (True, False):
        work = workload(config, gpu)
        assert work.compiled == (config.compiles(gpu) and gpu)
        assert work.grappler == ("none" if config.compiles(gpu) else "heuristics")
    assert workload(config).compiled == ({"auto": tp == 1, "true": True, "false": False}[jit_compile])
