"""A rank that trains nothing and says what its launcher does to it: `mpirun -np 2 python tests/launched.py`.

    --code=75       rank 1 ends with this code after a second
    --seconds=30    the others run so long, whatever signal they get; a SIGUSR1 ends them a second later with 75
    --into=FILE      where the lines go: what a process prints after its launcher has ended is lost

A rank that has had a signal says every 0.2 seconds that it still lives, so the last of these lines tells when it was
killed.
"""

import argparse
import os
import signal
import sys
import time

RANKS = ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "HOROVOD_RANK")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--code", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--into", default="launched.log")
    args = parser.parse_args()
    rank = next((os.environ[name] for name in RANKS if name in os.environ), "0")
    begin, heard = time.monotonic(), {}

    def say(words: str) -> None:
        with open(args.into, "a") as log:
            log.write(f"{time.monotonic() - begin:5.1f} s  rank {rank}: {words}\n")

    def hear(number: int, _) -> None:
        name = signal.Signals(number).name
        heard.setdefault(name, time.monotonic())
        say(name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, hear)
    say("runs")
    while time.monotonic() < begin + args.seconds:
        time.sleep(0.2)
        if args.code and rank == "1" and time.monotonic() > begin + 1:
            say(f"ends with {args.code}")
            return args.code
        for name, since in heard.items():
            say(f"lives {time.monotonic() - since:.1f} s after {name}")
        if time.monotonic() > heard.get("SIGUSR1", float("inf")) + 1:
            say("ends with 75")
            return 75
    say("ends with 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
