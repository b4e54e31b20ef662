"""Mixed traffic between the guests of a soak: what each exchange does, and what it has compared."""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests.guest.upper import NVME_TARGET, address, ended, network_up, serve, shell
from vhca.lab import CommandTimeout, Guest, GuestError
from vhca.lab.perftest import Exchange, perftest, run_exchange, wait_listening

WORK: Final = Path(__file__).with_name("guest_work.py")
WORK_THERE: Final = "/tmp/guest_work.py"
# Both as the queue pairs of tests/soak/guest_work.py have it: a way may be missing for half a minute.
PATIENT: Final = ("-u", "20")
LIMIT_S: Final = 120.0
VERBS_PORT: Final = 6000
TCP_PORT: Final = 6001
MOST_LOST: Final = 5
DISK_MIB: Final = 2
DISK_ROOM_MIB: Final = 12
NVME_CONNECT: Final = """
modprobe nvme-rdma
nvme connect -t rdma -a {server} -s 4420 -n disk -i 1 --keep-alive-tmo=60 --reconnect-delay=1
i=0
while ! [ -b /dev/nvme0n1 ]; do i=$((i + 1)); [ $i -lt 300 ] || exit 1; usleep 100000; done
"""
NVME_ROUND: Final = """
cd /tmp
head -c {bytes} /dev/urandom > disk
dd if=disk of=/dev/nvme0n1 bs=1M seek={at} oflag=direct 2> /dev/null
dd if=/dev/nvme0n1 of=back bs=1M skip={at} count={mib} iflag=direct 2> /dev/null
cmp disk back
"""
RPING: Final = ("-C", "40", "-V", "-S", "30000")


# What programs say that begin while no manager has brought their port up again, or none that is asked knows the way. Of
# a port that was just told of another manager the kernel does not know yet how to send to that one: EAGAIN, at once.
NO_WAY: Final = re.compile(
    r"RDMA_CM_EVENT_(?:ADDR|ROUTE)_ERROR|Port number \d+ state is|No route to host"
    r"|rdma_resolve_route: Resource temporarily unavailable"
)


class Lost(Exception):
    """An exchange failed; the text says what and how."""


@dataclass
class Stream:
    """One kind of exchange between two guests, again and again; `exchange` raises :class:`Lost`."""

    name: str
    exchange: Callable[[], None]
    done: int = 0


@dataclass
class Traffic:
    """All streams, which run at the same time until they are to end.

    :ivar lost: what went wrong.
    :ivar refused: how often a program was told that there is no way, and asked again.
    """

    guests: list[Guest]
    seconds: float
    chance: random.Random
    lost: list[str] = field(default_factory=list)
    refused: int = 0
    streams: list[Stream] = field(default_factory=list)
    _ports: Iterator[int] = field(default_factory=lambda: itertools.cycle(range(20000, 29000)))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _end: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def prepare(self) -> None:
        """Give guests addresses, servers and disks, and name the streams."""
        for guest in self.guests:
            network_up(guest)
            guest.copy_in(WORK, WORK_THERE)
            for kind, port in (("verbs", VERBS_PORT), ("tcp", TCP_PORT)):
                server = guest.popen(["python3", WORK_THERE, kind, "serve", str(port)])
                if not wait_listening(guest, port, server.pid):
                    raise Lost(f"{guest.name}: {kind} does not serve: {server.stderr.read_all().decode()}")
        g = self.guests
        shell(g[-2], NVME_TARGET.format(server=address(g[-2])))
        shell(g[-1], NVME_CONNECT.format(server=address(g[-2])))
        loads = itertools.cycle(
            perftest(program, size, count, *PATIENT)
            for program, size, count in (
                ("ib_write_bw", 1 << 16, 500),
                ("ib_read_bw", 1 << 16, 500),
                ("ib_send_bw", 1 << 14, 500),
                ("ib_write_lat", 64, 200),
                ("ib_atomic_bw", 8, 300),
            )
        )
        self.streams = [
            self._between("verbs", g[0], g[1], partial(self._work, "verbs", VERBS_PORT)),
            self._between("verbs", g[-1], g[-2], partial(self._work, "verbs", VERBS_PORT)),
            self._between("perftest", g[0], g[1], lambda client, server: self._perftest(client, server, next(loads))),
            self._between("rping", g[1], g[-2], self._rping),
            self._between("TCP", g[-1], g[0], partial(self._work, "tcp", TCP_PORT)),
            self._between("NVMe", g[-1], g[-2], self._disk),
        ]

    @staticmethod
    def _between(kind: str, client: Guest, server: Guest, exchange: Callable[[Guest, Guest], None]) -> Stream:
        return Stream(f"{kind} {client.name}-{server.name}", lambda: exchange(client, server))

    def once(self) -> None:
        """Each stream once, one behind the other: what is made on first use is there then."""
        seconds, self.seconds = self.seconds, 1.0
        for stream in self.streams:
            stream.exchange()
        self.seconds = seconds

    def start(self) -> None:
        """Let all run."""
        for stream in self.streams:
            thread = threading.Thread(target=self._run, args=(stream,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Wait until each has ended the exchange that it is in."""
        self._end.set()
        for thread in self._threads:
            thread.join(2 * LIMIT_S)
            if thread.is_alive():
                self.lost.append("an exchange does not end")

    def clear(self) -> None:
        """Take away what was set up and takes objects of cards: the connection to the disk."""
        shell(self.guests[-1], "nvme disconnect -n disk")

    @property
    def failed(self) -> bool:
        """Has so much been lost that there is no point in going on?"""
        return len(self.lost) > MOST_LOST

    def _run(self, stream: Stream) -> None:
        while not self._end.is_set():
            began_s = time.monotonic()
            try:
                stream.exchange()
            except (Lost, GuestError, CommandTimeout, AssertionError, OSError) as error:
                after_s = time.monotonic() - began_s
                self.lost.append(f"{time.strftime('%H:%M:%S')} {stream.name}, after {after_s:.0f} s: {error}")
            else:
                stream.done += 1

    def _seed(self) -> str:
        with self._lock:
            return str(self.chance.getrandbits(31))

    # ---- exchanges ----

    def _work(self, kind: str, port: int, client: Guest, server: Guest) -> None:
        host = address(server) if kind == "tcp" else server.name
        command = ["python3", WORK_THERE, kind, "ask", host, str(port), str(self.seconds), self._seed()]
        self._patiently(lambda: self._work_once(client, command))

    def _work_once(self, client: Guest, command: list[str]) -> str:
        end = client.run(command, timeout_s=LIMIT_S + self.seconds)
        failed = end.returncode or end.stdout.startswith("0 bytes")
        return f"{command[1]} ends with {end.returncode}: {end.stdout}{end.stderr[-500:]}" if failed else ""

    def _perftest(self, client: Guest, server: Guest, load: Exchange) -> None:
        self._patiently(lambda: self._perftest_once(client, server, load))

    def _perftest_once(self, client: Guest, server: Guest, load: Exchange) -> str:
        ends = run_exchange(server, client, load, next(self._ports), LIMIT_S)
        if not any(end.returncode for end in ends):
            return ""
        said = " | ".join(f"{end.returncode}: {end.stdout[-200:]}{end.stderr[-300:]}" for end in ends)
        return f"{load.program} ends with {said}"

    def _rping(self, client: Guest, server: Guest) -> None:
        self._patiently(lambda: self._rping_once(client, server))

    def _rping_once(self, client: Guest, server: Guest) -> str:
        port = str(next(self._ports))
        at = ["-a", address(server), "-p", port, *RPING]
        listening = serve(server, "rping", "-s", *at)
        end = client.run(["rping", "-c", *at], timeout_s=LIMIT_S)
        if end.returncode == 0:
            ended(listening)
            return ""
        listening.kill()
        listening.wait(20)
        return f"rping ends with {end.returncode}: {end.stdout[-300:]}{end.stderr[-300:]}"

    def _patiently(self, once: Callable[[], str]) -> None:
        """Again, if a program says that there was no way when it began; `once` gives what went wrong, or nothing."""
        limit_s = time.monotonic() + LIMIT_S
        while trouble := once():
            if not NO_WAY.search(trouble) or time.monotonic() > limit_s:
                raise Lost(trouble)
            with self._lock:
                self.refused += 1

    def _disk(self, client: Guest, server: Guest) -> None:
        at = int(self._seed()) % (DISK_ROOM_MIB - DISK_MIB)
        shell(client, NVME_ROUND.format(bytes=DISK_MIB << 20, at=at, mib=DISK_MIB), timeout_s=LIMIT_S)
