"""`tftrain.run --gradient_transport=xla` as far as CPUs have it: equal sums, in a graph that XLA does not compile."""

import os
import runpy

from tftrain.config import combinations
from tftrain.supervise.elastic import PARENT

combinations.check_host = lambda *_: ()

if PARENT in os.environ:  # A supervisor loads no TensorFlow.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    from tftrain.parallel import start
    from tftrain.train.gradients import Accumulation

    kinds_of, prepare = start.tensorflow_kinds, Accumulation.__init__

    def tensorflow_kinds(mesh, transport, environ, _, gradients):
        """Returns the kinds of a GPU, and says how many ranks sum."""
        kinds = kinds_of(mesh, transport, environ, True, gradients)
        print(f"sums in the program of {mesh.size} ranks: {bool(kinds)}", flush=True)
        return kinds

    def prepared(self, *args):
        """Does not let XLA compile the sums."""
        prepare(self, *args)
        self._compiled_sums = tf.function(self._sum_in_program, autograph=False)

    start.tensorflow_kinds, Accumulation.__init__ = tensorflow_kinds, prepared

runpy.run_module("tftrain.run", run_name="__main__", alter_sys=True)
