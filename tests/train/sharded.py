"""What each rank does in `test_sharded`: trains with sharded weights and, on the same ranks, with whole ones.

horovodrun -np 2 --gloo python -m tests.train.sharded [CASE ...]
"""

import dataclasses
import sys

import horovod.tensorflow as hvd
import numpy as np

from tests.checkpoint import states
from tests.train.layouts import (
    END,
    FUSED,
    GPT,
    LLAMA,
    MODERN,
    SAMPLES,
    ZERO_3,
    batches,
    case,
    coarsest,
    connected,
    documents,
    sizes,
    token_batches,
    two_in_a_row,
)
from tftrain.inputs.inputs import Inputs
from tftrain.parallel import collectives
from tftrain.parallel import start as starting
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.start import start
from tftrain.state.run_state import Run
from tftrain.train import held_out
from tftrain.train.step import TrainStep

STEPS = 3
FULL, XLA = {"activation_checkpointing": "full"}, {"jit_compile": "true"}
BF16 = {"precision": "bf16"}
TWO_LAYERS, TP2 = {"num_hidden_layers": 2}, {"tensor_parallel_size": 2}
CASES = {
    "bert": case(model=TWO_LAYERS, **ZERO_3),
    "llama": case(model=LLAMA | {"num_hidden_layers": 3}, optimizer="reference_adamw", **ZERO_3),
    "accumulate-full-packed": case(4, model=TWO_LAYERS, packed=True, compute=FULL, **ZERO_3),
    "gpt": case(2, model=GPT | TWO_LAYERS, packed=True, prefetch_blocks=0, **ZERO_3),
    "modernbert-lion": case(model=MODERN | {"num_hidden_layers": 4}, optimizer="lion", prefetch_blocks=2, **ZERO_3),
    "fused-bf16": case(2, model=FUSED | TWO_LAYERS, optimizer="fused_lamb", compute=BF16, **ZERO_3),
    "fp16-xla-full": case(model=TWO_LAYERS, compute=FULL | XLA | {"precision": "fp16"}, **ZERO_3),
    "xla-llama": case(2, model=LLAMA | {"num_hidden_layers": 3}, compute=XLA, **ZERO_3),
    "greedy": case(model=TWO_LAYERS, **ZERO_3, state_split_strategy="greedy:2"),
    "naive-selective": case(
        model=TWO_LAYERS,
        compute={"activation_checkpointing": "selective", "hvd_fp16_compression": True},
        **ZERO_3,
        state_split_strategy="naive",
    ),
    "tp2": case(2, model=TWO_LAYERS, **ZERO_3, **TP2),
    "tp2-sequence-llama-full": case(
        model=LLAMA | {"num_hidden_layers": 3}, compute=FULL, sequence_parallel=True, **ZERO_3, **TP2
    ),
    "host-of-one": case(model=TWO_LAYERS, split_group="host", **ZERO_3),
    "host": case(2, model=TWO_LAYERS, split_group="host", **ZERO_3),
    "host-tp2": case(model=TWO_LAYERS, split_group="host", **ZERO_3, **TP2),
}
# Sums of a tied table's two gradients are rounded in another order, so that a loss may be the next fp32 number.
TOLERANCES = {"fp32": 2**-23, "bf16": 2**-8, "fp16": 2**-11}


def train(config, mesh):
    """Returns the run, and the task's sums, skipped updates and the gradient norm of each step."""
    run = Run(config.resolve(mesh.size), mesh)
    step = TrainStep(run)
    begin, end = mesh.data.share(SAMPLES)
    infos = []
    for batch in (token_batches if config.model.is_decoder else batches)(STEPS, samples=SAMPLES):
        if config.data.data_dir:
            is_decoder = config.model.is_decoder
            batch = batch | documents(batch["input_ids"], END) if is_decoder else two_in_a_row(batch)
        info = step({name: tensor[begin:end] for name, tensor in batch.items()})
        infos.append((*np.asarray(info.sums), float(info.skipped), float(info.grad_norm)))
    return run, np.array(infos)


def evaluation(run, config):
    """Returns the means of the held-out split; none if the data is no split."""
    return {} if config.data.data_dir else held_out.of_run(run, run.config, Inputs.open(run.config).data[0])().means


def flat(state):
    """Returns all weights of a state in one vector."""
    weights = [np.ravel(value) for name, value in sorted(state.items()) if name.startswith("master/")]
    return np.concatenate(weights).astype(np.float64)


def compare(name, config, mesh):
    """Trains with shards and with whole weights and compares losses, evaluations and final states."""
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, eval_examples=72))
    run, infos = train(config, mesh)
    assert run.shards_weights == (name != "host-of-one")
    held = [variable.numpy().size for variable in run.task.model.named_variables().values()]
    assert any(held) != run.shards_weights
    means, state = evaluation(run, config), states.collected(run)
    parallel = dataclasses.replace(config.parallel, split_weights=False, prefetch_blocks=1, split_group="all")
    whole = dataclasses.replace(config, parallel=parallel)
    other, expected = train(whole, dataclasses.replace(mesh, split_size=None))
    expected_means, expected_state = evaluation(other, whole), states.collected(other)
    if not mesh.is_chief:
        return
    tolerance = TOLERANCES[coarsest(config)]
    losses, norms = infos[:, :-1], infos[:, -1]
    np.testing.assert_allclose(losses, expected[:, :-1], rtol=tolerance, err_msg=name)
    np.testing.assert_allclose(norms, expected[:, -1], rtol=10 * tolerance, err_msg=name)
    weights, expected_weights = (flat(each) for each in (state, expected_state))
    error = np.linalg.norm(weights - expected_weights) / np.linalg.norm(expected_weights)
    assert error <= tolerance, f"{name}: the weights differ by {error}"
    assert means.keys() == expected_means.keys()
    np.testing.assert_allclose(list(means.values()), list(expected_means.values()), rtol=tolerance, err_msg=name)
    difference = np.max(np.abs(losses - expected[:, :-1]) / expected[:, :-1].clip(1))
    print(f"{name} agrees: losses within {difference:.0e}, weights {error:.0e}", flush=True)


def main(names):
    """Runs the named cases, on meshes of their own."""
    launch, mesh, before = launch_from_environment(), None, None
    starting.value_of_rank_0 = lambda launch, name, value: value  # The launcher's store remembers the first start.
    for name in sorted(names, key=lambda name: (sizes(CASES[name]), CASES[name].parallel.split_group)):
        group = CASES[name].parallel.split_group
        place = (*sizes(CASES[name]), group)
        if place != before:
            if mesh is not None:
                hvd.shutdown()
            of_host = launch.size // 2  # There are two hosts.
            local = launch._replace(local_rank=launch.rank % of_host, local_size=of_host) if group == "host" else launch
            mesh, before = start(local, 1, connected(CASES[name].parallel)), place
        compare(name, CASES[name], mesh)
        collectives.gather_numbers(mesh.world, 0.0, "end")  # Horovod ends on all ranks when one is done.


if __name__ == "__main__":
    main(sys.argv[1:])
