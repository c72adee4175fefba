from tests.kit.corpora import *  # noqa: F403
