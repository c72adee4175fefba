"""All tables, by name."""

from tftrain.bench.attention import ATTENTION
from tftrain.bench.checkpoint import CHECKPOINT
from tftrain.bench.kernels.table import KERNELS
from tftrain.bench.levers import LEVERS
from tftrain.bench.peers.table import PEERS
from tftrain.bench.published.table import PUBLISHED
from tftrain.bench.ranks import RANKS
from tftrain.bench.table import BenchTable

EVERY: tuple[BenchTable, ...] = (KERNELS, PEERS, LEVERS, CHECKPOINT, RANKS, ATTENTION, *PUBLISHED)
TABLES = {table.name: table for table in EVERY}
