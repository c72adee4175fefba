"""`--deterministic`: what makes a run repeat bit for bit on GPUs too, on equal devices and as many ranks.

Five things change from run to run without it:

- TensorFlow's ops that add by atomic operations on a GPU: the gradients of biases and of looked-up rows. With op
  determinism, TensorFlow takes a deterministic form, or raises an error if an op has none.
- XLA's scatters, which are atomic too, and the algorithms of matrix products, which XLA chooses by timing them.
- Horovod sums the tensors that happen to be ready at the same time in one buffer. A ring partitions that buffer among
  the ranks, and each shard is added in an order of its own: with three ranks or more, an element's position decides its
  bits.
- NCCL may choose an algorithm in which a switch adds.
- Flash attention adds up the gradients of 16-bit queries by atomic operations on a GPU. With op determinism it does
  not.

The other fused ops have no atomic operations, and random numbers depend on seed, step and sample alone.
"""

from collections.abc import Mapping

from tftrain.host.exit_codes import RunError

# Environment variables that decide the order of sums between ranks.
ENVIRONMENT = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_AUTOTUNE": "0", "NCCL_ALGO": "Ring"}
# Refuses what has no deterministic form, and switches the timing of algorithms off.
XLA_FLAG = "--xla_gpu_deterministic_ops=true"


def conflict(environ: Mapping[str, str]) -> str:
    """Returns why the environment allows no deterministic run: it sets other values of these variables; "" if not."""
    conflicting = {name: environ[name] for name, value in ENVIRONMENT.items() if environ.get(name, value) != value}
    if not conflicting:
        return ""
    values = ", ".join(f"{name}={value}" for name, value in conflicting.items())
    wanted = ", ".join(f"{name}={ENVIRONMENT[name]}" for name in conflicting)
    return f"expected {wanted} in the environment, given {values}; unset it"


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables to set before TensorFlow and Horovod are loaded."""
    # The last value of a flag counts.
    return {**ENVIRONMENT, "XLA_FLAGS": f"{environ.get('XLA_FLAGS', '')} {XLA_FLAG}".strip()}


def enable() -> None:
    """Makes TensorFlow choose deterministic ops, before any op runs; `variables` must be set."""
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()


def error_of_op(error: BaseException) -> RunError | None:
    """Returns an error that says what to do if an op has no deterministic form; None if `error` has another reason.

    `error` comes from TensorFlow or XLA, in a run with `--deterministic`.
    """
    for line in str(error).splitlines():
        if "eterminis" in line:
            return RunError(
                f"--deterministic: an op has no deterministic form on this device: {line.strip()[:500]}; leave out the "
                "flag that brings this op in, or --deterministic"
            )
    return None
