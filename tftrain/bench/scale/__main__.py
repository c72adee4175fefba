"""Prints what runs of many ranks would do, one row for each number of ranks: files, bytes, requests and collectives.

    python -m tftrain.bench.scale --flagfile=configs/xxlarge_48.flags --split_opt_state --ranks=512,1024,2048,4096

Nothing runs but the functions that divide the work; see `tftrain.bench.scale.simulation`.
"""

import sys
from collections.abc import Sequence

from tftrain import flags
from tftrain.bench.scale.config import ScaleConfig
from tftrain.bench.scale.simulation import Counts, Simulation
from tftrain.fields import ConfigError, Problem


def main(argv: Sequence[str]) -> int:
    """Runs the program; `argv` has its name and its flags. Returns the exit status."""
    try:
        config = flags.parse(ScaleConfig, ["python -m tftrain.bench.scale", *argv[1:]])
        print(table([Simulation(config, ranks).counts() for ranks in _numbers(config)]), flush=True)
    except ConfigError as error:
        flags.refuse("tftrain.bench.scale", error)
    return 0


def _numbers(config: ScaleConfig) -> list[int]:
    given, size = config.simulated.ranks, config.parallel.tensor_parallel_size
    numbers = [int(word) if word.isdecimal() else 0 for word in given.split(",")]
    if any(number < 1 or number % size for number in numbers):
        raise ConfigError([Problem("ranks", given, f"expected multiples of tensor_parallel_size={size}, such as 512")])
    return numbers


def table(rows: Sequence[Counts]) -> str:
    """Returns a table in Markdown with a column for each number of ranks."""
    lines = []
    for field in Counts._fields:
        values = [getattr(row, field) for row in rows]
        shown = [f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" for value in values]
        lines.append(f"| {field} | {' | '.join(shown)} |")
    lines.insert(1, "| --- |" + " ---: |" * len(rows))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
