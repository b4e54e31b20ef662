"""One TCP stream between two guests: over IPoIB, with and without the card's offloads, and over virtio-net beside it.

Both networks are in the same guests, and each repeat runs all kinds in turn, so that a busy host slows all of them;
what counts are the ratios to virtio-net, of medians. That is QEMU's own network card, whose packets go from one QEMU to
the other through a socket. The load of the host is printed before each repeat.

    python -m tests.bench.bench_ipoib [--repeats 5] [--seconds 3] [--kernel KERNEL]
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from statistics import median
from typing import Final

from vhca import DEFAULT_KERNEL
from vhca.lab import Guest, Lab, Progress, aligned, prepare
from vhca.lab.perftest import wait_port_active

PORT: Final = 5001
SUBNET: Final = "192.168.77"
ADDRESS: Final = """
set -e
modprobe ib_ipoib
ip link set ib0 up
ip addr replace {subnet}.{host}/24 dev ib0
i=0; while ! ip link show ib0 | grep -q LOWER_UP; do i=$((i + 1)); [ $i -lt 200 ] || exit 1; usleep 100000; done
"""
RECEIVE: Final = """
import socket, sys, time
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
peer, _ = listener.accept()
seen, began, buffer = 0, time.monotonic(), bytearray(1 << 20)
while size := peer.recv_into(buffer):
    seen += size
print(seen * 8 / (time.monotonic() - began) / 1e6)
"""
SEND: Final = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
data, end = bytes(1 << 20), time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    peer.sendall(data)
peer.close()
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to send; `setup` makes ib0 what it needs, in both guests."""

    name: str
    setup: str = ""


VIRTIO: Final = Kind("virtio-net")
KINDS: Final = (
    VIRTIO,
    Kind("IPoIB, datagram", "echo datagram > /sys/class/net/ib0/mode; ethtool -K ib0 tx on tso on rx on"),
    Kind(
        "IPoIB, datagram, offloads off",
        "echo datagram > /sys/class/net/ib0/mode; ethtool -K ib0 tso off; ethtool -K ib0 tx off rx off",
    ),
    Kind("IPoIB, connected", "echo connected > /sys/class/net/ib0/mode; ip link set ib0 mtu 65520"),
)


def address_of(guest: Guest, kind: Kind) -> str:
    """The guest's address on the network of this kind."""
    interface = "eth0" if kind is VIRTIO else "ib0"
    shown = guest.run(["ip", "-4", "-o", "addr", "show", "dev", interface], check=True).stdout
    return shown.split()[3].partition("/")[0]


def stream(guests: list[Guest], kind: Kind, seconds: float) -> float:
    """Mbit/s of one stream from the second guest to the first."""
    for guest in guests:
        if kind.setup:
            guest.run(["sh", "-c", f"{kind.setup}; ip link set ib0 up"], timeout_s=60, check=True)
    receiver, sender = guests
    server = receiver.popen(["python3", "-c", RECEIVE, str(PORT)])
    lines = iter(server.stdout)
    assert next(lines).strip() == "ready"
    address = address_of(receiver, kind)
    # Who is where on the network is asked before the clock runs.
    sender.run(["ping", "-c", "2", address], timeout_s=60, check=True)
    sender.run(["python3", "-c", SEND, address, str(PORT), str(seconds)], timeout_s=seconds + 120, check=True)
    rate = float(next(lines))
    server.wait(60)
    return rate


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kernel", default=DEFAULT_KERNEL)
    options = parser.parse_args()
    prepare(Progress(), kernel=options.kernel)
    figures: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    with Lab(guests=2, kernel=options.kernel) as lab:
        guests = list(lab.guests)
        for host, guest in enumerate(guests, 1):
            wait_port_active(guest)
            guest.run(["sh", "-c", ADDRESS.format(subnet=SUBNET, host=host)], timeout_s=60, check=True)
        for repeat in range(options.repeats):
            print(f"repeat {repeat + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
            for kind, seen in figures.items():
                seen.append(stream(guests, kind, options.seconds))
    base = median(figures[VIRTIO])
    header = ("one TCP stream", "Mbit/s, median", "least", "most", "to virtio-net")
    rows = [
        (kind.name, f"{median(seen):.0f}", f"{min(seen):.0f}", f"{max(seen):.0f}", f"{median(seen) / base:.2f}")
        for kind, seen in figures.items()
    ]
    print("\n".join(aligned(header, rows)))


if __name__ == "__main__":
    main()
