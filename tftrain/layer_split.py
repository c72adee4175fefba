"""The division of a model's layers among the parts of a pipeline, `--pipeline_split`.

With several chunks, division number chunk * stages + stage is chunk `chunk` of stage `stage`.
"""

import functools
import re
from collections.abc import Sequence
from itertools import accumulate

from tftrain.fields import ConfigError, Problem


def split_layers(
    layers: int,
    stages: int,
    chunks: int = 1,
    how: str = "layers",
    costs: Sequence[float] = (),
    embedding: float = 0.0,
    head: float = 0.0,
) -> tuple[int, ...]:
    """Returns the number of layers of each of the stages * chunks parts, in the order of the layers.

    Args:
        layers: of the model.
        stages: value of --pipeline_parallel_size.
        chunks: value of --virtual_pipeline_size.
        how: value of --pipeline_split. layers: as even as possible; the first and the last part, which also have the
            embedding and the head, get no remainder as long as others can take it. flops: the costliest part costs as
            little as possible. Or the numbers themselves, such as 3,4,4,1.
        costs: FLOPs of each layer, in any unit, for `flops`; by default they are equal.
        embedding, head: FLOPs of the embedding and of the head in the same unit.

    Raises:
        ConfigError: there are more parts than layers, or `how` is wrong.
    """
    parts = stages * chunks
    if parts > layers:
        sizes = f"{stages} x virtual_pipeline_size={chunks} are {parts} parts"
        expected = f"expected at most num_hidden_layers={layers} parts, such as {max(1, layers // chunks)} stages"
        raise ConfigError([Problem("pipeline_parallel_size", sizes, expected)])
    if how == "layers":
        return _even(layers, parts)
    if how == "flops":
        return _by_cost(tuple(costs) or (1.0,) * layers, parts, embedding, head)
    return _listed(how, layers, stages, chunks)


def _even(layers: int, parts: int) -> tuple[int, ...]:
    """Returns equal numbers; the remainder goes to inner parts, the later ones first, which hold fewer activations."""
    each, left = divmod(layers, parts)
    more = [*range(parts - 2, 0, -1), 0, parts - 1][:left]
    return tuple(each + (part in more) for part in range(parts))


def _listed(how: str, layers: int, stages: int, chunks: int) -> tuple[int, ...]:
    """Returns the numbers of a list, which must be one for each part and add up to the layers."""
    if not re.fullmatch(r"\d+(,\d+)*", how):
        raise ConfigError([Problem("pipeline_split", how, "expected layers, flops, or a list such as 3,4,4,1")])
    numbers, parts = tuple(map(int, how.split(","))), stages * chunks
    wrong = ""
    if len(numbers) != parts:
        sizes = f"pipeline_parallel_size={stages} x virtual_pipeline_size={chunks}"
        wrong = f"expected {parts} numbers for {sizes}, not {len(numbers)}"
    elif min(numbers) < 1:
        wrong = "expected at least one layer for each part"
    elif sum(numbers) != layers:
        wrong = f"expected a sum of num_hidden_layers={layers}, not {sum(numbers)}"
    if wrong:
        even = ",".join(map(str, _even(layers, parts)))
        raise ConfigError([Problem("pipeline_split", how, f"{wrong}; an even division is {even}")])
    return numbers


@functools.lru_cache(maxsize=256)
def _by_cost(costs: tuple[float, ...], parts: int, embedding: float, head: float) -> tuple[int, ...]:
    """Returns the division whose costliest part costs least, and of these the one with the least sum of squares.

    Both are exact: dynamic programming over the number of parts and the number of layers that they have.
    """
    sums = [0.0, *accumulate(costs)]
    layers = len(costs)

    def cost(part: int, begin: int, end: int) -> float:
        return sums[end] - sums[begin] + embedding * (part == 0) + head * (part == parts - 1)

    least, _ = _best(layers, parts, lambda part, begin, end: cost(part, begin, end), max)
    # A cost is a difference of sums: the least maximum is met by others up to rounding.
    limit = least * (1 + 1e-12)

    def square(part: int, begin: int, end: int) -> float:
        size = cost(part, begin, end)
        return size * size if size <= limit else float("inf")

    _, ends = _best(layers, parts, square, lambda before, own: before + own)
    return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))


def _best(layers: int, parts: int, cost, combined) -> tuple[float, list[int]]:
    """Returns the least combined cost of a division into parts of at least one layer, and the end of each part."""
    best = [cost(0, 0, end) if end else float("inf") for end in range(layers + 1)]
    begins: list[list[int]] = []
    for part in range(1, parts):
        values, chosen = [float("inf")] * (layers + 1), [0] * (layers + 1)
        for end in range(part + 1, layers - (parts - 1 - part) + 1):
            values[end], chosen[end] = min(
                (combined(best[begin], cost(part, begin, end)), begin) for begin in range(part, end)
            )
        best = values
        begins.append(chosen)
    ends = [layers]
    for chosen in reversed(begins):
        ends.append(chosen[ends[-1]])
    return best[layers], ends[::-1]
