"""The lengths of `--seq_length_buckets`, to which batches of shorter examples are cut."""

import re

from tftrain.config.fields import Problem, first_reason

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
        divisor: every length must be a multiple of it; it is the number of tensor parallel ranks that partition a
            sequence.
    """
    expected = ""
    if text != NONE and not _FORMAT.fullmatch(text):
        expected = "expected none, or lengths separated by commas, such as 128,256,512"
    elif text != NONE:
        lengths = [int(length) for length in text.split(",")]
        odd = any(length % divisor for length in lengths)
        reasons = {
            "expected lengths in ascending order": lengths != sorted(set(lengths)),
            f"expected lengths of at most --max_seq_length={longest}": longest is not None and lengths[-1] > longest,
            f"expected multiples of --tensor_parallel_size={divisor} with --sequence_parallel": odd,
        }
        expected = first_reason(reasons)
    return [Problem("seq_length_buckets", text, expected)] if expected else []
