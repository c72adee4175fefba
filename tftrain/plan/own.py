"""The inventory of this project's models: products and kernels from `encoder.py`, and its own list of saved tensors.

The saved tensors follow from `tftrain/model` and `tftrain/ops`. Fused ops draw dropout masks again in backward. The
fused softmax saves only its probabilities, the fused norm only its input. Plain norms, softmax and GeLU are fp32 in any
precision: a norm saves its input (a LayerNorm centred) and the normed one, the softmax its result, GeLU its input and
two factors, SiLU its input, and a gated layer both factors of its product too. Shared keys and values are saved once,
except with `cudnn`, which needs as many as queries. A causal mask saves no products: scores and context are products
of whole matrices. The output layer works in chunks of rows.

In the programs that XLA compiles for GPUs, plain norms and GeLU save as little as fused ones: XLA computes the rest
again in backward. Dropout masks have a byte for each element. What else differs was read from such programs, by
`tools/gpu_memory.py`.
"""

from tftrain.config.output_chunks import rows_of_chunk
from tftrain.host.units import ITEM_BYTES
from tftrain.plan import encoder
from tftrain.plan.blocks import Kernel, Part, SavedTensor, products_of_heads, query_key_value_bytes
from tftrain.plan.workload import Workload

MASK_BYTES = 1  # of a boolean
PLAIN_BYTES = 4  # of norms, softmax and GeLU, and of sums over chunks of logits
CHUNK_COPIES = 4  # of a chunk's causal logits in fp32: logits, differences, exponentials, gradients


def block(work: Workload) -> Part:
    """Returns the inventory of one block on one tensor parallel rank."""
    return _accumulated(encoder.block(work)._replace(saved=tuple(_saved(work))), work)


def embedding(work: Workload) -> Part:
    """Returns the inventory of the embeddings; a tied table's gradient sums those of logits and look-ups."""
    part = encoder.embedding(work)
    # That of look-ups alone is a sum in fp32, which is the gradient or is cast to it.
    summands = 2 * work.item if work.model.tied else PLAIN_BYTES * (work.item != PLAIN_BYTES)
    return _accumulated(part._replace(summands=summands * work.model.word.size / work.tp), work)


def head(work: Workload) -> Part:
    """Returns the inventory after the blocks: the logits of the masked words, or of all; in chunks of rows."""
    return _causal_head(work) if work.model.causal else _accumulated(_masked_head(work), work)


def _masked_head(work: Workload) -> Part:
    part, words, width = encoder.head(work), round(work.model.vocab / work.tp), work.model.width
    rows = work.rows * work.predictions
    chunk = rows_of_chunk(rows, words, width)
    if not rows:
        return part._replace(saved=())
    saved = [*part.saved[:-1], SavedTensor("logits and probabilities of a chunk", (work.item + 8.0) * chunk * words)]
    if chunk < rows:
        saved.append(SavedTensor("sum of the table's gradient", PLAIN_BYTES * float(words) * width))
    return part._replace(products=products_of_heads(work), saved=tuple(saved))


def _causal_head(work: Workload) -> Part:
    tokens, width, words = work.rows * work.seq, work.model.width, work.model.vocab / work.tp
    u, rows = tokens * width * work.item, rows_of_chunk(tokens, round(words), width)
    kernels = (
        Kernel("cross-entropy", *(passes * tokens * words for passes in encoder.LOGIT_BYTES)),
        Kernel("launches", 0, 0, (10, 10)),
    )
    saved = (
        SavedTensor("input of the last norm", u / work.stream_ranks),
        SavedTensor("input of the output layer", u),
        SavedTensor("logits of a chunk", 4.0 * CHUNK_COPIES * rows * words),
        SavedTensor("sum of the table's gradient", 4.0 * words * width if rows < tokens else 0.0),
    )
    sums = ((4.0 * tokens,) * 4, (u,)) if work.tp > 1 else ((), ())
    return Part(products_of_heads(work), kernels, saved, u, sums, work.model.output_weights.of_rank(work.tp))


def _accumulated(part: Part, work: Workload) -> Part:
    """Adds the traffic of accumulation: it reads a gradient and the sum, and writes the sum."""
    if not work.accumulation:
        return part
    moved = part.weights * (work.item + 2 * ITEM_BYTES[work.accumulation])
    return part._replace(kernels=(*part.kernels, Kernel("sums over micro-batches", 0, moved, (0, 0))))


def _saved(work: Workload) -> list[SavedTensor]:
    tokens, item, t = work.rows * work.seq, work.item, work.tp
    numbers, wide, heads = tokens * work.model.width, tokens * work.model.inner / t, work.model.attention_heads / t
    numbers_of_rank = numbers / work.stream_ranks
    v, scores = numbers_of_rank * item, work.rows * heads * work.seq**2
    query, key = query_key_value_bytes(work)
    saved = [
        SavedTensor("block's input", v),
        SavedTensor("queries, keys and values", query + 2 * (query if "cudnn" in work.fused else key)),
        SavedTensor("context", query),
        SavedTensor("input of the wide layer", v),
        SavedTensor("inputs of norms", 2 * v if _saves_input(work, "ln") else 4 * PLAIN_BYTES * numbers_of_rank),
        *_norms_within(work, query + key),
        *_attention(work, scores),
        *_feed_forward(work, wide),
    ]
    if work.compiled and not (work.hidden_dropout or work.model.block.pre_norm or "dropout_add" in work.fused):
        saved.append(SavedTensor("residual sums", 2 * v))
    if work.hidden_dropout and "dropout_add" not in work.fused:
        saved.append(SavedTensor("dropout masks", 2 * numbers_of_rank * _mask_bytes(work)))
    return saved


def _saves_input(work: Workload, op: str) -> bool:
    """Whether an op saves only its input: a fused one, and a plain one in XLA's programs for GPUs."""
    return op in work.fused or work.compiled


def _mask_bytes(work: Workload) -> int:
    """Returns the bytes of an element of a dropout mask."""
    return MASK_BYTES if work.compiled else work.item


def _norms_within(work: Workload, size: float) -> list[SavedTensor]:
    """Returns what the norms of queries and keys save; `size` has the bytes of both."""
    if not work.model.block.attention.head_norm:
        return []
    saved = size if _saves_input(work, "ln") else 2 * PLAIN_BYTES * size / work.item
    return [SavedTensor("inputs of the norms of queries and keys", saved)]


def _attention(work: Workload, scores: float) -> list[SavedTensor]:
    item = work.item
    if "flash" in work.fused:
        return [SavedTensor("log-sum-exp of the scores", PLAIN_BYTES * scores / work.seq, core=True)]
    if "softmax" in work.fused:
        return [SavedTensor("attention probabilities", item * scores, core=True)]
    saved = [SavedTensor("attention probabilities", (item if work.compiled else PLAIN_BYTES) * scores, core=True)]
    if work.attention_dropout:
        saved.append(SavedTensor("attention dropout mask", _mask_bytes(work) * scores, core=True))
    if work.compiled and work.model.block.attention.key_value_heads < work.model.attention_heads:
        saved.append(SavedTensor("scores of shared keys", item * scores, core=True))
    if work.attention_dropout or item != PLAIN_BYTES or work.compiled:
        saved.append(SavedTensor("probabilities that weigh the values", item * scores, core=True))
    return saved


def _feed_forward(work: Workload, wide: float) -> list[SavedTensor]:
    fused = _saves_input(work, "gelu")
    size = wide * (work.item if fused else PLAIN_BYTES)
    saved = [SavedTensor("input of gelu", size), SavedTensor("input of the narrow layer", wide * work.item)]
    gelu = work.model.block.feed_forward.activation != "swiglu"
    if gelu and not fused and work.grappler not in encoder.RECOMPUTING:
        saved.append(SavedTensor("factors of gelu", 2 * size))
    if work.model.block.feed_forward.gate:
        saved.append(SavedTensor("gate", size if fused else 2 * size))
    return saved
