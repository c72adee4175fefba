"""The order in which the actions of a table can happen on all stages, by the engine's rules.

Both the check for deadlocks and the simulation run a table with this module.
"""

from typing import NamedTuple

from tftrain.schedules.table import TRANSFERS, Action, Kind, Table, input_of


class ScheduleError(ValueError):
    """A table breaks a rule; the message names stage, tick and action."""

    def __init__(self, stage: int, tick: int, action: Action, reason: str):
        super().__init__(f"stage {stage}, tick {tick}, {action}: {reason}")
        self.stage, self.tick, self.action = stage, tick, action


class Step(NamedTuple):
    """A computation, or a transfer from its send to the computation that needs it; then stage and action receive."""

    stage: int
    action: Action
    # Numbers of the steps that end before it begins, 0 for none. Of a computation: the stage's previous computation and
    # its input's transfer. Of a transfer: the computation before the send, the one before the place of the receive, and
    # the previous transfer from the same stage to the same stage.
    after: tuple[int, int, int]


def steps(table: Table) -> list[Step]:
    """Returns all computations and transfers of a table, each after those that it waits for, numbered from 1.

    Raises:
        ScheduleError: some computation waits for ever.
    """
    count, found = len(table.stages), []
    ticks, computed = [0] * count, [0] * count
    # By name, the transfers that one of both stages has come to: its action, and the computation before it.
    halves: dict[str, tuple[Action, int]] = {}
    arrived: dict[str, int] = {}
    links: dict[tuple[int, int], int] = {}
    ready = list(reversed(range(count)))
    while ready:
        stage = ready.pop()
        actions = table.stages[stage]
        while ticks[stage] < len(actions):
            action = actions[ticks[stage]]
            if action.kind in TRANSFERS:
                sends = action.kind is Kind.SEND
                sender, receiver = (stage, action.peer) if sends else (action.peer, stage)
                if action.name not in halves:
                    halves[action.name] = action, computed[stage]
                else:
                    other, computed_there = halves.pop(action.name)
                    after = (computed_there, computed[stage], links.get((sender, receiver), 0))
                    found.append(Step(receiver, other if sends else action, after))
                    links[sender, receiver] = arrived[action.name] = len(found)
                    if sends:
                        ready.append(receiver)
            else:
                source, transfer = input_of(action, stage, count, table.chunks), 0
                if source and source.peer != stage:
                    if source.name not in arrived:
                        break
                    transfer = arrived.pop(source.name)
                found.append(Step(stage, action, (computed[stage], transfer, 0)))
                computed[stage] = len(found)
            ticks[stage] += 1
    for stage, tick in enumerate(ticks):
        if tick < len(table.stages[stage]):
            action = table.stages[stage][tick]
            raise ScheduleError(stage, tick, action, "waits for ever for its input: stages wait for each other")
    return found
