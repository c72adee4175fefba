"""The division of a model's layers among the parts of a pipeline, `--pipeline_split`.

With several chunks, division number chunk * stages + stage is chunk `chunk` of stage `stage`.
"""

import math
import re

from tftrain.config.fields import ConfigError, Problem, first_reason
from tftrain.config.parallel import BUCKET_BYTES


def split_layers(layers: int, stages: int, chunks: int = 1, how: str = "layers", head: float = 0.0) -> tuple[int, ...]:
    """Returns the number of layers of each of the stages * chunks parts, in the order of the layers.

    Args:
        how: value of --pipeline_split. layers: as even as possible; the first and the last part, which also have the
            embedding and the head, get no remainder as long as others can take it. flops: the costliest part costs as
            little as possible. Or the numbers themselves, such as 3,4,4,1.
        head: FLOPs of the head over those of a layer, for `flops`. The embedding has no products, so it costs nothing.

    Raises:
        ConfigError: there are more parts than layers, or `how` is wrong.
    """
    parts = stages * chunks
    if parts > layers:
        sizes = f"{stages} x --virtual_pipeline_size={chunks} are {parts} model chunks"
        expected = f"expected at most --num_hidden_layers={layers}, such as {max(1, layers // chunks)} stages"
        raise ConfigError([Problem("pipeline_parallel_size", sizes, expected)])
    if how == "layers":
        return _even(layers, parts)
    if how == "flops":
        return _by_cost(layers, parts, head)
    return _listed(how, layers, stages, chunks)


def most_segments(layers: int, weights: float) -> int:
    """Returns into how many segments backward is divided: one for each bucket of fp32 gradients.

    There are at most 8, because XLA compiles each of them.
    """
    return max(1, min(layers, math.ceil(4 * weights / BUCKET_BYTES), 8))


def _even(layers: int, parts: int) -> tuple[int, ...]:
    """Returns equal numbers; the remainder goes to inner parts, the later ones first, which hold fewer activations."""
    least, left = divmod(layers, parts)
    more = [*range(parts - 2, 0, -1), 0, parts - 1][:left]
    return tuple(least + (part in more) for part in range(parts))


def _listed(how: str, layers: int, stages: int, chunks: int) -> tuple[int, ...]:
    """Returns the numbers of a list, which must be one for each part and add up to the layers."""
    if not re.fullmatch(r"\d+(,\d+)*", how):
        raise ConfigError([Problem("pipeline_split", how, "expected layers, flops, or a list such as 3,4,4,1")])
    numbers, parts = tuple(map(int, how.split(","))), stages * chunks
    sizes = f"--pipeline_parallel_size={stages} x --virtual_pipeline_size={chunks}"
    reasons = {
        f"expected {parts} numbers for {sizes}, not {len(numbers)}": len(numbers) != parts,
        "expected at least one layer for each model chunk": min(numbers) < 1,
        f"expected a sum of --num_hidden_layers={layers}, not {sum(numbers)}": sum(numbers) != layers,
    }
    if wrong := first_reason(reasons):
        even = ",".join(map(str, _even(layers, parts)))
        raise ConfigError([Problem("pipeline_split", how, f"{wrong}; equal numbers are {even}")])
    return numbers


def _by_cost(layers: int, parts: int, head: float) -> tuple[int, ...]:
    """Returns the division whose costliest part costs least: the last part has the head, the others are even."""
    if parts == 1:
        return (layers,)

    def division(last: int) -> tuple[int, ...]:
        least, left = divmod(layers - last, parts - 1)
        # The later of the other parts get the remainder: they hold fewer activations.
        return (*(least + (part >= parts - 1 - left) for part in range(parts - 1)), last)

    divisions = [division(last) for last in range(1, layers - parts + 2)]
    return min(divisions, key=lambda each: (max(*each[:-1], each[-1] + head), -each[-1]))
