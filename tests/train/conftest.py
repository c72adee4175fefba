"""Two small runs whose batch grows, alone and on two ranks, for whoever looks at what they leave."""

import dataclasses
import json

import pytest

from tests.distributed import run_ranks
from tests.test_run import SMALL, configured
from tftrain.parallel.mesh import Mesh
from tftrain.plan.cluster import CLUSTERS
from tftrain.train import loop

RAMP = (
    "--num_hidden_layers=1",
    "--global_batch_size=8",
    "--micro_batch_size=2",
    "--batch_rampup=4:4:12",
    "--max_steps=5",
    "--warmup_steps=2",
    "--eval_every=-1",
)


@pytest.fixture(scope="session")
def ramped(tmp_path_factory):
    """The whole ramp and some more, with a checkpoint after the second update, which is in its middle."""
    folder = tmp_path_factory.mktemp("ramped")
    loop.train(configured(*RAMP, f"--output_dir={folder}", "--checkpoint_every=2"), Mesh())
    return folder


@pytest.fixture(scope="session")
def ramped_on_two(tmp_path_factory):
    """The same on two ranks, of which rank 1 holds 300 MB that are no use: the folder, and what was printed."""
    folder = tmp_path_factory.mktemp("ramped_on_two")
    program = (
        "import os, sys; from tftrain import run; "
        "ballast = b'x' * (300_000_000 if os.environ['HOROVOD_RANK'] == '1' else 1); sys.exit(run.main(sys.argv))"
    )
    (folder / "machine.json").write_text(json.dumps(dataclasses.asdict(CLUSTERS["a64fx"])))
    return folder, run_ranks(
        2, ["-c", program, *SMALL, *RAMP, f"--output_dir={folder}", f"--machine_file={folder}/machine.json"]
    )
