"""A pipeline schedule as data: for every stage the ordered list of what it computes, sends and receives.

The layers of a model are divided into stages x chunks parts, in the order of the layers. Part number
chunk * stages + stage is chunk `chunk` of stage `stage`. Boundary b lies between the parts b and b + 1: activations
cross it forward, their gradients backward.

An engine runs the list of its stage in order, by these rules: computations run one after the other; a send starts when
its place in the list is reached and nothing waits for it; a receive is posted when its place is reached, and only the
computation that needs it waits for it.
"""

import enum
from typing import NamedTuple


class Kind(enum.Enum):
    """What an action does; the values are the labels of pictures."""

    FORWARD = "F"
    BACKWARD = "B"  # of inputs and weights together
    BACKWARD_INPUTS = "BI"
    BACKWARD_WEIGHTS = "BW"
    SEND = "send"
    RECEIVE = "receive"


ACTIVATION, GRADIENT = "activation", "gradient"
TRANSFERS = (Kind.SEND, Kind.RECEIVE)


class Action(NamedTuple):
    """One action of one stage."""

    kind: Kind
    micro_batch: int  # from 0
    chunk: int = 0  # of the stage, from 0; of a transfer, the chunk that made the tensor or needs it
    what: str = ""  # of a transfer: `ACTIVATION`, or `GRADIENT` of an activation
    peer: int = -1  # of a transfer: the stage at the other end
    boundary: int = -1  # of a transfer: the boundary that the tensor crosses

    @property
    def name(self) -> str:
        """Name of a transfer, equal on both stages and unique in a table; also says to a user what a rank waits for."""
        return f"{self.what}.of_micro_batch_{self.micro_batch}.after_part_{self.boundary}"

    def __str__(self) -> str:
        if self.kind in TRANSFERS:
            to = "to" if self.kind is Kind.SEND else "from"
            of = f"{self.what} at boundary {self.boundary} of micro-batch {self.micro_batch}"
            return f"{self.kind.value} {of} {to} stage {self.peer}"
        return f"{self.kind.value} of micro-batch {self.micro_batch}, chunk {self.chunk}"


class Table(NamedTuple):
    """A schedule."""

    schedule: str  # the value of --pipeline_schedule; the bound on memory depends on it
    micro_batches: int  # of an update
    chunks: int  # of a stage
    stages: tuple[tuple[Action, ...], ...]  # for each stage its actions in order; an action's place is its tick
    forward_only: bool = False  # whether it is for an evaluation, which has no backward


def input_of(action: Action, stage: int, stages: int, chunks: int) -> Action | None:
    """Returns the receive of a computation's input; the peer may be the stage itself. None if there is none."""
    return _transfer(Kind.RECEIVE, action, stage, stages, chunks)


def output_of(action: Action, stage: int, stages: int, chunks: int) -> Action | None:
    """Returns the send of a computation's output; the peer may be the stage itself. None if there is none."""
    return _transfer(Kind.SEND, action, stage, stages, chunks)


def _transfer(kind: Kind, action: Action, stage: int, stages: int, chunks: int) -> Action | None:
    if action.kind is Kind.FORWARD:
        what, step = ACTIVATION, 1
    elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUTS):
        what, step = GRADIENT, -1
    else:
        return None
    part = action.chunk * stages + stage
    other = part + (step if kind is Kind.SEND else -step)
    if not 0 <= other < stages * chunks:
        return None
    return Action(kind, action.micro_batch, action.chunk, what, other % stages, min(part, other))
