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
    """One action of one stage.

    Attributes:
        kind: what it does.
        micro_batch: of which micro-batch, from 0.
        chunk: of which of the stage's chunks, from 0; of a transfer, the chunk that made the tensor or needs it.
        what: of a transfer: `ACTIVATION`, or `GRADIENT` of an activation.
        peer: of a transfer: the stage at the other end.
        boundary: of a transfer: the boundary that the tensor crosses.
    """

    kind: Kind
    micro_batch: int
    chunk: int = 0
    what: str = ""
    peer: int = -1
    boundary: int = -1

    @property
    def name(self) -> str:
        """Name of a transfer, equal on both stages and unique in a table."""
        return transfer_name(self.what, self.boundary, self.micro_batch)

    def __str__(self) -> str:
        if self.kind in TRANSFERS:
            to = "to" if self.kind is Kind.SEND else "from"
            of = f"{self.what} at boundary {self.boundary} of micro-batch {self.micro_batch}"
            return f"{self.kind.value} {of} {to} stage {self.peer}"
        return f"{self.kind.value} of micro-batch {self.micro_batch}, chunk {self.chunk}"


def transfer_name(what: str, boundary: int, micro_batch: int) -> str:
    """Returns the name of a transfer, which also says to a user what a rank waits for.

    Args:
        what: "activation" or "gradient".
        boundary: number of the part before it.
        micro_batch: number of the micro-batch.
    """
    return f"{what}.of_micro_batch_{micro_batch}.behind_part_{boundary}"


class Table(NamedTuple):
    """A schedule.

    Attributes:
        schedule: the value of --pipeline_schedule; the bound on memory depends on it.
        micro_batches, chunks: numbers of micro-batches of an update, and of chunks of a stage.
        stages: for each stage its actions in order. The tick of an action is its place in this list.
        forward_only: whether it is for an evaluation, which has no backward.
    """

    schedule: str
    micro_batches: int
    chunks: int
    stages: tuple[tuple[Action, ...], ...]
    forward_only: bool = False


class Neighbour(NamedTuple):
    """The transfer from or to the neighbour part: what crosses which boundary, and the stage and chunk of the part."""

    what: str
    boundary: int
    stage: int
    chunk: int


def input_of(action: Action, stage: int, stages: int, chunks: int) -> Neighbour | None:
    """Returns where the input of a computation comes from; None if no other part makes it."""
    part, last = action.chunk * stages + stage, stages * chunks - 1
    if action.kind is Kind.FORWARD:
        return _neighbour(ACTIVATION, part - 1, part - 1, stages) if part > 0 else None
    if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUTS):
        return _neighbour(GRADIENT, part, part + 1, stages) if part < last else None
    return None


def output_of(action: Action, stage: int, stages: int, chunks: int) -> Neighbour | None:
    """Returns where the output of a computation goes; None if no other part needs it."""
    part, last = action.chunk * stages + stage, stages * chunks - 1
    if action.kind is Kind.FORWARD:
        return _neighbour(ACTIVATION, part, part + 1, stages) if part < last else None
    if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUTS):
        return _neighbour(GRADIENT, part - 1, part - 1, stages) if part > 0 else None
    return None


def _neighbour(what: str, boundary: int, part: int, stages: int) -> Neighbour:
    chunk, stage = divmod(part, stages)
    return Neighbour(what, boundary, stage, chunk)
