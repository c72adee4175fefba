"""tf-models-official, the oracle of some tests. It has no release for TensorFlow 2.21, which is tested without it."""

import pytest


def tf_models(module: str):
    """Returns a module of the library by its name; without the library, the test is skipped."""
    return pytest.importorskip(module, reason="tf-models-official has no release for this TensorFlow")
