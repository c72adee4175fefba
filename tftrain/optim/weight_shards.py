"""The weights of a model of which each rank holds a shard (ZeRO-3, Rajbhandari et al., arXiv 1910.02054).

The shards are the master weights. A bucket has weights of one unit: the token embedding, the other embeddings, a block,
or what follows the blocks. So the ranks gather what a part of the model computes with, in the model's dtype, and sum
its gradients when its backward ends.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tftrain.model.gathered_weights import fill, release
from tftrain.model.part import ModelPart
from tftrain.optim.state_layout import EMBEDDINGS, HEADS, TOKENS, unit_of
from tftrain.optim.state_split import StateSplit


class WeightShards:
    """Gathers and releases the variables of a model, bucket by bucket."""

    def __init__(
        self, split: StateSplit, names: Sequence[str], targets: Sequence[tf.Variable], masters: Sequence[tf.Variable]
    ):
        """Takes the model's variables, which are released, by name, and this rank's shard of each bucket."""
        self._split, self._targets, self._masters = split, targets, masters
        self._units = [unit_of(names[bucket.tensors[0]]) for bucket in split.buckets]

    def buckets_of(self, part: ModelPart, tied: bool) -> list[int]:
        """Returns the buckets of the weights of a part; `tied`: the token embedding is the output layer too."""
        units = [f"layer_{index:02d}" for index in part.blocks]
        units += [TOKENS, EMBEDDINGS] * part.embedding + [HEADS, *[TOKENS] * tied] * part.heads
        return [number for number, unit in enumerate(self._units) if unit in units]

    def gather(self, bucket: int, name: str) -> None:
        """Gives the variables of a bucket their values; every rank must call it, with a unique name."""
        dtype = self._targets[self._split.buckets[bucket].tensors[0]].dtype
        for index, value in self._split.gather(bucket, tf.cast(self._masters[bucket], dtype), name):
            fill(self._targets[index], value)

    def release(self, bucket: int) -> None:
        """Frees the memory of the variables of a bucket."""
        for index in self._split.buckets[bucket].tensors:
            release(self._targets[index])

    def reduce(
        self, buckets: Sequence[int], gradients: Mapping[int, tf.Tensor], name: str, wire_dtype: tf.DType
    ) -> dict[int, tf.Tensor]:
        """Sums gradients over the ranks: the index of a variable -> gradient, for all of a bucket or for none.

        Returns:
            For each bucket with gradients, this rank's shard of the sum, flat, in fp32.
        """
        used = [number for number in buckets if not gradients.keys().isdisjoint(self._split.buckets[number].tensors)]
        return {number: self._split.reduce(number, gradients, f"{name}.{number}", wire_dtype) for number in used}
