"""What the fork server of `tests.kit.fork_server` loads before it forks: all that a rank needs."""

import gc

from tests.kit import pictures
from tftrain import rank_server

rank_server.load_modules()
pictures.leave_out()
# The ranks share the memory pages of the imported modules until a rank writes to them.
gc.collect()
gc.freeze()
gc.set_threshold(100_000, 50, 100)  # as in the test processes
