"""The schedules: the order in which the stages compute, and their sends and receives.

Every schedule adds the gradients of the micro-batches in the same order, so that all of them give the same sums.
"""

from collections import defaultdict

from tftrain.config.fields import ConfigError
from tftrain.config.parallel import schedule_problems
from tftrain.schedules.table import Action, ActionKind, Schedule, input_of, output_of

F, B, BI, BW = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUTS, ActionKind.BACKWARD_WEIGHTS


def table(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Returns the table of a schedule, the same on all ranks.

    A single stage accumulates the gradients of one micro-batch after the other. Raises a ConfigError if the schedule
    does not exist or can't run these sizes.
    """
    if problems := schedule_problems(schedule, stages, micro_batches, chunks):
        raise ConfigError(problems)
    orders = tuple(tuple(order(schedule, stage, stages, micro_batches, chunks)) for stage in range(stages))
    return _with_transfers(Schedule(schedule, micro_batches, chunks, orders))


def forward_only(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Returns the table of an evaluation, for any number of micro-batches: as many as stages at a time, by chunks."""
    forwards = tuple(Action(F, i, chunk) for i, chunk in _by_groups(stages, micro_batches, chunks))
    return _with_transfers(Schedule(schedule, micro_batches, chunks, (forwards,) * stages, forward_only=True))


def order(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """Returns the computations of one stage in order; for the arguments, see `table`.

    - gpipe: all forwards, then all backwards (Huang et al., arXiv 1811.06965): holds every micro-batch's activations.
    - 1f1b: one forward, one backward, after as few forwards as keep the later stages busy (arXiv 2104.04473, figure 4).
      Stage s holds the activations of min(stages - s, micro_batches) micro-batches.
    - interleaved: the same over several chunks of each stage (section 2.2.2), which take turns: as many micro-batches
      as there are stages pass one chunk, then the next one. The bubble is divided by the number of chunks.
    - zero_bubble: see `_zero_bubble`.
    """
    if stages == 1:
        return _accumulation(micro_batches, chunks)
    if schedule == "zero_bubble":
        return _zero_bubble(stage, stages, micro_batches)
    turns, later = _by_groups(stages, micro_batches, chunks), stages - stage - 1
    warm = len(turns) if schedule == "gpipe" else later if chunks == 1 else 2 * later + (chunks - 1) * stages
    steady = max(0, len(turns) - warm)  # pairs of a forward and a backward, after `warm` forwards
    forwards = [Action(F, i, chunk) for i, chunk in turns]
    backwards = [Action(B, i, chunks - 1 - chunk) for i, chunk in turns]
    in_turn = [action for pair in zip(forwards[warm:], backwards, strict=False) for action in pair]
    return forwards[:warm] + in_turn + backwards[steady:]


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Returns the order of ZB-H1 (Qi et al., arXiv 2401.10241): backward for weights in the bubbles.

    Stage s delays the backward for weights by s micro-batches. With the forwards of 1f1b before the first backward,
    every stage holds the activations of min(stages, micro_batches) micro-batches, as the first stage of 1f1b does.
    """
    warm, delay = min(stages - stage, micro_batches), min(stage, micro_batches)
    actions = [Action(F, i) for i in range(warm)]
    for i in range(micro_batches):
        actions.append(Action(BI, i))
        if i >= delay:
            actions.append(Action(BW, i - delay))
        if warm + i < micro_batches:
            actions.append(Action(F, warm + i))
    return actions + [Action(BW, i) for i in range(micro_batches - delay, micro_batches)]


def _accumulation(micro_batches: int, chunks: int) -> list[Action]:
    """Returns the order of a single stage: the micro-batches one after the other, each through all chunks and back."""
    of_micro_batch = [(F, chunk) for chunk in range(chunks)] + [(B, chunk) for chunk in reversed(range(chunks))]
    return [Action(kind, i, chunk) for i in range(micro_batches) for kind, chunk in of_micro_batch]


def _by_groups(stages: int, micro_batches: int, chunks: int) -> list[tuple[int, int]]:
    """Returns pairs of micro-batch and chunk: each group of as many micro-batches as stages passes chunk by chunk."""
    groups = [range(first, min(first + stages, micro_batches)) for first in range(0, micro_batches, stages)]
    return [(i, chunk) for group in groups for chunk in range(chunks) for i in group]


def _with_transfers(table: Schedule) -> Schedule:
    """Adds sends and receives to a table of computations.

    A send comes right after the computation that makes the tensor. A receive comes before the computation that precedes
    the one that needs the tensor, so that the transfer can hide behind that computation. Posted earlier, it would only
    hold its buffer for longer. From one stage to another, all transfers stand in the same order on both.
    """
    sizes = len(table.stages), table.chunks
    # By a transfer's name: its receive, and the place of the computation that needs it among those of its stage.
    needs: dict[str, tuple[int, Action]] = {}
    for stage, computations in enumerate(table.stages):
        for index, action in enumerate(computations):
            if (receive := input_of(action, stage, *sizes)) and receive.peer != stage:
                needs[receive.name] = index, receive
    posted: list[dict[int, list[tuple[int, Action]]]] = [defaultdict(list) for _ in table.stages]
    sends: dict[tuple[int, Action], Action] = {}
    for stage, computations in enumerate(table.stages):
        first: dict[int, int] = {}  # the first computation of each receiver that needs this tensor or a later one
        for action in reversed(computations):
            if (send := output_of(action, stage, *sizes)) and send.peer != stage:
                needed, receive = needs[send.name]
                index = first[send.peer] = min(first.get(send.peer, needed), needed)
                posted[send.peer][max(0, index - 1)].append((index, receive))
                sends[stage, action] = send
    stages = []
    for stage, computations in enumerate(table.stages):
        actions: list[Action] = []
        for index, action in enumerate(computations):
            # They were found from the last to the first; the sort keeps the order of those with equal places.
            receives = posted[stage][index][::-1]
            actions += [receive for _, receive in sorted(receives, key=lambda need: need[0])]
            actions.append(action)
            if send := sends.get((stage, action)):
                actions.append(send)
        stages.append(tuple(actions))
    return table._replace(stages=tuple(stages))
