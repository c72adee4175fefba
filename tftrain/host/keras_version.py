"""The version of Keras: the models need Keras 2, and TensorFlow chooses one when Keras is first used in a process."""

import os


def require_keras_2(remedy: str) -> None:
    """Loads TensorFlow with Keras 2.

    Raises an ImportError if this process already has Keras 3. `remedy` says in the message what a user must do first.
    """
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    if not tf.keras.layers.__name__.startswith("tf_keras"):
        raise ImportError(f"TensorFlow has loaded Keras 3 in this process; expected Keras 2: {remedy}")
