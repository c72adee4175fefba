"""The lengths of `--seq_length_buckets`, to which batches of shorter examples are cut."""

import itertools
import re

from tftrain.config.fields import Problem

NONE = "none"
_FORMAT = re.compile(r"[1-9]\d{0,8}(,[1-9]\d{0,8})*")


def read(text: str, longest: int) -> tuple[int, ...]:
    """Returns the lengths of a flag without problems, ascending; `longest`, max_seq_length, is always one of them."""
    lengths = () if text == NONE else tuple(map(int, text.split(",")))
    return (*(length for length in lengths if length < longest), longest)


def problems(text: str, longest: int | None, divisor: int) -> list[Problem]:
    """Returns why these lengths are refused.

    Args:
        longest: max_seq_length; None: not known yet.
        divisor: what all lengths are multiples of: the tensor parallel ranks that divide a sequence.
    """

    def problem(expected: str) -> list[Problem]:
        return [Problem("seq_length_buckets", text, expected)]

    if text == NONE:
        return []
    if not _FORMAT.fullmatch(text):
        return problem("expected none, or lengths separated by commas, such as 128,256,512")
    lengths = [int(length) for length in text.split(",")]
    if any(before >= after for before, after in itertools.pairwise(lengths)):
        return problem("expected lengths in ascending order")
    if longest is not None and lengths[-1] > longest:
        return problem(f"expected lengths of at most --max_seq_length={longest}")
    if any(length % divisor for length in lengths):
        return problem(f"expected multiples of --tensor_parallel_size={divisor} with --sequence_parallel")
    return []
