"""The model families by name: what they learn and how they differ, apart from sizes."""

from typing import NamedTuple


class Family(NamedTuple):
    """A model family.

    Attributes:
        objective: what it is pre-trained on: "masked" words or, of a decoder, the "causal" next token.
        pre_norm: whether each sub-layer has its norm before it, where `--norm_position` does not say.
        token_types: whether the embedding has a table of token types.
        scales_residual: whether projections into the residual stream begin with smaller weights, as in GPT-2.
        positions: values of `--position_embedding`.
        fine_tuned: whether it has the tasks on labelled examples.
    """

    objective: str
    pre_norm: bool
    token_types: bool
    scales_residual: bool
    positions: tuple[str, ...]
    fine_tuned: bool


FAMILIES = {
    "bert": Family("masked", False, True, False, ("learned",), True),
    "gpt": Family("causal", True, False, True, ("learned", "rotary", "alibi"), False),
}


def listed(objective: str) -> str:
    """Returns the names of the families that are pre-trained on an objective, for a message."""
    return " or ".join(name for name, family in FAMILIES.items() if family.objective == objective)
