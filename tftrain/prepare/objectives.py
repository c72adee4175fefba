"""The objectives by the value of `--objective`."""

from tftrain.config.prepare import PrepareConfig
from tftrain.prepare.causal_objective import CausalObjective
from tftrain.prepare.masked_objective import MaskedObjective
from tftrain.prepare.objective import PrepareObjective


def objective_of(config: PrepareConfig) -> PrepareObjective:
    """Returns the objective of a configuration."""
    return {"masked": MaskedObjective, "causal": CausalObjective}[config.objective](config)
