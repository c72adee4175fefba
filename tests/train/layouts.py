"""What each rank does in `test_layouts`: the same training in many layouts, against one rank alone.

    horovodrun -np 4 --gloo python -m tests.train.layouts [CASE ...]     # without names, all that so many ranks can

The one-rank run is made in the same process, from the same seed and global batches, dropout on.
"""

import dataclasses
import functools
import sys
import time

import horovod.tensorflow as hvd
import numpy as np

from tests.checkpoint import states
from tests.train.test_step import BASE, batches
from tftrain.parallel import collectives
from tftrain.parallel import start as starting
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.start import start
from tftrain.parallel_config import BatchConfig, ParallelConfig
from tftrain.run_state import Run
from tftrain.train.step import TrainStep

STEPS, SAMPLES, ACCUMULATE = 20, 16, 4
LAMB = "reference_lamb"
FUSED = dict.fromkeys(("ln_impl", "attn_softmax_impl", "gelu_impl", "dropout_add_impl"), "fused")
# The key biases' gradients are nothing but roundings, which Adam turns into steps of full length. The vocabulary of 67
# divides by nothing.
MODEL = dataclasses.replace(BASE.model, use_bias_in_keys=False, num_hidden_layers=1, num_attention_heads=4)
WIDE = {"hidden_size": 2560, "num_hidden_layers": 1, "intermediate_size": 64}
# At 0.01 the losses of so wide a model jump up and down, and with them grow the roundings of sums in another order.
SLOWLY = 0.001
ZERO_1, ZERO_2 = {"split_opt_state": True}, {"split_opt_state": True, "split_grad_accum": True}


def case(
    accumulate=1,
    optimizer="reference_lamb",
    model=(),
    compute=(),
    grad_accum_dtype="fp32",
    learning_rate=0.01,
    **parallel,
):
    """Returns a configuration, of which `parallel` is all that the one-rank run does without."""
    return dataclasses.replace(
        BASE,
        model=dataclasses.replace(MODEL, **dict(model)),
        batch=BatchConfig(None, accumulate, SAMPLES, grad_accum_dtype=grad_accum_dtype),
        optimizer=dataclasses.replace(BASE.optimizer, optimizer=optimizer, learning_rate=learning_rate),
        compute=dataclasses.replace(BASE.compute, **dict(compute)),
        parallel=ParallelConfig(**parallel),
    )


def matrix():
    """Returns every way of dividing the state, with and without micro-batches, by tensor parallel size."""
    found = {}
    for tensor in (1, 2, 4):
        for accumulate in (1, ACCUMULATE):
            name = f"tp{tensor}-accumulate{accumulate}"
            found[f"{name}-zero0"] = case(accumulate, tensor_parallel_size=tensor)
            for stage, flags in (("zero1", ZERO_1), ("zero2", ZERO_2)):
                for strategy in ("even", "naive", "greedy:1"):
                    found[f"{name}-{stage}-{strategy}"] = case(
                        accumulate, tensor_parallel_size=tensor, state_split_strategy=strategy, **flags
                    )
    return found


CASES = {
    **matrix(),
    "zero1-even-adamw": case(**ZERO_1, optimizer="reference_adamw"),
    "zero1-even-lion": case(**ZERO_1, optimizer="lion", learning_rate=SLOWLY),
    "zero1-even-fused_adamw": case(**ZERO_1, optimizer="fused_adamw"),
    "zero1-even-sparse": case(**ZERO_1, compute={"sparse_as_dense": False}),
    "zero1-even-fused-accumulate": case(ACCUMULATE, **ZERO_1, optimizer="fused_lamb", model=FUSED),
    "zero1-even-wide": case(**ZERO_1, model=WIDE, learning_rate=SLOWLY),
    "zero2-even-accumulate-xla": case(ACCUMULATE, **ZERO_2, compute={"jit_compile": "true"}),
    "zero2-greedy:1-fused-accumulate": case(
        ACCUMULATE, **ZERO_2, optimizer="fused_lamb", state_split_strategy="greedy:1"
    ),
    "tp2-sparse-accumulate": case(ACCUMULATE, tensor_parallel_size=2, compute={"sparse_as_dense": False}),
    "tp2-zero1-even-fused": case(**ZERO_1, tensor_parallel_size=2, optimizer="fused_lamb", model=FUSED),
    "tp2-zero1-even-wide-geglu": case(
        **ZERO_1, tensor_parallel_size=2, model={**WIDE, "activation": "geglu"}, learning_rate=SLOWLY
    ),
    "tp4-zero2-fused_adamw-accumulate": case(
        ACCUMULATE, **ZERO_2, tensor_parallel_size=4, optimizer="fused_adamw", model=FUSED
    ),
    "zero2-bf16-accumulate": case(ACCUMULATE, **ZERO_2, compute={"precision": "bf16"}, model={"ln_dtype": "fp32"}),
    "zero1-greedy:3": case(**ZERO_1, state_split_strategy="greedy:3"),
    "tp2-zero1-greedy:2": case(**ZERO_1, tensor_parallel_size=2, state_split_strategy="greedy:2"),
    "tp2-zero1-full-checkpointing": case(
        ACCUMULATE, **ZERO_1, tensor_parallel_size=2, model=FUSED, compute={"activation_checkpointing": "full"}
    ),
    "zero0-fp16-wire": case(compute={"hvd_fp16_compression": True}),
    "zero1-fp16-wire": case(**ZERO_1, compute={"hvd_fp16_compression": True}),
    "zero2-fp16-buffers": case(ACCUMULATE, **ZERO_2, grad_accum_dtype="fp16"),
    "tp2-zero2-fp16-accumulate": case(
        ACCUMULATE, **ZERO_2, tensor_parallel_size=2, compute={"precision": "fp16"}, model=FUSED
    ),
}
# Of 16-bit weights, a gradient is a sum over many roundings of either sign: a few of them are left.
TOLERANCES = {"fp32": (1e-5, 1e-4), "bf16": (8 * 2**-8, 4 * 2**-8), "fp16": (8 * 2**-11, 4 * 2**-11)}


def narrowest(config):
    """Returns the narrowest format that gradients pass through."""
    if config.compute.hvd_fp16_compression or config.batch.grad_accum_dtype == "fp16":
        return "fp16"
    return config.compute.precision


def train(config, mesh):
    """Returns what every update reported, and the whole state before and after the first one."""
    run = Run(config.resolve(mesh.size), mesh)
    step = TrainStep(run)
    begin, end = mesh.data.share(SAMPLES)
    infos, states = [], [snapshot(run)]
    for number, batch in enumerate(batches(STEPS, samples=SAMPLES)):
        info = step({name: tensor[begin:end] for name, tensor in batch.items()})
        infos.append((*np.asarray(info.sums), float(info.grad_norm)))
        if number == 0:
            states.append(snapshot(run))
    return np.array(infos), states


def snapshot(run):
    """Returns a copy of the whole state on the chief; every rank takes part."""
    return {name: np.array(value, np.float64) for name, value in states.collected(run).items()}


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
    at_once, later = TOLERANCES[narrowest(config)]
    counts = expected[:, [1, 5]]  # masked words and samples, which nothing rounds
    np.testing.assert_array_equal(infos[:, [1, 5]], counts, err_msg=name)
    losses = [0, 3, -1]  # masked-LM and next-sentence loss, gradient norm
    np.testing.assert_allclose(infos[0, losses], expected[0, losses], rtol=at_once, err_msg=name)
    np.testing.assert_allclose(infos[:, losses[:2]], expected[:, losses[:2]], rtol=later, err_msg=name)
    (before, after), (expected_before, expected_after) = states, expected_states
    for tensor, value in expected_after.items():
        np.testing.assert_array_equal(before[tensor], expected_before[tensor], err_msg=f"{name}: {tensor}")
        if narrowest(config) != "fp32" and not tensor.startswith("adam_m"):
            continue  # Where a gradient is next to nothing, its roundings decide the direction of the first update.
        # Moments after one update are the gradients and their squares.
        change, expected_change = after[tensor] - before[tensor], value - expected_before[tensor]
        error = np.linalg.norm(change - expected_change)
        # Both weights that were updated are rounded to fp32, which may show where the update is small beside them.
        allowed = at_once * np.linalg.norm(expected_change) + 2 * 2**-24 * np.linalg.norm(value)
        assert error <= allowed, f"{name}: {tensor}: {error}, expected at most {allowed}"


def main(names):
    """Runs the named cases, by default all that so many ranks can, by the sizes of their tensor parallel groups."""
    mesh, launch = None, launch_from_environment()
    starting.value_of_rank_0 = lambda launch, name, value: value  # The launcher's store remembers the first start.
    names = names or [name for name in CASES if not CASES[name].parallel.problems(launch.size, {})]
    for name in sorted(names, key=lambda name: CASES[name].parallel.tensor_parallel_size):
        size = CASES[name].parallel.tensor_parallel_size
        if mesh is None or mesh.tensor_parallel_size != size:
            if mesh is not None:
                collectives.gather_numbers(mesh.world, 0.0, "end")  # Horovod ends on all ranks when one is done.
                hvd.shutdown()
            mesh = start(launch, 1, size)
        begin = time.perf_counter()
        compare(name, CASES[name], mesh)
        if mesh.is_chief:
            print(f"{name} agrees, {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
