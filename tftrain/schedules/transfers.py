"""Sends and receives of a table that has computations only.

A send comes right after the computation that makes the tensor. A receive comes before the computation that precedes
the one that needs the tensor, so that the transfer can hide behind that computation. Posted earlier, it would only hold
its buffer for longer. From one stage to another, all transfers stand in the same order on both.
"""

from typing import NamedTuple

from tftrain.schedules.table import Action, Kind, Table, input_of, output_of


class _Need(NamedTuple):
    """A receive, and the place of the computation that needs it among the computations of its stage."""

    place: int
    action: Action


def with_transfers(table: Table) -> Table:
    """Returns a table of computations with sends and receives added."""
    count, sizes = len(table.stages), (len(table.stages), table.chunks)
    needs: list[dict[tuple[int, str], _Need]] = [{} for _ in range(count)]
    for stage, order in enumerate(table.stages):
        for place, action in enumerate(order):
            found = input_of(action, stage, *sizes)
            if found and found.stage != stage:
                what, boundary, peer, _ = found
                receive = Action(Kind.RECEIVE, action.micro_batch, action.chunk, what, peer, boundary)
                needs[stage][peer, receive.name] = _Need(place, receive)
    sends: list[list[Action | None]] = []
    for stage, order in enumerate(table.stages):
        sends.append([])
        for action in order:
            found = output_of(action, stage, *sizes)
            crosses = found is not None and found.stage != stage
            sends[stage].append(
                Action(Kind.SEND, action.micro_batch, action.chunk, found.what, found.stage, found.boundary)
                if crosses
                else None
            )
    posted: list[dict[int, list[_Need]]] = [{} for _ in range(count)]
    for sender, sent in enumerate(sends):
        first: dict[int, int] = {}  # the first computation of each receiver that needs this tensor or a later one
        for send in reversed(sent):
            if send is None:
                continue
            need = needs[send.peer][sender, send.name]
            first[send.peer] = min(first.get(send.peer, need.place), need.place)
            place = first[send.peer]
            posted[send.peer].setdefault(max(0, place - 1), []).append(_Need(place, need.action))
    stages = []
    for stage, order in enumerate(table.stages):
        actions: list[Action] = []
        for place, action in enumerate(order):
            # They were found from the last to the first; the sort keeps the order of those with equal places.
            receives = reversed(posted[stage].get(place, ()))
            actions += [need.action for need in sorted(receives, key=lambda need: need.place)]
            actions.append(action)
            if send := sends[stage][place]:
                actions.append(send)
        stages.append(tuple(actions))
    return table._replace(stages=tuple(stages))
