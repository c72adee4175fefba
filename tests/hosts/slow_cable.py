"""A cable between a host and the switch that delays each frame and loses some.

`python slow_cable.py SWITCH_PID HOST_PID DELAY_MS LOSS_PERCENT PORT` makes a TAP device at each end, `PORT` in the
switch and `eth0` in the host, and copies frames between them until the end of its input. It does what `tc qdisc add dev
... root netem delay ... loss ...` does at both ends, and works also where the kernel has no netem.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0002, 0x1000, 0x40000000
MAX_FRAME_BYTES = 1 << 16
SEED = 1


def tap(pid: int, name: str) -> int:
    """Makes a TAP device in the network namespace of a process; returns its file descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return file


def main(switch_pid: str, host_pid: str, delay_ms: str, loss_percent: str, port: str) -> None:
    delay, loss, chance = float(delay_ms) / 1000, float(loss_percent) / 100, random.Random(SEED)
    ends = tap(int(switch_pid), port), tap(int(host_pid), "eth0")
    print(flush=True)
    # Frames on their way: when one arrives, its number, to which end, its bytes.
    frames: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        wait = max(0, frames[0][0] - time.monotonic()) if frames else None
        ready = select.select([0, *ends], [], [], wait)[0]
        if 0 in ready:
            return
        for end in ready:
            frame = os.read(end, MAX_FRAME_BYTES)
            if chance.random() >= loss:
                number += 1
                heapq.heappush(frames, (time.monotonic() + delay, number, ends[1 - ends.index(end)], frame))
        while frames and frames[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(frames)
            with contextlib.suppress(OSError):  # The device may not be up yet.
                os.write(end, frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
