"""Agreement of the order of a table's rows, by memory and by speed, between measured and published figures.

A small model on another machine cannot reproduce figures, but a lever that saves memory there should save memory here.
A pair of rows counts if its measured and its published figures each differ by more than runs of one row do. A run that
stands for one stage of a pipeline counts with its speed divided by the number of stages.
"""

import itertools
from collections.abc import Sequence

from tftrain.bench.published.compare import MIN_DIFFERENCE, differ
from tftrain.bench.table import Record

# Kind, column of the measured figure, column of the published one, and figures of all runs of the base row.
KINDS = (
    ("memory", "peak_gb", "published_gb", "base_peak_gb"),
    ("speed", "samples_per_sec", "published_samples_per_sec_per_gpu", "base_samples_per_sec"),
)


def lines(records: Sequence[Record]) -> list[str]:
    """Returns for memory and for speed a line with the number of pairs of rows that are in the published order."""
    lines = []
    for kind, measured, published, runs in KINDS:
        spread = max((max(record[runs]) / min(record[runs]) - 1 for record in records if record.get(runs)), default=0.0)
        known = [
            (record[measured] / (record.get("stages", 1) if kind == "speed" else 1), record[published])
            for record in records
            if all(isinstance(record.get(name), float | int) for name in (measured, published))
        ]
        signs = [
            (one[0] - other[0]) * (one[1] - other[1]) > 0
            for one, other in itertools.combinations(known, 2)
            if differ(one[0], other[0], spread) and differ(one[1], other[1], MIN_DIFFERENCE)
        ]
        if signs:
            apart = f"{spread:.1%} apart here (as runs of the base row are) or {MIN_DIFFERENCE:.0%} as published"
            order = f"{kind}: {sum(signs)} of {len(signs)} pairs of rows are in the published order"
            lines.append(f"{order}; not counted: pairs less than {apart}")
    return lines
