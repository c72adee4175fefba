"""The inventory of this project's encoder: products and kernels from `encoder.py`, and its own list of saved tensors.

The saved tensors follow from `tftrain/model` and `tftrain/ops`. Fused ops draw dropout masks again in backward. The
fused softmax saves only its probabilities, the fused norm only its input. Plain norms, softmax and GeLU are fp32 in any
precision: a norm saves the centred and the normed input, the softmax its result, GeLU its input and two factors, and
GeGLU both projections' outputs and the result of GeLU.
"""

from tftrain.config.output_chunks import rows_of_chunk
from tftrain.host.units import ITEM_BYTES
from tftrain.plan import encoder
from tftrain.plan.blocks import Kernel, Part, Product, SavedTensor
from tftrain.plan.workload import Workload

PLAIN_BYTES = 4  # of norms, softmax and GeLU, and of sums over chunks of logits


def block(work: Workload) -> Part:
    """Returns the inventory of one block on one tensor parallel rank."""
    return _accumulated(encoder.block(work)._replace(saved=tuple(_saved(work))), work)


def embedding(work: Workload) -> Part:
    """Returns the inventory of the embeddings; the table's gradient sums those of logits and look-ups."""
    part = encoder.embedding(work)
    return _accumulated(part._replace(summands=2 * work.item * work.model.word.size / work.tp), work)


def head(work: Workload) -> Part:
    """Returns the inventory of the two heads; the logits of the masked words are in chunks of rows."""
    part, words, width = encoder.head(work), round(work.model.vocab / work.tp), work.model.width
    rows = work.micro_batch * work.predictions
    chunk = rows_of_chunk(rows, words, width)
    saved = [*part.saved[:-1], SavedTensor("logits and probabilities of a chunk", (work.item + 8.0) * chunk * words)]
    if chunk < rows:
        saved.append(SavedTensor("sum of the table's gradient", PLAIN_BYTES * float(words) * width))
    products = (*part.products, Product("next sentence", work.micro_batch, 2, width))
    return _accumulated(part._replace(products=products, saved=tuple(saved)), work)


def _accumulated(part: Part, work: Workload) -> Part:
    """Adds the traffic of accumulation: it reads a gradient and the sum, and writes the sum."""
    if not work.accumulation:
        return part
    moved = part.weights * (work.item + 2 * ITEM_BYTES[work.accumulation])
    return part._replace(kernels=(*part.kernels, Kernel("sums over micro-batches", 0, moved, (0, 0))))


def _saved(work: Workload) -> list[SavedTensor]:
    tokens, item, t = work.micro_batch * work.seq, work.item, work.tp
    numbers, wide, heads = tokens * work.model.width, tokens * work.model.inner / t, work.model.attention_heads / t
    numbers_of_rank = numbers / work.stream_ranks
    u, v, scores = numbers * item, numbers_of_rank * item, work.micro_batch * heads * work.seq**2
    saved = [
        SavedTensor("block's input", v),
        SavedTensor("queries, keys and values", 3 * u / t),
        SavedTensor("context", u / t),
        SavedTensor("input of the wide layer", v),
        SavedTensor("inputs of norms", 2 * v if "ln" in work.fused else 4 * PLAIN_BYTES * numbers_of_rank),
        *_attention(work, scores),
        *_feed_forward(work, wide),
    ]
    if work.hidden_dropout and "dropout_add" not in work.fused:
        saved.append(SavedTensor("dropout masks", 2 * v))
    return saved


def _attention(work: Workload, scores: float) -> list[SavedTensor]:
    item = work.item
    if "flash" in work.fused:
        return [SavedTensor("log-sum-exp of the scores", PLAIN_BYTES * scores / work.seq, core=True)]
    if "softmax" in work.fused:
        return [SavedTensor("attention probabilities", item * scores, core=True)]
    saved = [SavedTensor("attention probabilities", PLAIN_BYTES * scores, core=True)]
    if work.attention_dropout:
        saved.append(SavedTensor("attention dropout mask", item * scores, core=True))
    if work.attention_dropout or item != PLAIN_BYTES:
        saved.append(SavedTensor("probabilities that weigh the values", item * scores, core=True))
    return saved


def _feed_forward(work: Workload, wide: float) -> list[SavedTensor]:
    fused = "gelu" in work.fused
    size = wide * (work.item if fused else PLAIN_BYTES)
    saved = [SavedTensor("input of gelu", size), SavedTensor("input of the narrow layer", wide * work.item)]
    if not fused and work.grappler not in encoder.RECOMPUTING:
        saved.append(SavedTensor("factors of gelu", 2 * size))
    if work.model.block.feed_forward.gate:
        saved.append(SavedTensor("gate", size if fused else 2 * size))
    return saved
