"""All tables, by name."""

from tftrain.bench.accumulation.table import ACCUMULATION
from tftrain.bench.attention.table import ATTENTION
from tftrain.bench.checkpoint.table import CHECKPOINT
from tftrain.bench.collectives.table import COLLECTIVES
from tftrain.bench.kernels.table import KERNELS
from tftrain.bench.levers.table import LEVERS
from tftrain.bench.packing.table import PACKING
from tftrain.bench.peers.table import PEERS
from tftrain.bench.pipeline.table import PIPELINE
from tftrain.bench.profile.table import PROFILE
from tftrain.bench.published.table import PUBLISHED
from tftrain.bench.ranks.table import RANKS
from tftrain.bench.table import Table

OWN = (KERNELS, PEERS, PROFILE, LEVERS, ACCUMULATION, CHECKPOINT, RANKS, COLLECTIVES, PIPELINE, ATTENTION, PACKING)
TABLES: dict[str, Table] = {table.name: table for table in (*OWN, *PUBLISHED)}
