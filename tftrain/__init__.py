"""tftrain: training of encoders and decoders on TensorFlow 2 and Horovod.

Importing this package loads no TensorFlow: configuration, planning and the checks of a run's flags stay instant.
"""

from importlib import import_module
from typing import Any

__version__ = "1.0.0"
_KERAS_MODEL = "tftrain.inference.keras_model"  # It loads TensorFlow.


def load(source: str, rank: int | None = None, **flags: Any) -> Any:
    """Returns a trainable Keras model with the weights of any format that `tftrain.convert` reads.

    Args:
        source: FORMAT:PATH, such as hf:FOLDER or tftrain:RUN; the folder alone if it is one of these two.
        rank: of this process; ranks draw different dropout masks. By default that of Horovod, if it is initialized.
        flags: of the model, such as task, labels, ln_impl and hidden_dropout_prob, and precision,
            activation_checkpointing, jit_compile (whether XLA compiles your loop), seed and init_missing. Those of a
            run may be weights="averaged".

    Raises:
        ConfigError: with all wrong flags.
        RunError: the weights can't be read, or lack a head; the message names the file.
        ImportError: this process has loaded Keras 3.
    """
    first = "start Python with TF_USE_LEGACY_KERAS=1 in its environment, or call tftrain.load first"
    import_module("tftrain.host.keras_version").require_keras_2(first)
    return import_module(_KERAS_MODEL).load(source, rank, flags)


def save(model: Any, target: str, architecture: str | None = None) -> None:
    """Writes a model of `load` with its tokenizer as FORMAT:PATH, such as hf:FOLDER; only one rank may call it.

    `architecture` is a class of the format, by default the largest one whose heads the model has.

    Raises:
        ConfigError: the folder exists and is not empty.
        RunError: the format has no such model.
    """
    import_module(_KERAS_MODEL).save(model, target, architecture)
