"""`--mix`: named folders of prepared data, or labelled files, and the share of the samples that each gives."""

import math
import os
import re
from typing import NamedTuple

from tftrain.config.fields import Problem
from tftrain.files.addresses import absolute
from tftrain.files.lines import of_file
from tftrain.files.reading import expanded

# Shares are multiples of 1 / PERIOD; a Fibonacci number, see `tftrain.data.mixture`.
PERIOD = 832040
_ENTRY = re.compile(r"([\w.-]+)=([^:,]+):\s*([^,]+)")
_FORM = "expected NAME=SHARE:PATH, several separated by commas, or a file with one on each line"
_MAX_BYTES = 4 << 20


class Source(NamedTuple):
    """Prepared data of a mixture, or a labelled file."""

    name: str
    share: float  # its part of the samples; the shares of all sources are 1 together
    path: str


def read(value: str, temperature: float = 1.0) -> list[Source]:
    """Returns the sources of a value of `--mix`, which is a list of sources, or a file with them.

    Each share is raised to 1 / temperature. Then all are divided by their sum.

    Raises a ValueError if the value can't be read, or if a source has no share or occurs twice. The message says why.
    """
    named: dict[str, Source] = {}
    paths: dict[str, str] = {}
    for entry in _entries(value):
        try:
            name, text, path = _ENTRY.fullmatch(entry).groups()
            share = float(text)
        except (AttributeError, ValueError):  # It has another form, or its share is no number.
            raise ValueError(f"{entry}: {_FORM}") from None
        if not 0 < share < math.inf:
            raise ValueError(f"{entry}: expected a share above 0; leave a source without a share out")
        if name in named:
            raise ValueError(f"{entry}: the name {name} is there twice; expected one for each source")
        other = paths.setdefault(os.path.realpath(path), name)
        if other != name:
            raise ValueError(f"{entry}: {name} and {other} are the same data; add their shares up")
        named[name] = Source(name, share, path)
    if not named:
        raise ValueError(_FORM)
    largest = max(source.share for source in named.values())
    exponent = 1 / temperature if temperature > 0 else 1  # Another temperature is refused as a flag.
    weights = [(source.share / largest) ** exponent for source in named.values()]
    total = math.fsum(weights)
    sources = [each._replace(share=weight / total) for each, weight in zip(named.values(), weights, strict=True)]
    smallest = min(sources, key=lambda source: source.share)
    if smallest.share * PERIOD < 1:
        raise ValueError(f"{smallest.name} has {smallest.share:.1e} of the samples; expected at least {1 / PERIOD:.1e}")
    return sources


def problems(
    mix: str | None, temperature: float, by: str = "sample", is_labelled: bool = True, ramp: str = "none"
) -> list[Problem]:
    """Returns what is wrong with --mix, --mix_temperature and --mix_by, without a look at the data.

    `is_labelled`: whether the mixture has files of labelled examples. `ramp`: the value of --batch_rampup.
    """
    if not mix:
        return []
    try:
        read(mix, temperature)
    except ValueError as error:
        return [Problem("mix", mix, str(error))]
    if by != "batch" or (is_labelled and ramp == "none"):
        return []
    ramped = "expected sample: --batch_rampup changes the size of the batches"
    return [Problem("mix_by", by, ramped if is_labelled else "expected sample, or a --task other than pretraining")]


def with_absolute_paths(value: str | None) -> str | None:
    """Returns a value of `--mix` that means the same in any working folder and after a change of its file."""
    if not value:
        return value
    parts = [entry.partition(":") for entry in _entries(value)]
    return ",".join(f"{share}:{absolute(path.strip())}" for share, _, path in parts)


def _entries(value: str) -> list[str]:
    if not os.path.isfile(value):
        return [line.strip() for line in value.split(",") if line.strip()]
    return [expanded(line.strip()) for line in of_file(value, _FORM, _MAX_BYTES) if line.strip()]
