"""What each of three ranks does in `test_determinism`: a sum alone, and the same beside another tensor."""

import numpy as np
import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.start import start

mesh = start(launch_from_environment())
draws = np.random.default_rng(mesh.rank)
tensor, other = (tf.constant(draws.normal(size=size), tf.float32) for size in (3000, 1001))
alone = collectives.grouped_all_reduce(mesh.world, [tensor], "alone")[0]
together = collectives.grouped_all_reduce(mesh.world, [other, tensor], "together")[1]
print("alone and together equal:", np.array_equal(alone, together), flush=True)
collectives.gather_numbers(mesh.world, 0.0, "end")
