"""An elastic run whose model is divided over two ranks loses a host of two ranks, of four, and finds another one.

`python -m tests.supervise.elastic_recovery` prints how long each change takes, and how much the losses differ from
those of one rank that was left alone. Flags say how the model is divided: --tensor_parallel_size=2 by default, or
--pipeline_parallel_size=2; --memory_checkpoint_steps=1 has copies in memory.
"""

import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.kit.ranks import Ranks, run_ranks
from tests.kit.waiting import wait_until
from tests.supervise.test_elastic_job import RUN, Hosts, job, losses, supervisor_on

STEPS = 100
SECONDS = 1800
SETTINGS = [*RUN, f"--max_steps={STEPS}"]


def main(division: list[str]) -> None:
    home = Path(tempfile.mkdtemp(prefix="elastic_recovery."))
    hosts = Hosts(home, "localhost", "127.0.0.1", slots=2)
    elastic = [*SETTINGS, *(division or ["--tensor_parallel_size=2"]), f"--output_dir={home / 'run'}"]
    with job(hosts, 4, *elastic, least=2) as launched:
        launched.wait_for("step_00000005", seconds=SECONDS)
        begin = time.monotonic()
        os.kill(supervisor_on("127.0.0.1", launched.processes[0]), signal.SIGKILL)
        tell(launched, "2 ranks, before 4", "a host of two ranks was killed", begin)
        begin = time.monotonic()
        hosts.are("localhost", "127.1")
        tell(launched, "4 ranks, before 2", "another host came", begin)
        assert launched.codes([0], SECONDS) == [0], launched.output()
    run_ranks(1, [*SETTINGS, f"--output_dir={home / 'alone'}"], seconds=SECONDS)
    alone, disturbed = losses(home / "alone"), losses(home / "run")
    assert list(disturbed) == list(alone) == list(range(1, STEPS + 1))
    largest = max(abs(disturbed[step] / alone[step] - 1) for step in alone)
    print(f"losses of {STEPS} steps: at most {largest:.1e} from those of one rank, relatively")


def tell(launched: Ranks, change: str, what: str, begin: float) -> None:
    """Prints when the ranks were assigned anew, when the state was there again, and when the next step was done.

    The last thing is how many logged steps are taken again.
    """
    words, seconds, place = (change, "continuing after step", "samples/s"), [], 0
    for word in words:
        is_running = lambda: launched.processes[0].poll() is None  # noqa: E731
        wait_until(lambda: launched.output().find(word, place) >= 0, SECONDS, launched.output, is_running)  # noqa: B023
        place = launched.output().find(word, place)
        seconds.append(time.monotonic() - begin)
    placed, resumed, stepped = seconds
    after = launched.output()[launched.output().find(change) :]
    reached, step = (
        int(re.search(rf"{words} (\d+)", after)[1]) for words in ("logged step is", "continuing after step")
    )
    print(
        f"{what}: new ranks after {placed:.1f} s, resumed after {resumed:.1f} s, next step after {stepped:.1f} s, "
        f"{reached - step} steps repeated; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
