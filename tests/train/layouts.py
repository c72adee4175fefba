"""What each rank does in `test_layouts`: the same training in many layouts, against one rank alone.

    horovodrun -np 4 python -m tests.train.layouts [CASE ...]     # all of them without names

The one-rank run is made in the same process, from the same seed and global batches, dropout on.
"""

import dataclasses
import functools
import sys
import time

import horovod.tensorflow as hvd
import numpy as np

from tests.train.test_step import BASE, SAMPLES, accumulating, batches
from tftrain.config import ParallelConfig
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Mesh, start
from tftrain.train.session import Run
from tftrain.train.step import TrainStep

STEPS = 20
FUSED = dict.fromkeys(("ln_impl", "attn_softmax_impl", "gelu_impl", "dropout_add_impl"), "fused")
# The key biases' gradients are nothing but roundings, which Adam turns into steps of full length.
PLAIN = dataclasses.replace(BASE, model=dataclasses.replace(BASE.model, use_bias_in_keys=False))
FOUR_HEADS = dataclasses.replace(PLAIN, model=dataclasses.replace(PLAIN.model, num_attention_heads=4))


def case(config=PLAIN, accumulate=1, optimizer="lamb", model=(), compute=(), grad_accum_dtype="fp32", **parallel):
    """Returns a configuration, of which `parallel` is all that the one-rank run does without."""
    config = accumulating(accumulate, config)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **dict(model)),
        batch=dataclasses.replace(config.batch, grad_accum_dtype=grad_accum_dtype),
        optimizer=dataclasses.replace(config.optimizer, optimizer=optimizer),
        compute=dataclasses.replace(config.compute, **dict(compute)),
        parallel=ParallelConfig(**parallel),
    )


ZERO_1, ZERO_2 = {"split_opt_state": True}, {"split_opt_state": True, "split_grad_accum": True}
CASES = {
    "dp": case(),
    "dp-accumulate": case(accumulate=3),
    "zero1-even": case(**ZERO_1),
    "zero1-even-adamw": case(**ZERO_1, optimizer="adamw"),
    "zero1-even-fused-accumulate": case(**ZERO_1, accumulate=3, optimizer="fused_lamb", model=FUSED),
    "zero1-even-fused_adamw": case(**ZERO_1, optimizer="fused_adamw"),
    "zero1-even-sparse": case(**ZERO_1, compute={"sparse_as_dense": False}),
    "zero1-naive": case(**ZERO_1, state_split_strategy="naive"),
    "zero1-greedy:1": case(**ZERO_1, state_split_strategy="greedy:1"),
    "zero2-even": case(**ZERO_2),
    "zero2-even-accumulate": case(**ZERO_2, accumulate=3),
    "zero2-even-accumulate-xla": case(**ZERO_2, accumulate=3, compute={"jit_compile": "true"}),
    "zero2-greedy:2-fused-accumulate": case(
        **ZERO_2, accumulate=3, optimizer="fused_lamb", state_split_strategy="greedy:2"
    ),
    "tp2": case(tensor_parallel_size=2),
    "tp2-sparse-accumulate": case(tensor_parallel_size=2, accumulate=3, compute={"sparse_as_dense": False}),
    "tp2-zero1-even-fused": case(**ZERO_1, tensor_parallel_size=2, optimizer="fused_lamb", model=FUSED),
    "tp2-zero2-even-accumulate": case(**ZERO_2, tensor_parallel_size=2, accumulate=3),
    "tp2-zero2-greedy:1-adamw": case(
        **ZERO_2, tensor_parallel_size=2, optimizer="adamw", state_split_strategy="greedy:1"
    ),
    "tp4": case(FOUR_HEADS, tensor_parallel_size=4),
    "tp4-zero1-fused-accumulate": case(
        FOUR_HEADS, **ZERO_1, tensor_parallel_size=4, accumulate=3, optimizer="fused_lamb", model=FUSED
    ),
    "zero2-naive-accumulate": case(**ZERO_2, accumulate=3, state_split_strategy="naive"),
}


def train(config, mesh):
    """Returns what every update reported, and the whole state before and after the first one."""
    run = Run(config.resolve(mesh.size), mesh)
    step = TrainStep(run.config, run.model, run.optimizer, run.loss_scale, run.progress, mesh, run.jit)
    begin, end = mesh.data.share(SAMPLES)
    infos, states = [], [snapshot(run)]
    for number, batch in enumerate(batches(STEPS)):
        info = step({name: tensor[begin:end] for name, tensor in batch.items()})
        infos.append((*np.asarray(info.sums), float(info.grad_norm)))
        if number == 0:
            states.append(snapshot(run))
    return np.array(infos), states


def snapshot(run):
    """Returns a copy of the whole state; every rank takes part."""
    return {name: np.array(value, np.float64) for name, value in run.collect().items()}


@functools.cache
def alone(config):
    """Trains on this rank alone, without dividing anything."""
    return train(dataclasses.replace(config, parallel=ParallelConfig()), Mesh())


def compare(name, config, mesh):
    """Trains in a layout and, on the chief, compares with one rank alone."""
    infos, states = train(config, mesh)
    if not mesh.is_chief:
        return
    expected, expected_states = alone(dataclasses.replace(config, parallel=ParallelConfig()))
    sums = slice(0, -1)
    np.testing.assert_allclose(infos[0], expected[0], rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(infos[:, sums], expected[:, sums], rtol=1e-4, err_msg=name)
    (before, after), (expected_before, expected_after) = states, expected_states
    for tensor, value in expected_after.items():
        np.testing.assert_array_equal(before[tensor], expected_before[tensor], err_msg=f"{name}: {tensor}")
        # Moments after one update are the gradients and their squares.
        change, expected_change = after[tensor] - before[tensor], value - expected_before[tensor]
        error = np.linalg.norm(change - expected_change)
        assert error <= 1e-5 * np.linalg.norm(expected_change), f"{name}: {tensor}: {error}"


def main(names):
    """Runs the named cases, all by default, by the sizes of their tensor parallel groups."""
    mesh, launch = None, launch_from_environment()
    for name in sorted(names or CASES, key=lambda name: CASES[name].parallel.tensor_parallel_size):
        size = CASES[name].parallel.tensor_parallel_size
        if mesh is None or mesh.tensor_parallel_size != size:
            if mesh is not None:
                hvd.shutdown()
            mesh = start(launch, 1, size)
        begin = time.perf_counter()
        compare(name, CASES[name], mesh)
        if mesh.is_chief:
            print(f"{name} agrees, {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
