"""Kills: a training is killed at a phase or an instant, started again, killed again, and must end as if undisturbed.

After every kill: whatever is called a checkpoint is a whole one, the ranks that were not killed end in bounded time,
and the next start goes on from the newest checkpoint. At the end: every loss, and every byte of the last checkpoint's
shards, is that of the undisturbed run of the same layout.
"""

import json
import random
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.crash_matrix.faults import PHASES_OF_A_RANK, PHASES_OF_A_SHARD, PHASES_OF_THE_CHIEF
from tests.crash_matrix.training import Start, start
from tests.kit.final_state import differences, final_state, logged_steps
from tftrain.checkpoint import folder
from tftrain.checkpoint.reader import Reader

INTERVAL, STEPS = 3, 60
TRAINING = (
    *("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--vocab_size=101", "--synthetic_data"),
    *("--max_seq_length=16", "--global_batch_size=8", "--learning_rate=0.01", "--log_every=1", "--eval_every=-1"),
    *(f"--max_steps={STEPS}", f"--checkpoint_every={INTERVAL}", "--keep_last=1", "--cpu_threads=1"),
)
# A process is killed before it has trained, or so long after the beginning of a step.
START_SECONDS, STEP_SECONDS = 2, 0.4
# Each gets as far as its second save, so that there is something left to do after all of them.
KILLS_OF_A_CHAIN = 6


class Layout(NamedTuple):
    """A number of ranks, the flags that divide the work among them, and how many ranks, the first, own something."""

    ranks: int
    flags: tuple[str, ...] = ()
    owners: int = 4


ZERO_2 = ("--split_opt_state", "--split_grad_accum", "--state_split_strategy=greedy:1")
LAYOUTS = {
    "1 rank": Layout(1),
    "dp2": Layout(2),
    "dp2, saves not async": Layout(2, ("--nocheckpoint_async",)),
    "dp2 zero1": Layout(2, ("--split_opt_state",)),
    "dp2 zero1, copies in memory": Layout(2, ("--split_opt_state", "--memory_checkpoint_steps=1")),
    "dp2 zero2 greedy": Layout(2, ZERO_2, owners=1),
    "tp2": Layout(2, ("--tensor_parallel_size=2",)),
    "dp2 x tp2": Layout(4, ("--tensor_parallel_size=2", "--split_opt_state")),
}


class Kill(NamedTuple):
    """A fault that kills, and the rank it is injected into."""

    fault: dict
    rank: int

    @property
    def name(self) -> str:
        if self.fault["kind"] == "phase":
            return self.fault["phase"]
        return "random instant" if self.fault["step"] else "before the first step"

    def __str__(self) -> str:
        what = "all ranks" if self.fault["all"] else f"rank {self.rank}"
        where = {key: value for key, value in self.fault.items() if key in ("save", "step", "seconds")}
        return f"{what}, {self.name} {json.dumps(where)}"


@dataclass
class Tally:
    """What came of the kills of one layout and phase."""

    kills: int = 0
    resumed: int = 0  # kills after which the next start went on
    lost: int = 0  # the most steps that had to be done again
    seconds: float = 0  # the longest time that ranks which were not killed needed to end
    faults: list[str] = field(default_factory=list)  # everything that is wrong, in words


def kills(layout: Layout, count: int, rng: random.Random) -> list[Kill]:
    """Returns so many kills: every phase in turn, a third of them at random instants, in random order."""
    phases = [*PHASES_OF_A_RANK, *PHASES_OF_THE_CHIEF]
    rng.shuffle(phases)
    made = []
    for number in range(count):
        rank, everyone = rng.randrange(layout.ranks), layout.ranks == 1 or rng.random() < 0.5
        if number % 4 == 3:
            # A fresh process needs seconds before the first step, and less than one for all the rest.
            step = rng.choice([0, *range(1, 2 * INTERVAL + 2)])
            seconds = round(rng.uniform(0, STEP_SECONDS if step else START_SECONDS), 3)
            fault = {"kind": "instant", "step": step, "seconds": seconds}
        else:
            phase = phases[(number - number // 4) % len(phases)]
            rank = 0 if phase in PHASES_OF_THE_CHIEF else rank
            rank = rank % layout.owners if phase in PHASES_OF_A_SHARD else rank
            fault = {"kind": "phase", "phase": phase, "save": rng.choice([1, 1, 2])}
        made.append(Kill({**fault, "all": everyone}, rank))
    return made


def run(name: str, count: int, rng: random.Random, home: Path, say, tallies: dict[str, Tally]) -> None:
    """Kills a layout's training `count` times, as `rng` chooses, in an empty folder.

    `say` gets a line for every start, and `tallies` what came of it by phase.
    """
    layout = LAYOUTS[name]
    args = (*TRAINING, *layout.flags)
    whole = home / "undisturbed"
    whole.mkdir()
    done = start((*args, f"--output_dir={whole / 'run'}"), [None] * layout.ranks, whole)
    assert done.codes == [0] * layout.ranks, done.output
    planned = kills(layout, count, rng)
    for first in range(0, count, KILLS_OF_A_CHAIN):
        chain = Chain(layout, home / f"chain_{first}", tallies)
        for number, kill in enumerate(planned[first : first + KILLS_OF_A_CHAIN], first + 1):
            say(f"{name}: kill {number} of {count}: {kill}: {chain.kill(kill)}")
        say(f"{name}: the end: {chain.end(whole / 'run')}")


class Chain:
    """One training that is killed again and again."""

    def __init__(self, layout: Layout, home: Path, tallies: dict[str, Tally]):
        """Kills nothing yet; `tallies` takes the results."""
        self._layout, self._home, self._tallies = layout, home, tallies
        self._home.mkdir()
        self._output = home / "run"
        self._args = (*TRAINING, *layout.flags, f"--output_dir={self._output}")
        self._last: Kill | None = None
        self._reached = 0
        self._killed: list[Kill] = []

    def kill(self, kill: Kill) -> str:
        """Starts or continues the training and kills it; returns in words what came of it."""
        tally = self._tally(kill)
        tally.kills, before = tally.kills + 1, len(tally.faults)
        faults = [kill.fault if rank == kill.rank else None for rank in range(self._layout.ranks)]
        begun = start(self._args, faults, self._home)
        resumed = self._check_resumed(begun)
        if begun.codes[kill.rank] != -signal.SIGKILL:
            self._wrong(kill, f"the rank ended with {begun.codes[kill.rank]}, and was not killed", begun)
        if None in begun.codes:
            self._wrong(kill, f"a rank did not end within {begun.seconds:.0f} s of another's death", begun)
        if not kill.fault["all"]:
            tally.seconds = max(tally.seconds, begun.seconds)
        for path in folder.find(self._output) if self._output.exists() else ():
            try:
                Reader(path).verify()
            except Exception as error:
                self._wrong(kill, f"{path.name} has a manifest and is damaged: {error}", begun)
        self._reached = max([row["step"] for row in logged_steps(self._output)], default=0)
        self._last = kill
        self._killed.append(kill)
        others = [code for rank, code in enumerate(begun.codes) if rank != kill.rank]
        ended = f", the others ended with {others} after {begun.seconds:.1f} s" if others else ""
        wrong = "".join(f"; FAULT: {fault.splitlines()[0]}" for fault in tally.faults[before:])
        return f"{resumed}; reached step {self._reached}{ended}{wrong}"

    def end(self, whole: Path) -> str:
        """Lets the training end and compares it with the undisturbed one; returns in words what came of it."""
        finished = start(self._args, [None] * self._layout.ranks, self._home)
        resumed = self._check_resumed(finished)
        wrong = []
        if finished.codes != [0] * self._layout.ranks:
            wrong.append(f"the last start ended with {finished.codes}")
        state = final_state(self._output)
        wrong += differences(state, final_state(whole))
        if left := [path.name for path in folder.checkpoint_folder(self._output).glob(".*")]:
            wrong.append(f"left behind: {left}")
        for kill in self._killed if wrong else ():
            self._wrong(kill, f"at the end of its chain: {'; '.join(wrong)}", finished)
        if not wrong:
            shutil.rmtree(self._home)
        return f"{resumed}; {'; '.join(wrong) or f'equal, loss {state.losses[STEPS]}'}"

    def _tally(self, kill: Kill) -> Tally:
        return self._tallies.setdefault(kill.name, Tally())

    def _wrong(self, kill: Kill, words: str, begun: Start) -> None:
        self._tally(kill).faults.append(f"{kill}: {words}\n{self._home}\n{begun.output[-3000:]}")

    def _check_resumed(self, begun: Start) -> str:
        """Checks where a start has gone on, after a kill."""
        found = re.search(r"continuing after step (\d+) of|starting from random weights|nothing to do", begun.output)
        if found is None:
            # Killed before it could say so: the next start will tell.
            return "killed before it could say where it goes on"
        at = int(found[1]) if found[1] else STEPS if "nothing" in found[0] else 0
        if self._last is not None:
            tally, lost = self._tally(self._last), self._reached - at
            tally.resumed += 1
            tally.lost = max(tally.lost, lost)
            # A save under way when the ranks die is none; while it is under way, an asynchronous one lets them go on.
            bound = INTERVAL if "--nocheckpoint_async" in self._args else 2 * INTERVAL
            if lost > bound:
                self._wrong(self._last, f"{lost} steps were lost: {self._reached} done, went on from {at}", begun)
            self._last = None
        return f"went on after step {at}"


def table(found: dict[str, dict[str, Tally]]) -> Iterator[str]:
    """Yields the lines of two tables in Markdown: a row for each layout, and one for each phase."""
    order: Sequence[str] = ("before the first step", "random instant", *PHASES_OF_A_RANK, *PHASES_OF_THE_CHIEF)
    by_phase = {phase: [tallies[phase] for tallies in found.values() if phase in tallies] for phase in order}
    by_layout = {name: list(tallies.values()) for name, tallies in found.items()}
    for what, rows_of in (("layout", by_layout), ("phase", by_phase)):
        yield ""
        yield f"| {what} | kills | resumed | steps lost at most | others ended within (s) | final losses equal |"
        yield "| --- | ---: | ---: | ---: | ---: | --- |"
        for name, tallies in rows_of.items():
            if tallies:
                sums = (sum(tally.kills for tally in tallies), sum(tally.resumed for tally in tallies))
                within = f"{max(tally.seconds for tally in tallies):.1f}"
                equal = "no" if any(tally.faults for tally in tallies) else "yes"
                lost = max(tally.lost for tally in tallies)
                yield f"| {name} | {sums[0]} | {sums[1]} | {lost} | {within} | {equal} |"
    yield ""
