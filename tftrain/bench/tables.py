"""All tables, by name."""

from tftrain.bench.accumulation import ACCUMULATION
from tftrain.bench.attention import ATTENTION
from tftrain.bench.checkpoint import CHECKPOINT
from tftrain.bench.collectives import COLLECTIVES
from tftrain.bench.kernels.table import KERNELS
from tftrain.bench.levers import LEVERS
from tftrain.bench.packing import PACKING
from tftrain.bench.peers.table import PEERS
from tftrain.bench.pipeline.table import PIPELINE
from tftrain.bench.prepare import PREPARE
from tftrain.bench.profile import PROFILE
from tftrain.bench.published.table import PUBLISHED
from tftrain.bench.ranks import RANKS
from tftrain.bench.table import Table
from tftrain.bench.transports import TRANSPORTS

OWN = (KERNELS, PEERS, PROFILE, LEVERS, ACCUMULATION, CHECKPOINT, RANKS, COLLECTIVES, TRANSPORTS, PIPELINE, ATTENTION)
OWN += (PACKING, PREPARE)
TABLES: dict[str, Table] = {table.name: table for table in (*OWN, *PUBLISHED)}
