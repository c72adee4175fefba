"""What each of two ranks does in `test_device_batches`: runs with and without batches ahead, slow on one rank.

Both go back to a checkpoint after a spike. One rank stops the run with batches ahead before, and it goes on.
"""

import sys
import time
from pathlib import Path

import numpy as np

from tests.kit.runs import losses, with_sizes
from tests.train.spiked_runs import BATCH, FLAGS, ROLLBACK, Numbers, write
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.host import log
from tftrain.host.exit_codes import ExitCode
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.start import start
from tftrain.train import loop, phases
from tftrain.train.device_batches import DeviceBatches

STEPS = 80  # the spike is in step 71
mesh, root, pause = start(launch_from_environment(), cpu_threads=1), Path(sys.argv[1]), np.random.default_rng(1)
log.configure(mesh.rank)
given = write(root / f"data_{mesh.rank}", range(70, 85))
copied = DeviceBatches._with_copy


def slowly(*args):
    """Copies a batch after a while on one rank, so that the ranks stop with different batches ahead."""
    time.sleep(mesh.rank * pause.choice([0, 0, 0, 0.03]))
    return copied(*args)


DeviceBatches._with_copy = slowly
for name, device, stops in (("host", None, [None]), ("device", "CPU:0", [50, None])):
    phases.device_of_batches = lambda _, device=device: device
    own = *given, *ROLLBACK, "--rollback_window=20", f"--micro_batch_size={BATCH // 2}", f"--output_dir={root / name}"
    own += ("--hooks=tests.train.spiked_runs:Numbers", f"--max_steps={STEPS}")
    config = with_sizes(flags.parse(TrainConfig, ["tftrain.run", *FLAGS, *own]).resolve(2))
    for stop_after in stops:
        Numbers.stop_after = stop_after if mesh.rank else None
        assert loop.train(config, Inputs.open(config), mesh) == (ExitCode.STOPPED if stop_after else ExitCode.DONE)
assert bool(Numbers.saved) == mesh.is_chief, "the chief's hooks alone hear of checkpoints"
if mesh.is_chief:
    host, device = losses(root / "host"), losses(root / "device")
    assert device == host
    assert len(device) == STEPS
    assert "rollback 1 of 10" in (root / "device" / "log.txt").read_text()
    print("the same losses", flush=True)
