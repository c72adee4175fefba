"""A whole model as data: embedding, blocks, heads; its variables, its number of weights and its FLOPs."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

from tftrain.architecture import parts
from tftrain.config.model import ModelConfig

# The most logits of a chunk, if there are several: 32 MB in fp32 stay in the caches of a CPU. A GPU loses what its rows
# reuse with each small chunk: it reads and writes the sum of the table's gradient, and leaves its CUDA graph.
CPU_LOGITS, GPU_LOGITS = 2**23, 2**27
COMPARED_ROWS = 1024  # rows and columns of a tile of scores, if a loss compares all samples: 4 MB in fp32
LEAST_ROWS = 32  # fewer rows in a chunk would make its products slow
GPU_UNIT = 8  # XLA pads the rows and columns of products in 16 bits to a multiple of it, and copies them for that


@dataclass(frozen=True)
class Architecture:
    """A transformer."""

    word: parts.TableSpec  # the token embedding
    tables: tuple[parts.Named, ...]  # the other tables of the embedding, by name
    embedding_norm: parts.NormSpec | None  # after their sum
    layers: int  # number of blocks
    # The first blocks, which repeat; they differ in their windows at most.
    cycle: tuple[parts.TransformerBlockSpec, ...]
    norms_first_block: bool  # whether the first block has its attention norm, if the others have one
    final_norm: parts.NormSpec | None  # after the last block
    heads: tuple[parts.HeadSpec, ...]  # the output heads beside the output layer
    tied: bool  # whether the token embedding is the output layer too: logits over the vocabulary are products with it
    output: parts.TableSpec | None  # an output layer of its own
    causal: bool  # whether a token attends only to itself and those before it, and every token is predicted
    # The flags that it was described from; architectures are equal whatever else these say.
    config: ModelConfig = field(compare=False, repr=False)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """The planner looks architectures up millions of times."""
        return hash(tuple(getattr(self, each.name) for each in fields(self) if each.compare))

    @property
    def block(self) -> parts.TransformerBlockSpec:
        """A block with all its norms."""
        return self.cycle[-1]

    def block_at(self, layer: int) -> parts.TransformerBlockSpec:
        """Returns a block, counted from 0 at the input."""
        block = self.cycle[layer % len(self.cycle)]
        return block if layer or self.norms_first_block else replace(block, attention_norm=None)

    def keys(self, tokens: int) -> float:
        """Returns how many tokens one of a sequence of `tokens` attends to, in the mean over the blocks."""
        rounds, rest = divmod(self.layers, len(self.cycle))
        keys = [block.attention.keys(tokens) for block in self.cycle]
        return (rounds * sum(keys) + sum(keys[:rest])) / self.layers

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self.word.width

    @property
    def vocab(self) -> int:
        """Rows of the token embedding."""
        return self.word.rows

    @property
    def attention_heads(self) -> int:
        """Attention heads of a block."""
        return self.block.attention.heads

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer."""
        return self.block.feed_forward.up.outputs

    def head(self, name: str) -> dict[str, parts.Leaf] | None:
        """Returns the layers of an output head by their names within it; None if there is no such head."""
        return next((dict(head.leaves) for head in self.heads if head.name == name), None)

    def embedding_variables(self) -> Iterator[parts.Variable]:
        """Yields the variables of the embedding."""
        yield from self.word.variables("embeddings/word")
        for name, table in self.tables:
            yield from table.variables(f"embeddings/{name}")
        if self.embedding_norm:
            yield from self.embedding_norm.variables("embeddings/norm")

    def output_variables(self) -> Iterator[parts.Variable]:
        """Yields the variables after the blocks: the final norm, the output layer and the heads."""
        if self.final_norm:
            yield from self.final_norm.variables("final_norm")
        if self.output:
            yield from self.output.variables("output")
        for head in self.heads:
            for name, leaf in head.parts():
                yield from leaf.variables(name)

    def variables(self) -> list[parts.Variable]:
        """Returns all variables, in the order in which a model has them."""
        variables = list(self.embedding_variables())
        for layer in range(self.layers):
            variables += self.block_at(layer).variables(f"layer_{layer:02d}")
        return [*variables, *self.output_variables()]

    @functools.cached_property
    def embedding_weights(self) -> parts.WeightCounts:
        """Numbers of weights of the embedding."""
        return parts.weight_counts(self.embedding_variables())

    @functools.cached_property
    def block_weights(self) -> parts.WeightCounts:
        """Numbers of weights of one block with all its norms."""
        return parts.weight_counts(self.block.variables(""))

    @functools.cached_property
    def output_weights(self) -> parts.WeightCounts:
        """Numbers of weights after the blocks."""
        return parts.weight_counts(self.output_variables())

    @property
    def parameters(self) -> int:
        """All weights that are trained."""
        of_ends = self.embedding_weights.total + self.output_weights.total
        of_first = parts.weight_counts(self.block_at(0).variables("")).total
        return of_ends + of_first + (self.layers - 1) * self.block_weights.total


def rows_of_chunk(rows: int | None, words: int, width: int, gpu: bool) -> int:
    """Returns how many rows of logits the output layer computes at a time.

    The sum of the token embedding's gradient over chunks needs memory for one more table. So chunks save memory only if
    there are more rows of logits than numbers in a row of the table.

    Args:
        rows: rows of all logits; None: unknown.
        words: words of a rank's shard of the vocabulary.
        width: numbers in a row of the token embedding.
        gpu: whether the device is a GPU.

    Returns:
        All rows, if the logits are at most as many numbers as the table has or as a chunk may have; else about equal
        parts, or as many as a chunk may have if their number is unknown. On a GPU, chunks that the rows divide into
        without a rest are preferred.
    """
    most, unit = max(LEAST_ROWS, (GPU_LOGITS if gpu else CPU_LOGITS) // words), GPU_UNIT if gpu else 1
    most -= most % unit
    if rows is None:
        return most
    if rows <= max(most, width):
        return max(1, rows)
    equal = -(-rows // -(-rows // most))
    whole = [each for each in range(most, most // 2, -unit) if rows % each == 0] if gpu else []
    return whole[0] if whole else equal + -equal % unit
