"""The prepared data set is that of the tests of the data."""

from tests.data.conftest import corpus, prepare_config, prepared

__all__ = ["corpus", "prepare_config", "prepared"]
