"""The inventory of this project's decoder: the blocks of `bert.py`, and an output layer that works in chunks of rows.

The causal mask saves no products: scores and context are products of whole matrices.
"""

from tftrain.config.output_chunks import rows_of_chunk
from tftrain.plan import bert
from tftrain.plan.blocks import Kernel, Part, Product, SavedTensor
from tftrain.plan.encoder import LOGIT_BYTES
from tftrain.plan.workload import Workload

CHUNK_COPIES = 4  # of a chunk's logits in fp32: logits, differences, exponentials, gradients


def block(work: Workload) -> Part:
    """Returns the inventory of one block on one tensor parallel rank."""
    return bert.block(work)


def embedding(work: Workload) -> Part:
    """Returns the inventory of the embeddings; the table's gradient sums those of logits and look-ups."""
    return bert.embedding(work)


def head(work: Workload) -> Part:
    """Returns the inventory of the last norm and of the output layer with its cross-entropy."""
    tokens, width, words = work.micro_batch * work.seq, work.model.width, work.model.vocab / work.tp
    u, rows = tokens * width * work.item, rows_of_chunk(tokens, round(words), width)
    products = (Product("logits", tokens, round(words), width),)
    kernels = (
        Kernel("cross-entropy", *(passes * tokens * words for passes in LOGIT_BYTES)),
        Kernel("launches", 0, 0, (10, 10)),
    )
    saved = (
        SavedTensor("input of the last norm", u / work.stream_ranks),
        SavedTensor("input of the output layer", u),
        SavedTensor("logits of a chunk", 4.0 * CHUNK_COPIES * rows * words),
        SavedTensor("sum of the table's gradient", 4.0 * words * width if rows < tokens else 0.0),
    )
    sums = ((4.0 * tokens,) * 4, (u,)) if work.tp > 1 else ((), ())
    return Part(products, kernels, saved, u, sums, work.model.output_weights.of_rank(work.tp))
