"""The flags of the simulation of many ranks."""

from dataclasses import dataclass

from tftrain.config import TrainConfig
from tftrain.fields import flag


@dataclass(frozen=True)
class RanksConfig:
    """The simulated runs."""

    ranks: str = flag("512,4096", "Numbers of ranks, separated by commas.")


@dataclass(frozen=True)
class ScaleConfig(TrainConfig):
    """All flags: those of `tftrain.run`, and the numbers of ranks."""

    simulated: RanksConfig = RanksConfig()
