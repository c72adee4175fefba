"""What each rank does in `test_evaluate`: evaluates in a layout and, on the chief, compares with one rank alone.

horovodrun -np 2 --gloo python -m tests.train.evaluations LAYOUT FLAGFILE...     # a file for each run
"""

import sys

import numpy as np

from tests.kit import runs
from tftrain.cli import flags
from tftrain.config.parallel import ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.inputs.inputs import Inputs
from tftrain.model.part import joined
from tftrain.parallel import collectives
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.start import start
from tftrain.state.new_run import new_run
from tftrain.state.run_state import parts_of_rank
from tftrain.tasks import make_task
from tftrain.train import held_out
from tftrain.train.held_out import HeldOut

SHAPE = ("--num_hidden_layers=2", "--hidden_size=32", "--num_attention_heads=2", "--max_seq_length=32")
# Tensor and pipeline parallel size, and a micro-batch that divides no number of examples.
LAYOUTS = {"shards": (1, 1, 5), "data": (1, 1, 5), "tensor": (2, 1, 3), "pipeline": (1, 2, 2)}


def evaluation(mesh, path, *args):
    """Returns the evaluation of initial weights, which are the same in every layout."""
    given = ["tftrain.run", *SHAPE, f"--flagfile={path}", "--output_dir=unused", "--initializer_range=0.5", *args]
    config = runs.with_sizes(flags.parse(TrainConfig, given).resolve(mesh.size))
    (data,) = Inputs.open(config).data
    if config.shards_weights(mesh.split.size):
        return held_out.of_run(new_run(config, mesh, trains=False), data)()
    parts = parts_of_rank(config.model, config.data, config.parallel, mesh)
    return HeldOut(config, data, make_task(config, mesh, joined(parts)), parts, mesh, None)()


def compare(found, expected):
    """Compares two evaluations of the same examples."""
    assert (found.examples, found.split_examples) == (expected.examples, expected.split_examples)
    assert found.unigram_nats == expected.unigram_nats
    for one, other in ((found.means, expected.means), (found.scores, expected.scores)):
        assert one.keys() == other.keys()
        values = (np.array(list(each.values()), np.float64) for each in (one, other))  # None is NaN.
        np.testing.assert_allclose(*values, rtol=1e-6, err_msg=str(list(one)))


def main(layout, *paths):
    """Evaluates with the flags of each file in a layout."""
    tensor, pipeline, micro = LAYOUTS[layout]
    parallel = ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, group_transport="horovod")
    mesh = start(launch_from_environment(), 1, parallel)
    split = ["--split_weights"] if layout == "shards" else []
    sizes = (*split, f"--tensor_parallel_size={tensor}", f"--pipeline_parallel_size={pipeline}")
    for path in paths:
        found = evaluation(mesh, path, *sizes, f"--micro_batch_size={micro}", "--global_batch_size=60")
        if mesh.is_chief:
            compare(found, evaluation(Mesh(), path, "--micro_batch_size=7", "--global_batch_size=7"))
            print(f"{path}: {found.examples} of {found.split_examples} agree", flush=True)
    collectives.gather_numbers(mesh.world, 0.0, "end")  # Horovod ends on all ranks when one is done.


if __name__ == "__main__":
    main(*sys.argv[1:])
