"""Mixtures: the samples of a run come from several prepared data sets, each with a fixed share of them.

The examples of all sources are numbered one source after another, so every other module sees one data set; only the
order of the examples is another one. Sample n belongs to the source in whose interval of [0, 1), as long as its share,
frac(n * phi) lies. The multiples of the golden ratio phi are spread as evenly as a sequence can be (Niederreiter,
"Random Number Generation and Quasi-Monte Carlo Methods", 1992, section 3.1), so every run of samples has the shares.
Here phi is a ratio of two Fibonacci numbers. Then the sequence repeats after `PERIOD` samples, and tables of one period
tell the source of a sample and how many of the samples before it have the same source. That number is the sample's
number in its source, which has epochs of its own (`order`). If a global batch has one source, all this holds for
batches, as blocks of samples.
"""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from tftrain.config.data import DataConfig
from tftrain.config.mixture import PERIOD, Source, read
from tftrain.data.left_out import NOTHING, LeftOut
from tftrain.data.order import derive_key, example_ids
from tftrain.files.errors import DataError
from tftrain.host.text import listed

_STEP = 514229  # the Fibonacci number before PERIOD
_SHOWN = 8


def read_sources(data: DataConfig) -> list[Source]:
    """Returns the sources of `--mix`, if it is given; raises a DataError if it can't be read."""
    try:
        return read(data.mix, data.mix_temperature) if data.mix else []
    except ValueError as error:
        raise DataError(f"--mix={data.mix}: {error}") from error


class Mixture:
    """The samples of sources, given the number of the examples of each; each `block` of samples has one source."""

    def __init__(self, sizes: Mapping[Source, int], block: int = 1):
        self.block = block
        self.sources, self.sizes = list(sizes), list(sizes.values())
        self.number(sorted(source.name for source in sizes))
        self._begins = np.cumsum([0, *self.sizes])
        ends = np.floor(np.cumsum([source.share for source in sizes]) * PERIOD + 0.5).astype(np.int64)
        ends[-1] = PERIOD
        begins = np.concatenate([[0], ends[:-1]])
        self._counts = ends - begins  # samples of a period by source
        self._source = np.searchsorted(ends, np.arange(PERIOD) * _STEP % PERIOD, side="right").astype(np.int32)
        by_source = np.argsort(self._source, kind="stable")
        self._before = np.empty(PERIOD, np.int32)
        self._before[by_source] = np.arange(PERIOD) - begins[self._source[by_source]]

    def example_numbers(self, samples: np.ndarray, seed: int) -> np.ndarray:
        """Maps sample numbers from 0, int64 [n], to example numbers, int64 [n]."""
        blocks, offsets = np.divmod(samples, self.block)
        periods, places = np.divmod(blocks, PERIOD)
        of_samples = self._source[places]
        numbers = (periods * self._counts[of_samples] + self._before[places]) * self.block + offsets
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
        blocks, rest = divmod(samples, self.block)
        periods, places = divmod(blocks, PERIOD)
        counts = periods * self._counts + np.bincount(self._source[:places], minlength=len(self.sizes))
        return counts * self.block + rest * (np.arange(len(counts)) == self._source[places])

    def describe(self, samples: int, first: int = 0, left_out: LeftOut = NOTHING) -> str:
        """Returns share, samples and epochs of each source, from sample `first` of the run to `samples`, for a log."""
        before, after = (left_out.total(number, self.consumed) for number in (first, samples))
        counts = (after - before).tolist()
        words_of = [
            f"{source.name} {source.share:.2%} of the samples ({count}), {count / size:.2f} epochs of {size}"
            for source, size, count in zip(self.sources, self.sizes, counts, strict=True)
        ]
        return listed(words_of, _SHOWN)
