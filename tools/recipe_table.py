"""Prints the table of docs/recipes.md, planned memory and time of configs/recipes: `python tools/recipe_table.py`."""

from pathlib import Path

from tftrain.cli import flags
from tftrain.plan.cluster import CLUSTERS
from tftrain.plan.config import PlanConfig, workload
from tftrain.plan.forecast import Forecast, forecast
from tftrain.plan.machine import default_system
from tftrain.plan.report import SECONDS_PER_DAY
from tftrain.plan.system import systems

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("a100_80gb", "h100")  # nodes of 8 GPUs
MEASURED = {"bert_large_512": "[one H200, batch of 32](results/gpu/README.md): 0.123 s, 19.1 GB"}
UNITS = ["s an update, A100", "s an update, H100", "days, A100", "days, H100"]
HEAD = ["flag file", "updates", "GB a GPU", *UNITS, "measured with another batch"]


def plan(path: Path, cluster_name: str) -> tuple[Forecast, int]:
    """Returns the plan of a flag file on one node of a cluster, as `tftrain.plan` makes it, and its updates."""
    config = flags.parse(PlanConfig, ["plan", f"--cluster={cluster_name}", f"--flagfile={path}"])
    cluster = CLUSTERS[cluster_name]
    constants = systems()[default_system(cluster, "tftrain")]
    return forecast(workload(config, cluster), cluster, constants), config.run.max_steps


def table() -> str:
    """Returns a line for each recipe, and the head."""
    rows = [HEAD, ["---", *["---:"] * (len(HEAD) - 2), "---"]]
    for path in sorted((ROOT / "configs/recipes").glob("*.flags")):
        plans = [plan(path, name) for name in NAMES]
        updates = plans[0][1]
        times = [f"{made.seconds:.2f}" for made, _ in plans]
        days = [f"{updates * made.seconds / SECONDS_PER_DAY:.1f}" for made, _ in plans]
        gb = f"{max(made.gb for made, _ in plans):.1f}"
        rows.append([f"`{path.stem}`", f"{updates:,}", gb, *times, *days, MEASURED.get(path.stem, "")])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(table(), end="")
