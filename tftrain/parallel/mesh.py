"""The topology of a run: the coordinates of each rank, and the groups of ranks that communicate.

This module starts no communication: `tftrain.parallel.start` connects the ranks. The tensor coordinate varies fastest,
so the ranks that partition a layer are neighbours, usually on one host. The data coordinate is next. The pipeline
stages exchange the least data, so they are farthest apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tftrain.host.exit_codes import RunError

# Among the kinds of groups in `Mesh.tensorflow_kinds`: the program that XLA compiles sums gradients.
SUMS_OF_XLA = ("sums of XLA",)


class MeshError(RunError):
    """The launched ranks can't work together; the message gives the reason and what to do."""


class AgreedMeshError(MeshError):
    """All ranks have found the same reason."""

    on_all_ranks = True


@dataclass(frozen=True)
class Group:
    """Ranks that take part in the same collectives."""

    name: str = "world"  # a kind of `Mesh.groups`
    ranks: tuple[int, ...] = (0,)  # their global ranks, ascending
    rank: int = 0  # this process's index among them
    # Horovod's handle of the group; None for all ranks.
    process_set: Any = field(default=None, compare=False, repr=False)
    # `PendingCollectives` of this process; None in a group of one.
    pending: Any = field(default=None, compare=False, repr=False)
    by_tensorflow: bool = False  # whether TensorFlow's own collectives are its transport; else Horovod's

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def share(self, count: int) -> tuple[int, int]:
        """Returns [start, stop) of this rank's share of `count` items; all shares have the same size."""
        size = count // self.size
        return self.rank * size, (self.rank + 1) * size


@dataclass(frozen=True)
class Mesh:
    """All ranks, arranged in stages, data parallel ranks and tensor parallel ranks.

    rank = tensor rank + tensor_parallel_size * (data rank + data_parallel_size * stage).
    """

    rank: int = 0  # this process's number among all
    size: int = 1  # number of all processes
    local_rank: int = 0  # among the processes on this host
    local_size: int = 1  # number of the processes on this host
    tensor_parallel_size: int = 1  # ranks that partition every layer
    pipeline_parallel_size: int = 1  # stages, each with some of the layers
    # Data parallel ranks that partition a state, in a run of one stage; None: all. Others hold the same shards.
    split_size: int | None = None
    # Horovod's process sets by their ranks.
    process_sets: Mapping[tuple[int, ...], Any] = field(default_factory=dict, compare=False, repr=False)
    # `PendingCollectives` of this process, for all groups; None if it runs alone.
    pending: Any = field(default=None, compare=False, repr=False)
    tensorflow_kinds: tuple[str, ...] = ()  # the kinds of groups whose transport is TensorFlow; or SUMS_OF_XLA

    @property
    def groups(self) -> dict[str, list[tuple[int, ...]]]:
        """All groups by kind; every rank is in one group of each kind.

        - world: all ranks.
        - data: the ranks that hold the same shard of the model and share a global batch.
        - tensor: the ranks that partition the layers of one stage and see the same samples.
        - pipeline: the ranks that hold the same shard of different layers and see the same samples.
        - model: the ranks that hold the whole model once: tensor parallel ranks of all stages.
        - stage: the ranks that hold the same layers: tensor and data parallel ranks of one stage.

        With a split size:

        - split: the data parallel ranks that partition a state.
        - replica: the data parallel ranks that hold the same shards.
        - holders: the ranks that together hold every shard once.
        """
        tensor, per_stage = self.tensor_parallel_size, self.size // self.pipeline_parallel_size
        firsts = range(0, self.size, per_stage)
        groups = {
            "world": [tuple(range(self.size))],
            "data": [tuple(range(f + index, f + per_stage, tensor)) for f in firsts for index in range(tensor)],
            "tensor": [tuple(range(first, first + tensor)) for first in range(0, self.size, tensor)],
            "pipeline": [tuple(range(index, self.size, per_stage)) for index in range(per_stage)],
            "model": [
                tuple(first + start + rank for first in firsts for rank in range(tensor))
                for start in range(0, per_stage, tensor)
            ],
            "stage": [tuple(range(first, first + per_stage)) for first in firsts],
        }
        if split := self.split_size:
            data, holders = groups["data"], split * tensor
            groups["split"] = [line[first : first + split] for line in data for first in range(0, len(line), split)]
            groups["replica"] = [line[index::split] for line in data for index in range(split)]
            groups["holders"] = [tuple(range(first, first + holders)) for first in range(0, self.size, holders)]
        return groups

    @property
    def links(self) -> list[tuple[int, int]]:
        """All pairs of ranks that send each other activations and gradients: the same place in neighbouring stages.

        The last stage and the first are neighbours too: they share a tied token embedding, and interleaved schedules go
        around.
        """
        if self.pipeline_parallel_size == 1:
            return []
        rings = [(line, (*line[1:], line[0])) for line in self.groups["pipeline"]]
        return list(dict.fromkeys(tuple(sorted(pair)) for ring in rings for pair in zip(*ring, strict=True)))

    def link(self, other_stage: int) -> Group:
        """Returns this rank and the one at the same place in another, neighbouring stage."""
        return self._group("link", tuple(sorted((self.rank, self.pipeline.ranks[other_stage]))))

    @property
    def pipeline(self) -> Group:
        """The ranks that hold the same shard of different layers, and see the same samples."""
        return self.group("pipeline")

    def group(self, kind: str) -> Group:
        """Returns this rank's group of a kind, see `groups`."""
        ranks = next(ranks for ranks in self.groups[kind] if self.rank in ranks)
        return self._group(kind, ranks)

    def _group(self, kind: str, ranks: tuple[int, ...]) -> Group:
        rank, by_tensorflow = ranks.index(self.rank), kind in self.tensorflow_kinds
        return Group(kind, ranks, rank, self.process_sets.get(ranks), self.pending, by_tensorflow)

    @property
    def world(self) -> Group:
        """All ranks."""
        return self.group("world")

    @property
    def data(self) -> Group:
        """The ranks that hold the same shard of the model and share a global batch."""
        return self.group("data")

    @property
    def split(self) -> Group:
        """The data parallel ranks that partition a state."""
        return self.group("split") if self.split_size else self.data

    @property
    def replicas(self) -> Group:
        """The data parallel ranks that hold the same shards of a state; only this rank where none is partitioned."""
        return self.group("replica") if (self.split_size or 1) > 1 else Group("replica", (self.rank,))

    @property
    def tensor(self) -> Group:
        """The ranks that partition the layers of this stage and see the same samples."""
        return self.group("tensor")

    @property
    def is_chief(self) -> bool:
        """Whether this process writes logs, metrics and manifests of checkpoints."""
        return self.rank == 0

    @property
    def stage(self) -> int:
        """This rank's stage of the pipeline, from 0."""
        return self.rank // (self.size // self.pipeline_parallel_size)
