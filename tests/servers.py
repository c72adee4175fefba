from tests.kit.servers import *  # noqa: F403
