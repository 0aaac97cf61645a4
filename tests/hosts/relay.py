"""A bad link between two network devices: frames come late, and some never.

    python relay.py NEAR FAR

makes two tap devices of these names and carries frames from each to the other. Its stdin takes
lines of milliseconds of delay, each way, and the share of frames lost; each is answered by a line
with how many frames were carried and how many were lost so far. It ends with its stdin.

The kernel's own netem is not in every kernel, and this needs no module: only /dev/net/tun.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LONGEST_FRAME = 1 << 16


def tap(name: str) -> int:
    """A new device; what is written here comes out of it, and the other way round."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def main() -> None:
    near, far = (tap(name) for name in sys.argv[1:])
    other = {near: far, far: near}
    chance = random.Random(1)
    delay, loss, carried, lost = 0.0, 0.0, 0, 0
    late: list[tuple[float, int, int, bytes]] = []  # when it is due, in which order, to, frame
    print("ready", flush=True)
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else None
        ready = select.select([near, far, sys.stdin], [], [], wait)[0]
        while late and late[0][0] <= time.monotonic():
            send(*heapq.heappop(late)[2:])
        for source in ready:
            if source is sys.stdin:
                line = sys.stdin.readline()
                if not line:
                    return
                milliseconds, share = map(float, line.split())
                delay, loss = milliseconds / 1000, share
                print(carried, lost, flush=True)
                continue
            frame = os.read(source, LONGEST_FRAME)
            carried += 1
            if chance.random() < loss:
                lost += 1
            else:
                heapq.heappush(late, (time.monotonic() + delay, carried, other[source], frame))


def send(device: int, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # the device is down, as one whose link is cut
        os.write(device, frame)


if __name__ == "__main__":
    main()
