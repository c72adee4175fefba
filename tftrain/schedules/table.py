"""A pipeline schedule as data: for every stage the ordered list of what it computes, sends and receives.

The layers of a model are divided into stages x chunks parts, in the order of the layers. Part number chunk * stages +
stage is chunk `chunk` of stage `stage`. Boundary b lies between the parts b and b + 1: activations cross it forward,
their gradients backward.

An engine runs the list of its stage in order, by these rules: computations run one after the other; a send starts when
its position in the list is reached, and nothing waits for it; a receive is posted when its position is reached, and
only the computation that needs it waits for it.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple


class ActionKind(enum.Enum):
    """What an action does; the values are the labels of pictures."""

    FORWARD = "F"
    BACKWARD = "B"  # for inputs and weights together
    BACKWARD_INPUTS = "BI"
    BACKWARD_WEIGHTS = "BW"
    SEND = "send"
    RECEIVE = "receive"


ACTIVATION, GRADIENT = "activation", "gradient"
TRANSFERS = (ActionKind.SEND, ActionKind.RECEIVE)
RELEASING = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHTS)  # the end of a micro-batch's activations


class Action(NamedTuple):
    """One action of one stage."""

    kind: ActionKind
    micro_batch: int  # from 0
    chunk: int = 0  # the stage's, from 0; for a transfer, the chunk that made the tensor or needs it
    what: str = ""  # what a transfer sends: `ACTIVATION`, or `GRADIENT` of an activation
    peer: int = -1  # the stage at the other end of a transfer
    boundary: int = -1  # the boundary that a transferred tensor crosses

    @property
    def name(self) -> str:
        """Name of a transfer, equal on both stages and unique in a table; also says to a user what a rank waits for."""
        return f"{self.what}.of_micro_batch_{self.micro_batch}.after_part_{self.boundary}"

    def __str__(self) -> str:
        if self.kind in TRANSFERS:
            to = "to" if self.kind is ActionKind.SEND else "from"
            of = f"{self.what} at boundary {self.boundary} of micro-batch {self.micro_batch}"
            return f"{self.kind.value} {of} {to} stage {self.peer}"
        return f"{self.kind.value} of micro-batch {self.micro_batch}, chunk {self.chunk}"


class Schedule(NamedTuple):
    """A schedule."""

    schedule: str  # the value of --pipeline_schedule; the bound on memory depends on it
    micro_batches: int  # an update's
    chunks: int  # a stage's
    stages: tuple[tuple[Action, ...], ...]  # for each stage its actions in order; an action's place is its tick
    forward_only: bool = False  # whether it is for an evaluation, which has no backward


def input_of(action: Action, stage: int, stages: int, chunks: int) -> Action | None:
    """Returns the receive of a computation's input; the peer may be the stage itself. None if there is none."""
    return _transfer(ActionKind.RECEIVE, action, stage, stages, chunks)


def output_of(action: Action, stage: int, stages: int, chunks: int) -> Action | None:
    """Returns the send of a computation's output; the peer may be the stage itself. None if there is none."""
    return _transfer(ActionKind.SEND, action, stage, stages, chunks)


def _transfer(kind: ActionKind, action: Action, stage: int, stages: int, chunks: int) -> Action | None:
    if action.kind is ActionKind.FORWARD:
        what, step = ACTIVATION, 1
    elif action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUTS):
        what, step = GRADIENT, -1
    else:
        return None
    part = action.chunk * stages + stage
    other = part + (step if kind is ActionKind.SEND else -step)
    if not 0 <= other < stages * chunks:
        return None
    return Action(kind, action.micro_batch, action.chunk, what, other % stages, min(part, other))


class Peak(NamedTuple):
    """The most activations that a stage holds at a time, each those of one micro-batch and one chunk."""

    total: int
    of_chunks: tuple[int, ...]  # each chunk's, when the stage holds the most


def peak_activations(actions: Sequence[Action], chunks: int) -> Peak:
    """Returns the peak of a stage with these actions, in order; sends and receives may be missing.

    Activations are held from the forward pass until backward has used them.
    """
    held, total, most = [0] * chunks, 0, Peak(0, (0,) * chunks)
    for action in actions:
        change = (action.kind is ActionKind.FORWARD) - (action.kind in RELEASING)
        held[action.chunk] += change
        total += change
        if total > most.total:
            most = Peak(total, tuple(held))
    return most
