"""What each of four ranks does in `test_replicas`: two tensor parallel ranks whose replicated gradients differ.

On a GPU a gradient such as that of a bias changes in its last bits from call to call. Here every rank multiplies the
gradients of the variables that tensor parallel ranks hold whole by a number of its own. After some steps, weights and
moments must be equal to the last bit.
"""

import sys
import zlib

import numpy as np

from tests.train.layouts import ACCUMULATE, FUSED, SAMPLES, ZERO_1, ZERO_2, case
from tests.train.test_step import batches
from tftrain.config.parallel import ParallelConfig
from tftrain.parallel import collectives
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.start import start
from tftrain.state.run_state import Run
from tftrain.train.gradients import Accumulation
from tftrain.train.step import TrainStep

STEPS = 3
TWO = {"tensor_parallel_size": 2}
CASES = {
    # Parts of buckets; micro-batches are reduced one by one.
    "zero2-accumulate": case(ACCUMULATE, **TWO, **ZERO_2),
    # Whole state, whole tensors of owners, sparse rows, and other combinations.
    "zero0": case(**TWO),
    "sparse-accumulate": case(ACCUMULATE, **TWO, compute={"sparse_as_dense": False}),
    "zero1-greedy": case(**TWO, **ZERO_1, state_split_strategy="greedy:2"),
    "zero1-fused": case(**TWO, **ZERO_1, optimizer="fused_lamb", model=FUSED),
    "zero1-naive": case(**TWO, **ZERO_1, state_split_strategy="naive"),
    "zero2-fp16-accumulate": case(ACCUMULATE, **TWO, **ZERO_2, compute={"precision": "fp16"}),
}


def digests(run):
    """Returns a checksum of the bits of everything that tensor parallel ranks hold whole."""
    state, shards = run.optimizer.state, run.task.model.shards
    held = {name: value for name, value in run.task.model.named_variables().items() if not shards[name].is_divided}
    for kind, stores in {"master": state.masters, **state.slots}.items():
        held |= {f"{kind} {n}": stores[n] for n, is_whole in enumerate(state.replicated) if is_whole}
    return {name: zlib.crc32(np.asarray(value).tobytes()) for name, value in held.items()}


def check(name, mesh):
    """Trains one of `CASES` and compares the ranks of each tensor parallel group."""
    run = Run(CASES[name].resolve(mesh.size), mesh)
    shards, micro_batch = run.task.model.shards, Accumulation._micro_batch

    def noisy(self, *args):
        found, noise = micro_batch(self, *args), 1 + 2**-9 * (1 + mesh.rank)
        pairs = zip(run.task.model.named_variables(), found.dense, strict=True)
        return found._replace(dense=[g if shards[name].is_divided else g * noise for name, g in pairs])

    Accumulation._micro_batch = noisy
    step = TrainStep(run)
    begin, end = mesh.data.share(SAMPLES)
    before = digests(run)
    for batch in batches(STEPS, samples=SAMPLES):
        info = step({key: tensor[begin:end] for key, tensor in batch.items()})
        decisions = np.array([info.grad_norm, info.learning_rate, info.skipped], np.float32)
        every = collectives.gather_numbers(mesh.world, zlib.crc32(decisions.tobytes()), "decisions")
        assert len(set(every)) == 1, f"{name}: the ranks decide differently"
    Accumulation._micro_batch = micro_batch
    found = digests(run)
    every = [collectives.gather_numbers(mesh.tensor, value, "digest") for value in found.values()]
    differing = [what for what, values in zip(found, every, strict=True) if len(set(values)) > 1]
    assert not differing, f"{name}: {len(differing)} of {len(found)} differ, such as {differing[:3]}"
    assert sum(before[what] != found[what] for what in found) > len(found) // 2, "nothing was trained"
    whole = {what: found[what] for what in found if what in shards}
    every = [collectives.gather_numbers(mesh.world, value, "weight") for value in whole.values()]
    assert all(len(set(values)) == 1 for values in every), f"{name}: the data parallel ranks differ"
    if mesh.is_chief:
        print(f"{name}: replicas are equal", flush=True)


if __name__ == "__main__":
    ranks = start(launch_from_environment(), parallel=ParallelConfig(tensor_parallel_size=2, group_transport="horovod"))
    for case in sys.argv[1:]:
        check(case, ranks)
    collectives.gather_numbers(ranks.world, 0.0, "end")  # Horovod ends on all ranks when one is done.
