"""The objectives by the value of `--objective`."""

from tftrain.prepare.causal_objective import CausalObjective
from tftrain.prepare.masked_objective import MaskedObjective
from tftrain.prepare.objective import Objective

_OBJECTIVES = {objective.name: objective for objective in (MaskedObjective(), CausalObjective())}


def objective_of(name: str) -> Objective:
    """Returns an objective by its name."""
    return _OBJECTIVES[name]
