"""The prepared data sets are those of the tests of the data."""

from tests.data.conftest import corpus, prepare_config, prepared, prepared_packed

__all__ = ["corpus", "prepare_config", "prepared", "prepared_packed"]
