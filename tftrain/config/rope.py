"""The scaling of rotary positions by which a model was prepared for sequences longer than those it was trained on."""

import math
import re
from typing import NamedTuple

NONE = "none"
EXPECTED = (
    "expected none, or llama3:FACTOR,LOW,HIGH,LENGTH with FACTOR at least 1 and LOW below HIGH, such as "
    "llama3:8,1,4,8192"
)
_NUMBER = r"(\d+(?:\.\d+)?)"
_LLAMA3 = re.compile(rf"llama3:{_NUMBER},{_NUMBER},{_NUMBER},(\d+)")


class RopeScaling(NamedTuple):
    """Llama 3's scaling, as `rope_type: llama3` of transformers: long waves turn more slowly."""

    factor: float  # by which a wave that fits less than `low` times into `length` is stretched
    low: float  # a wave that fits at least `high` times stays as it is; between the two, the factor changes smoothly
    high: float
    length: int  # tokens of the sequences before the scaling

    def __str__(self) -> str:
        return "llama3:" + ",".join(f"{number:g}" if number < 1e6 else str(int(number)) for number in self)


def parse(text: str) -> RopeScaling | None:
    """Returns the scaling that a value of --rope_scaling names; None: there is none.

    Raises:
        ValueError: the text names none.
    """
    if text == NONE:
        return None
    if not (match := _LLAMA3.fullmatch(text)):
        raise ValueError(EXPECTED)
    factor, low, high = (float(group) for group in match.groups()[:3])
    scaling = RopeScaling(factor, low, high, int(match[4]))
    if factor < 1 or not low < high or not scaling.length or not math.isfinite(high):
        raise ValueError(EXPECTED)
    return scaling
