"""Advice for data of which much is padding: what packing, or batches of similar length, would give.

The factors are estimates from the lengths of the examples alone: positions now / positions then. They are factors in
real examples and tokens a second if a position takes equal time.
"""

from collections import Counter

from tftrain.config.prepare import PrepareConfig
from tftrain.prepare.packing import row_count

_MUCH_PADDING = 0.25
_LEAST_FACTOR = 1.1
_MOST_IN_ROW = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# More examples in a row are advised only for so much fewer rows.
_WORTH = 1.03
# Packing takes time for each different length. Longer ones are rounded up to so many.
_DIFFERENT_LENGTHS = 256


def advice(lengths: Counter, config: PrepareConfig) -> str | None:
    """Returns a line for the log, given the number of examples of each length in tokens; None if little is padding."""
    length = config.max_seq_length
    positions = lengths.total() * length
    padding = 1 - sum(tokens * count for tokens, count in lengths.items()) / max(1, positions)
    if not positions or padding <= _MUCH_PADDING or config.packing != "none":
        return None
    factors = {}
    if config.masking == "dynamic":
        most, rows = _packing(lengths, length)
        factors[f"--packing=greedy --max_sequences_per_pack={most}"] = lengths.total() / rows
    buckets = (length // 4, length // 2)
    cut = sum(count * next((most for most in buckets if tokens <= most), length) for tokens, count in lengths.items())
    factors[f"--seq_length_buckets={buckets[0]},{buckets[1]} of tftrain.run"] = positions / cut
    said = [f"{factor:.1f} with {flags}" for flags, factor in factors.items() if factor >= _LEAST_FACTOR]
    if not said:
        return None
    return (
        f"{padding:.0%} of the positions are padding; estimated factor in real examples a second: {', or '.join(said)} "
        "(positions now / positions then)"
    )


def _packing(lengths: Counter, row_length: int) -> tuple[int, int]:
    """Returns how many examples a row should have at most, and the number of rows then."""
    unit = -(-row_length // _DIFFERENT_LENGTHS)
    counts = [0] * (row_length // unit + 1)
    for tokens, count in lengths.items():
        counts[min(-(-tokens // unit), len(counts) - 1)] += count
    best = (1, lengths.total())
    for most in _MOST_IN_ROW:
        rows = row_count(counts, len(counts) - 1, most)
        if rows * _WORTH > best[1]:
            break
        best = (most, rows)
    return best
