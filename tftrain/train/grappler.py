"""Configures Grappler, TensorFlow's graph rewriter, from the flags.

`tf.config.optimizer.set_experimental_options` has no key for the memory optimizer. Grappler reads the ConfigProto that
is passed with every call of a `tf.function`, so this module sets the options there. The recomputation heuristic finds
gradients by their name scope. Its default is the scope of TensorFlow 1, so it must be set to the scope of
`tf.GradientTape`.
"""

from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context

from tftrain.config.compute import ComputeConfig

MEMORY_OPTIMIZATIONS = {
    "none": RewriterConfig.NO_MEM_OPT,
    "default": RewriterConfig.DEFAULT_MEM_OPT,
    "heuristics": RewriterConfig.HEURISTICS,
    "recomputation": RewriterConfig.RECOMPUTATION_HEURISTICS,
    "scheduling": RewriterConfig.SCHEDULING_HEURISTICS,
    "swapping": RewriterConfig.SWAPPING_HEURISTICS,
}
GRADIENT_SCOPE = "gradient_tape/"


def configure(compute: ComputeConfig) -> None:
    """Applies the settings in `compute` to every `tf.function` that this thread calls from now on.

    Later changes by `tf.config.optimizer` and the like undo it.
    """
    eager = context.context()
    eager.function_call_options = None  # Start from TensorFlow's own, not from an earlier call's.
    options = eager.function_call_options
    config = eager.config
    config.MergeFromString(options.config_proto_serialized)
    rewriter = config.graph_options.rewrite_options
    rewriter.memory_optimization = MEMORY_OPTIMIZATIONS[compute.memory_optimization]
    rewriter.memory_optimizer_target_node_name_scope = GRADIENT_SCOPE
    rewriter.disable_meta_optimizer = compute.suppress_grappler
    options.config_proto_serialized = config


def without_effect(compute: ComputeConfig, jit: bool, gpu: bool) -> str | None:
    """Returns a line on the settings that do nothing in a run that XLA compiles (`jit`) or on this device, or None."""
    named = [] if compute.memory_optimization == "default" else [f"--memory_optimization={compute.memory_optimization}"]
    if jit:
        named += ["--suppress_grappler"] if compute.suppress_grappler else []
        return f"{' and '.join(named)}: no effect, XLA compiles the step, not Grappler" if named else None
    if named and compute.suppress_grappler:
        return f"{named[0]}: no effect, --suppress_grappler turns the rewriter off"
    if compute.memory_optimization == "swapping" and not gpu:
        return f"{named[0]}: no effect, Grappler swaps from GPU memory only"
    return None
