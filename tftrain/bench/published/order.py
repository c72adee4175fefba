"""Whether the rows of a table are in the same order here as they were published: the smaller first, the faster first.

A small model on another machine can't repeat figures, but a lever that saves memory there should save some here. Pairs
of rows count of which both figures lie further apart than runs of one row do. Where a run stands for one of the stages
of a pipeline, its speed counts as divided among all of them: so many more devices would share it.
"""

import itertools
from collections.abc import Sequence

from tftrain.bench.table import Record
from tftrain.plan.published.compare import differ

PUBLISHED_APART = 0.05  # 22 configurations of the published sweep ran twice, 2.8 % apart in the mean
# What is compared: its name, its figure here and as published, and the figures of all runs of the base row.
KINDS = (
    ("memory", "peak_gb", "published_gb", "base_peak_gb"),
    ("speed", "samples_per_sec", "published_samples_per_sec_per_gpu", "base_samples_per_sec"),
)


def lines(records: Sequence[Record]) -> list[str]:
    """Returns for memory and for speed how many pairs of rows are in the published order, where any can be compared.

    Args:
        records: of a table's rows; those without a figure here or as published are left out.
    """
    found = []
    for kind, here, published, runs in KINDS:
        apart = max((max(record[runs]) / min(record[runs]) - 1 for record in records if record.get(runs)), default=0.0)
        figures = [(_figure(record, here), record.get(published)) for record in records]
        known = [pair for pair in figures if all(isinstance(value, float | int) for value in pair)]
        signs = [
            (one[0] - other[0]) * (one[1] - other[1]) > 0
            for one, other in itertools.combinations(known, 2)
            if differ(one[0], other[0], apart) and differ(one[1], other[1], PUBLISHED_APART)
        ]
        if signs:
            found.append(
                f"{kind}: {sum(signs)} of {len(signs)} pairs of rows are in the published order; left out are those "
                f"less than {apart:.1%} apart here, as runs of the base row are, or {PUBLISHED_APART:.0%} as published"
            )
    return found


def _figure(record: Record, name: str) -> float | None:
    found = record.get(name)
    return found / record.get("stages", 1) if found and name == "samples_per_sec" else found
