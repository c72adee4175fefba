"""Mixtures: the samples of a run come from several prepared data sets, each with a fixed share of them.

The examples of all sources are numbered one source after another, so every other module sees one data set; only the
order of the examples is another one. Sample n belongs to the source in whose interval of [0, 1), as long as its share,
frac(n * phi) lies. The multiples of the golden ratio phi are spread as evenly as a sequence can be (Niederreiter,
"Random Number Generation and Quasi-Monte Carlo Methods", 1992, section 3.1), so every run of samples has the shares.
Here phi is a ratio of two Fibonacci numbers. Then the sequence repeats after `PERIOD` samples, and tables of one period
tell the source of a sample and how many of the samples before it have the same source. That number is the sample's
number in its source, which has epochs of its own (`order`).
"""

import functools
import os
import zlib
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from tftrain.config import mixture
from tftrain.config.data import DataConfig
from tftrain.config.mixture import PERIOD, Source
from tftrain.data.left_out import NOTHING, LeftOut
from tftrain.data.manifest import NAME, Manifest, read_manifest
from tftrain.data.mirror import local_folder
from tftrain.data.order import derive_key, example_ids
from tftrain.files import addresses
from tftrain.files.errors import DataError
from tftrain.host.text import listed

_STEP = 514229  # the Fibonacci number before PERIOD
_SHOWN = 8
# What must not differ between sources, and the flags of tftrain.prepare that decide it.
_ALIKE = {
    "objective": "objective",
    "vocab_sha256": "vocab_file",
    "normalization": "normalization",
    "lower_case": "lower_case",
    "strip_accents": "strip_accents",
    "max_seq_length": "max_seq_length",
    "masking": "masking",
    "max_predictions_per_seq": "max_predictions_per_seq",
    "max_sequences_per_pack": "max_sequences_per_pack",
    "next_sentence": "next_sentence",
}


class Mixture:
    """The samples of sources, given the number of the examples of each."""

    def __init__(self, sizes: Mapping[Source, int]):
        self.sources, self.sizes = list(sizes), list(sizes.values())
        self.number(sorted(source.name for source in sizes))
        self._begins = np.cumsum([0, *self.sizes])
        ends = np.floor(np.cumsum([source.share for source in sizes]) * PERIOD + 0.5).astype(np.int64)
        ends[-1] = PERIOD
        begins = np.concatenate([[0], ends[:-1]])
        self._counts = ends - begins  # of the samples of a period
        self._source = np.searchsorted(ends, np.arange(PERIOD) * _STEP % PERIOD, side="right").astype(np.int32)
        by_source = np.argsort(self._source, kind="stable")
        self._before = np.empty(PERIOD, np.int32)
        self._before[by_source] = np.arange(PERIOD) - begins[self._source[by_source]]

    def example_numbers(self, samples: np.ndarray, seed: int) -> np.ndarray:
        """Maps sample numbers from 0, int64 [n], to example numbers, int64 [n]."""
        periods, places = np.divmod(samples, PERIOD)
        of_samples = self._source[places]
        numbers = periods * self._counts[of_samples] + self._before[places]
        chosen = np.empty_like(numbers)
        for source in np.unique(of_samples):
            own = of_samples == source
            key = int(derive_key(seed, zlib.crc32(self.sources[source].name.encode()))) >> 1
            chosen[own] = self._begins[source] + example_ids(numbers[own], self.sizes[source], key)
        return chosen

    def number(self, names: Sequence[str]) -> None:
        """Numbers the sources by their places among `names`, such as those of all phases of a run."""
        places = {name: place for place, name in enumerate(names)}
        self._places = np.array([places[source.name] for source in self.sources], np.int32)

    def sources_of(self, examples: np.ndarray) -> np.ndarray:
        """Maps example numbers, int64 [n], to the numbers of their sources, int32 [n]."""
        return self._places[np.searchsorted(self._begins, examples, side="right") - 1]

    def rows(self, source: int) -> range:
        """Returns the numbers of the examples of a source."""
        return range(int(self._begins[source]), int(self._begins[source + 1]))

    def consumed(self, samples: int) -> np.ndarray:
        """Returns how many of the first `samples` come from each source, int64 [sources]."""
        periods, places = divmod(samples, PERIOD)
        return periods * self._counts + np.bincount(self._source[:places], minlength=len(self.sizes))

    def words(self, samples: int, first: int = 0, left_out: LeftOut = NOTHING) -> str:
        """Returns share, size and epochs of each source, from sample `first` of the run to `samples`, for the log."""
        before, after = (left_out.total(number, self.consumed) for number in (first, samples))
        counts = (after - before).tolist()
        words_of = [
            f"{source.name} {source.share:.2%} of the samples, {count / size:.2f} epochs of {size}"
            for source, size, count in zip(self.sources, self.sizes, counts, strict=True)
        ]
        return listed(words_of, _SHOWN)


def read_prepared(data: DataConfig) -> Manifest:
    """Returns the manifest of data_dir; of a mixture, one that has the shards of all sources and their manifests.

    Raises:
        DataError: a manifest can't be used, a source has no training data, or sources do not fit together.
    """
    if not data.mix:
        return read_manifest(local_folder(data.data_dir, data.cache))
    try:
        sources = mixture.read(data.mix, data.mix_temperature)
    except ValueError as error:
        raise DataError(f"--mix={data.mix}: {error}") from error
    folders = addresses.in_parallel(lambda source: local_folder(source.folder, data.cache), sources)
    return _merged(tuple(sources), tuple(folders), tuple(map(_stamp, folders)))


def _stamp(folder: str) -> tuple[int, int] | None:
    """Returns what changes with the manifest in a folder; None if there is none."""
    try:
        status = os.stat(os.path.join(folder, NAME))
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=4)  # Several checks before a start read the manifests, which may be a thousand.
def _merged(
    sources: tuple[Source, ...], folders: tuple[str, ...], stamps: tuple[tuple[int, int] | None, ...]
) -> Manifest:
    first = read_manifest(folders[0])
    manifests = [first, *(read_manifest(folder, first.vocab_sha256) for folder in folders[1:])]
    for source, manifest in zip(sources, manifests, strict=True):
        if fault := difference(first, manifest):
            raise DataError(f"{source.name} and {sources[0].name} do not fit together: {source.folder} has {fault}")
        if not manifest.examples("train"):
            raise DataError(f"{source.name}: the train split of {source.folder} is empty; leave this source out")
    splits = {
        split: [
            msgspec.structs.replace(shard, file=os.path.abspath(manifest.path(shard.file)))
            for manifest in manifests
            for shard in manifest.splits[split]
        ]
        for split in first.splits
    }
    return msgspec.structs.replace(first, splits=splits, sources=tuple(zip(sources, manifests, strict=True)))


def difference(first: Manifest, other: Manifest, names: Collection[str] = tuple(_ALIKE)) -> str | None:
    """Returns which of `names` another manifest has not as the first, by default what can't be mixed; or None."""
    for name, flag in _ALIKE.items():
        one, two = getattr(first, name), getattr(other, name)
        if name in names and one != two:
            return f"{name} {two}, {first.folder} has {one}; prepare both with the same --{flag}"
    return None
