"""The flags of the update rule and its schedule: `OptimizerConfig`."""

from dataclasses import dataclass
from typing import NamedTuple

from tftrain.config.fields import flag


class Rule(NamedTuple):
    """An update rule of `tftrain.optim.rules`: its fp32 state tensors for each weight, and whether it has fused ops."""

    slots: tuple[str, ...] = ("adam_m", "adam_v")
    has_fused: bool = False
    slots_of_kernels: tuple[str, ...] = ()  # those of the kernels of the blocks, if they have others


UPDATE_RULES = {
    "lamb": Rule(has_fused=True),
    "adamw": Rule(has_fused=True),
    "lion": Rule(("lion_m",)),
    "muon": Rule(slots_of_kernels=("muon_m",)),
    "stableadamw": Rule(),
}
ORTHOGONAL_ITERATIONS = 5  # Newton and Schulz's, in an update of muon
_FORCED = [f"{how}_{name}" for how in ("fused", "reference") for name, rule in UPDATE_RULES.items() if rule.has_fused]
_FALLING = ("polynomial", "cosine", "wsd", "inverse_sqrt")


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    ON_RESUME = "named"

    optimizer: str = flag("lamb", choices=(*UPDATE_RULES, *_FORCED), on_resume="fixed", common=True)
    """Update rule: LAMB (arXiv 1904.00962), AdamW (1711.05101), Lion (2302.06675), Muon (2502.16982) or StableAdamW
    (2304.13013). Fused ops compute it where they are built; fused_ and reference_ force them or plain TensorFlow."""
    learning_rate: float = flag(1e-3, "Peak learning rate; the number of ranks doesn't scale it.", above=0, common=True)
    schedule: str = flag("polynomial", choices=(*_FALLING, "constant"))
    """Learning rate after the warm-up. polynomial and cosine: it falls until --max_steps. constant: it stays. wsd: it
    falls as a polynomial in the last --decay_steps. inverse_sqrt: it falls as 1 / sqrt(step)."""
    end_learning_rate: float = flag(0.0, minimum=0, restrict={"schedule": _FALLING})
    """Learning rate at --max_steps; with --schedule=inverse_sqrt, the limit that it falls towards."""
    warmup_steps: int | None = flag(None, minimum=0, on_resume="logged", common=True)
    """Steps of linear warm-up from 0; by default one tenth of --max_steps."""
    decay_power: float = flag(1.0, above=0, restrict={"schedule": ("polynomial", "wsd")})
    """Exponent of the decay with --schedule=polynomial and wsd."""
    decay_steps: int | None = flag(None, minimum=1, on_resume="logged", restrict={"schedule": ("wsd",)})
    """Length of the decay of wsd; by default one tenth of --max_steps, or the steps that the warm-up leaves."""
    weight_decay: float = flag(0.01, "Decoupled weight decay; biases and norm parameters have none.", minimum=0)
    adam_beta1: float = flag(0.9, "Decay of the first moment.", minimum=0, below=1)
    adam_beta2: float = flag(0.999, "Decay of the second moment.", minimum=0, below=1)
    adam_epsilon: float = flag(1e-6, "Number that is added to the square root of the second moment.", above=0)
    muon_momentum: float = flag(0.95, minimum=0, below=1, restrict={"optimizer": ("muon",)})
    """Momentum of --optimizer=muon for the kernels of the blocks; the other weights have AdamW's betas."""
    clip_global_norm: float = flag(1.0, "Clip the gradient to this global norm; 0: no clipping.", minimum=0)
    ema_decay: float = flag(0.0, minimum=0, below=1, on_resume="logged")
    """Decay of an exponential moving average of the weights, such as 0.999, which --weights=averaged evaluates; 0: no
    average. After t updates, the decay is at most (1 + t) / (10 + t)."""
    param_groups: str | None = flag(None, names="content")
    """File of parameter groups. A line has a pattern of weights' names, then rate=X, which multiplies the learning
    rate, weight_decay=Y, or both, such as layer_0*/attention/* rate=0.5 weight_decay=0. Or the lines themselves,
    separated by semicolons. A checkpoint holds the groups, not the file's name."""
