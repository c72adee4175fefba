from tests.kit.ranks import *  # noqa: F403
