"""What the data of all phases of a run has in common."""

from tftrain.config.fields import Problem
from tftrain.config.train import TrainConfig
from tftrain.input.mixture import difference, read_prepared

_ALIKE = ("objective", "vocab_sha256", "normalization", "lower_case", "strip_accents")


def differences(config: TrainConfig) -> list[Problem]:
    """Returns why the prepared data of the phases, each of which can be read, has not one vocabulary."""
    prepared = [(number, phase.data) for number, phase in enumerate(config.phases, 1) if phase.data.folder]
    manifests = [(number, data.folder, read_prepared(data)) for number, data in prepared]
    faults = [
        (f"phase {number}: {folder} has ", difference(manifests[0][2], each, _ALIKE))
        for number, folder, each in manifests
    ]
    return [Problem("phases", config.data.phases, what + fault) for what, fault in faults if fault]
