"""Counts what a run of many ranks does: files, bytes, requests, collectives, and the size of the manifest.

Nothing is estimated. The division of the state, the pieces, the files, the manifest, the files that a rank reads, and
the requests to the launcher's store come from the functions that a run calls. The pieces of all ranks are computed for
one tensor after another, and those of a few ranks also one by one, as each rank does it: both must be equal. The
counters of a run, about eight numbers in the first file, are left out.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tftrain.architecture.describe import describe
from tftrain.checkpoint import announcement, manifest, save, shard, tensor_slice
from tftrain.checkpoint.manifest import CheckpointManifest
from tftrain.checkpoint.placement import Placement, SlicedBlock, SlicedTensor, series_of
from tftrain.checkpoint.reader import share
from tftrain.checkpoint.shard import Written
from tftrain.checkpoint.tensor_slice import DTYPES, TensorSlice, held_slice, renamed
from tftrain.config import data_sizes
from tftrain.config.parallel import BUCKET_BYTES
from tftrain.config.train import TrainConfig
from tftrain.host.units import ITEM_BYTES
from tftrain.optim.state_layout import Bucket, StateLayout, bucket_kinds, bucket_loads, layout
from tftrain.parallel import rendezvous
from tftrain.parallel.buckets import pack
from tftrain.parallel.launcher import Launch
from tftrain.plan import inventory
from tftrain.plan.workload import from_config

SLOTS = ("adam_m", "adam_v")
DIGESTS = {"xxh3_128": "0" * 32, "sha256": "0" * 64}


class Counts(NamedTuple):
    """What a run of so many ranks does; of a rank: the largest number among the ranks that were looked at.

    Attributes:
        buckets: of the state of a rank; each is reduced, and gathered, once in a step.
        reduced_gb, gathered_gb: bytes of the gradients that a rank gives to the data parallel ranks in a step, and of
            the weights that it receives; 10**9.
        tensor_sums: sums over the tensor parallel ranks in a micro-batch.
        pieces, files: of all ranks, in a checkpoint.
        saved_gb: size of a checkpoint, 10**9 bytes.
        manifest_mb, manifest_s: size, 10**6 bytes, and seconds of the processor to parse and check it.
        announcement_kb: what a rank tells the chief about its files, 10**3 bytes.
        opened, read_gb: files that a rank opens to restore, and what it reads of them, 10**9 bytes.
        requests: to the launcher's store, of all ranks, without those of ranks that wait.
        requests_per_s: the most that ranks send that wait.
    """

    buckets: int
    reduced_gb: float
    gathered_gb: float
    tensor_sums: int
    pieces: int
    files: int
    saved_gb: float
    manifest_mb: float
    manifest_s: float
    announcement_kb: float
    opened: int
    read_gb: float
    requests: int
    requests_per_s: float


class Simulation:
    """A run of many ranks.

    Attributes:
        ranks, tensor_ranks, data_ranks: their numbers.
        pieces: by tensor rank, the weights that it holds, by name.
        buckets: by tensor rank, how the data parallel ranks divide the state; None: each of them holds all of it.
    """

    def __init__(self, config: TrainConfig, ranks: int):
        """Divides the state of a run; nothing else is done yet.

        Args:
            config: the model, the number formats and the division among ranks.
            ranks: of the run; the tensor parallel size divides them.
        """
        model, parallel = config.model, config.parallel
        self.ranks, self.tensor_ranks = ranks, parallel.tensor_parallel_size
        self.data_ranks = ranks // self.tensor_ranks
        self._work = from_config(
            dataclasses.replace(config, batch=config.batch.resolve(self.data_ranks)), self.data_ranks
        )
        self._wire = 2 if config.compute.hvd_fp16_compression else 4
        self._by_unit = parallel.split_weights
        vocab_size = data_sizes.synthetic(config.data, model.vocab_size).vocab_size
        weights = describe(dataclasses.replace(model, vocab_size=vocab_size)).variables()
        wide = "fp32" if model.ln_dtype == "fp32" else config.compute.precision
        self._dtypes = [wide if weight.is_norm else config.compute.precision for weight in weights]
        self.pieces: list[dict[str, TensorSlice]] = []
        self.buckets: list[list[Bucket] | None] = []
        for rank in range(self.tensor_ranks):
            held = [held_slice(*weight[:4], rank, self.tensor_ranks) for weight in weights]
            self.pieces.append({piece.name: piece for piece in held})
            splits = parallel.splits_state and self.data_ranks > 1
            self.buckets.append(self._divide(parallel.state_split_strategy, held) if splits else None)

    def _divide(self, strategy: str, held: Sequence[TensorSlice]) -> list[Bucket]:
        return layout(
            strategy,
            [each.name for each in held],
            [each.size for each in held],
            bucket_kinds(held, self._dtypes, by_unit=self._by_unit),
            self.data_ranks,
            BUCKET_BYTES // 4,
            bucket_loads(held, self.tensor_ranks),
        )

    def layout_of(self, rank: int) -> StateLayout:
        """Returns the pieces of one rank, as the optimizer's state has them."""
        data_rank, tensor_rank = divmod(rank, self.tensor_ranks)
        return StateLayout(self.pieces[tensor_rank], SLOTS, self.buckets[tensor_rank], data_rank, self.data_ranks)

    def files_of(self, rank: int) -> dict[str, Written]:
        """Returns the files that one rank writes, without their digests and headers."""
        files = shard.pack(held.piece for held in self.layout_of(rank).saved())
        return {
            save.file_name(rank, number): Written(sum(each.nbytes for each in pieces), DIGESTS, tuple(pieces))
            for number, pieces in enumerate(files)
        }

    def checkpoint(self) -> Placement:
        """Returns the files of all ranks, with the size of their tensors as their size."""
        free, files = np.zeros(self.ranks, np.int64), np.zeros(self.ranks, np.int64)
        sizes: list[np.ndarray] = []  # of the first, the second ... file of each rank
        rows: dict[str, dict[TensorSlice, list[tuple[np.ndarray, ...]]]] = {}
        # As `shard.pack`, one piece of all ranks after the other.
        for whole, first_piece in sorted(self._saved().items(), key=lambda each: shard_key(each[1][0][0])):
            for held, ranks, starts, stops in first_piece:
                size = (stops - starts) * DTYPES[held.dtype].itemsize
                full = free[ranks] <= 0
                files[ranks] += full
                free[ranks] = np.where(full, shard.SHARD_BYTES, free[ranks]) - size
                rows.setdefault(whole, {}).setdefault(held, []).append((ranks, files[ranks] - 1, starts, stops))
                for number in range(int(files[ranks].max(initial=0))):
                    if number == len(sizes):
                        sizes.append(np.zeros(self.ranks, np.int64))
                    sizes[number][ranks] += np.where(files[ranks] == number + 1, size, 0)
        first = np.cumsum(files) - files
        written = {
            save.file_name(rank, number): Written(int(sizes[number][rank]), DIGESTS, ())
            for rank in range(self.ranks)
            for number in range(files[rank])
        }
        tensors = {}
        for name, blocks in rows.items():
            found = []
            for held, parts in blocks.items():
                ranks, numbers, starts, stops = map(np.concatenate, zip(*parts, strict=True))
                series = series_of(np.stack([first[ranks] + numbers, starts, stops], axis=1))
                found.append(SlicedBlock(held.offset, held.shape, tuple(series)))
            tensors[name] = SlicedTensor("F32", next(iter(blocks)).whole, tuple(found))
        return Placement(written, tensors)

    def _saved(self) -> Mapping[str, list[tuple[TensorSlice, np.ndarray, np.ndarray, np.ndarray]]]:
        """Returns, by tensor, the blocks that ranks save: the block, the ranks, and starts and stops of ranges."""
        found: dict[str, list] = {}
        for tensor_rank, (pieces, buckets) in enumerate(zip(self.pieces, self.buckets, strict=True)):
            if buckets is None:
                # Each rank saves few pieces, so all are computed one by one.
                for data_rank in range(self.data_ranks):
                    rank = tensor_rank + self.tensor_ranks * data_rank
                    for held in self.layout_of(rank).saved():
                        block = TensorSlice.block(
                            held.piece.name, held.piece.whole, "F32", held.piece.offset, held.piece.shape
                        )
                        cut = (np.array([number]) for number in (rank, held.piece.start, held.piece.stop))
                        found.setdefault(block.name, []).append((block, *cut))
                continue
            all_pieces = list(pieces.values())
            for bucket in buckets:
                for tensor in bucket.tensors:
                    held = all_pieces[tensor]
                    if held.replica_id != 0:
                        continue
                    first, starts, stops = bucket.shards(tensor, held.size)
                    ranks = tensor_rank + self.tensor_ranks * np.arange(first, first + len(starts))
                    for kind in ("master", *SLOTS):
                        block = renamed(held, kind)
                        found.setdefault(block.name, []).append((block, ranks, starts, stops))
        return found

    def counts(self, sampled: Sequence[int] = ()) -> Counts:
        """Counts everything.

        Args:
            sampled: ranks to look at one by one; by default some of the first, the middle and the last.

        Raises:
            AssertionError: what a rank does is not what the checkpoint of all ranks says.
        """
        last = self.ranks - 1
        sampled = sampled or sorted({0, min(1, last), last // 3, last // 2, max(last - 1, 0), last})
        saved = self.checkpoint()
        text = manifest.encode(CheckpointManifest(1, saved, {}))
        begin = time.process_time()
        placement = manifest.decode(text, manifest.NAME).files
        seconds = time.process_time() - begin
        announced, opened, read = [], [], []
        for rank in sampled:
            files = self.files_of(rank)
            for name, file in files.items():
                assert placement[name].pieces == file.pieces, f"rank {rank} does not write {name} like that"
            announced.append(len(announcement.encode(files)))
            found = self.read_by(rank, placement)
            opened.append(len(found))
            read.append(sum(found.values()))
        reduced, gathered = self.step_bytes()
        return Counts(
            buckets=max(map(len, self.reductions())),
            reduced_gb=reduced / 1e9,
            gathered_gb=gathered / 1e9,
            tensor_sums=self.tensor_sums(),
            pieces=sum(s.count for tensor in saved.tensors.values() for block in tensor.blocks for s in block.series),
            files=len(saved),
            saved_gb=sum(file.bytes for file in saved.files.values()) / 1e9,
            manifest_mb=len(text) / 1e6,
            manifest_s=seconds,
            announcement_kb=max(announced) / 1e3,
            opened=max(opened),
            read_gb=max(read) / 1e9,
            requests=requests(self.ranks),
            requests_per_s=self.ranks / rendezvous.pause_after(0, self.ranks),
        )

    def read_by(self, rank: int, placement: Placement) -> dict[str, int]:
        """Returns the bytes that a rank reads of each file that it opens to restore its state."""
        wanted = [held.piece for held in self.layout_of(rank).held()]
        checked = share(placement.files, rank, self.ranks)
        read = {}
        for name in {*checked}.union(*map(placement.holders, wanted)):
            by_name = {each.name: each for each in wanted}
            read[name] = placement.files[name].bytes
            if name not in checked:
                stored = placement[name].pieces
                read[name] = sum(
                    s.nbytes for s in stored if s.name in by_name and tensor_slice.overlap(s, by_name[s.name])
                )
        return read

    def reductions(self) -> list[list[int]]:
        """Returns, by tensor rank, the elements of each collective that sums the gradients of a step."""
        return [
            [sum(sizes[place] for place in places) for places in pack([4 * s for s in sizes], BUCKET_BYTES)]
            if buckets is None
            else [bucket.bounds[-1] for bucket in buckets]
            for buckets, sizes in (
                (buckets, [piece.size for piece in reversed(pieces.values())])
                for buckets, pieces in zip(self.buckets, self.pieces, strict=True)
            )
        ]

    def tensor_sums(self) -> int:
        """Returns the number of sums over the tensor parallel ranks in a micro-batch, as the planner lists them."""
        parts = inventory.parts(self._work)
        times = parts._replace(block=self._work.model.layers, embedding=1, head=1)
        return sum(count * sum(map(len, part.sums)) for part, count in zip(parts, times, strict=True))

    def step_bytes(self) -> tuple[int, int]:
        """Returns the bytes of the gradients and of the gathered weights of a step, of the fullest tensor rank."""
        reduced = max(map(sum, self.reductions())) * self._wire
        gathered = [
            sum(bucket.bounds[-1] * ITEM_BYTES[self._dtypes[bucket.tensors[0]]] for bucket in buckets or ())
            for buckets in self.buckets
        ]
        return reduced, max(gathered)


def shard_key(held: TensorSlice) -> tuple[int, str]:
    """Returns what `shard.in_file_order` sorts by; all pieces of the state are fp32."""
    return -DTYPES[held.dtype].itemsize, held.name


class _Requests:
    """A store that counts requests and answers at once, also for ranks that have not come yet."""

    def __init__(self, ranks: int):
        self._ranks = ranks
        self.count = 0

    def put(self, name: str, value: str, seconds: float) -> None:
        self.count += 1

    def wait(self, name: str, seconds: float, ranks: int = 1) -> str:
        self.count += 1
        return json.dumps(["yes"] * self._ranks) if name == "all_present" else "yes"


def requests(ranks: int) -> int:
    """Returns the requests to the launcher's store until all ranks start Horovod, if no rank has to wait."""
    store, environ = _Requests(ranks), {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "host", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    for rank in range(ranks):
        launch = Launch(rank, ranks)
        rendezvous.value_of_rank_0(launch, "tensor_parallel_size", "1", environ, connect=lambda _: store)
        assert rendezvous.await_all(launch, environ, connect=lambda _: store) == ["yes"] * ranks
    return store.count
