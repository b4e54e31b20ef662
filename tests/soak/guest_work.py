"""What runs in guests of a soak: programs whose every byte is compared, over verbs and over TCP.

`guest_work.py verbs|tcp serve PORT` serves one client after another, for ever; `guest_work.py verbs|tcp ask HOST PORT
SECONDS SEED` is such a client, which ends with 0 and says how much it compared, or with 1 and what was wrong. Verbs: an
RC queue pair, made known over TCP on the management network, does WRITEs and READs of random data in random pieces,
SENDs that are answered with their checksum, and atomics, each of which must be executed once, whatever is lost on the
way.
"""

from __future__ import annotations

import itertools
import json
import random
import select
import socket
import sys
import time
import zlib
from typing import Any

import pyverbs.enums as e  # type: ignore[import-not-found]
from pyverbs.addr import AHAttr  # type: ignore[import-not-found]
from pyverbs.cq import CQ  # type: ignore[import-not-found]
from pyverbs.device import Context  # type: ignore[import-not-found]
from pyverbs.mr import MR  # type: ignore[import-not-found]
from pyverbs.pd import PD  # type: ignore[import-not-found]
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr  # type: ignore[import-not-found]
from pyverbs.wr import SGE, RecvWR, SendWR  # type: ignore[import-not-found]

AREA = 256 << 10
"""Bytes of each of the three parts of a side's memory: what is sent; what comes; the counter of atomics."""
PIECES = 6
DEPTH = 2 * PIECES
TIMEOUT = 20
"""Of the queue pair, 4.3 s: with seven retries a way may be missing for half a minute.

OpenSM that met an error while it set the subnet up tries again after ten seconds, and its guest may be slow.
"""
DEADLINE_S = 600.0
"""By the guest's clock, which may be several times as fast as the host's if that was busy when the guest booted."""
TCP_BYTES = 1 << 20
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC


class Wrong(Exception):
    """Data is not what was sent, or does not come."""


def receive(sock: socket.socket, size: int) -> bytes:
    """So many bytes of a stream; fewer if it ends."""
    found = bytearray()
    while len(found) < size:
        part = sock.recv(min(size - len(found), 1 << 16))
        if not part:
            break
        found += part
    return bytes(found)


def line(sock: socket.socket) -> bytes:
    """What comes up to the end of the line, and nothing of what comes then."""
    found = b""
    while not found.endswith(b"\n") and (byte := sock.recv(1)):
        found += byte
    return found


class Side:
    """One end: its queue pair and memory, and the other end's addresses."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.context = Context(name="mlx5_0")
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * DEPTH)
        self.mr = MR(self.pd, 3 * AREA, RIGHTS)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = RIGHTS
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap), attr)
        port = self.context.query_port(1)
        mine = {"lid": port.lid, "qpn": self.qp.qp_num, "addr": self.mr.buf, "rkey": self.mr.rkey}
        sock.sendall(json.dumps(mine).encode() + b"\n")
        self.other: dict[str, Any] = json.loads(line(sock))
        attr.dest_qp_num = self.other["qpn"]
        attr.path_mtu = e.IBV_MTU_4096
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 8
        attr.min_rnr_timer = 12
        attr.timeout = TIMEOUT
        attr.retry_cnt = attr.rnr_retry = 7
        attr.ah_attr = AHAttr(port_num=1, dlid=self.other["lid"])
        self.qp.to_rts(attr)
        self.sock.sendall(b".")
        receive(self.sock, 1)  # the other one is ready, too

    def close(self) -> None:
        """Give everything back."""
        for what in (self.qp, self.mr, self.cq, self.pd, self.context, self.sock):
            what.close()

    def post(self, number: int, opcode: int, at: int, size: int, remote: int = 0, add: int = 0) -> None:
        """Post a work request: `at` and `remote` are offsets in the memory of both sides."""
        sge = SGE(self.mr.buf + at, size, self.mr.lkey)
        work = SendWR(wr_id=number, num_sge=1, sg=[sge], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        if opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ):
            work.set_wr_rdma(self.other["rkey"], self.other["addr"] + remote)
        elif opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
            work.set_wr_atomic(self.other["rkey"], self.other["addr"] + remote, add, 0)
        self.qp.post_send(work)

    def listen(self) -> None:
        """Post a receive."""
        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf + AREA, AREA, self.mr.lkey)]))

    def completion(self) -> Any:
        """The next completion; None if the other side is gone first."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            found, completions = self.cq.poll()
            if found:
                if completions[0].status != e.IBV_WC_SUCCESS:
                    raise Wrong(f"completion with status {completions[0].status}")
                return completions[0]
            if select.select([self.sock], [], [], 0.001)[0]:
                return None
            if time.monotonic() > deadline_s:
                raise Wrong(f"no completion for {DEADLINE_S:.0f} s")

    def completed(self, numbers: range) -> None:
        """Wait for the completions of these work requests, in this order."""
        for number in numbers:
            completion = self.completion()
            if completion is None:
                raise Wrong("the other side is gone")
            if completion.wr_id != number:
                raise Wrong(f"completion of {completion.wr_id}, not of {number}")


def verbs_serve(sock: socket.socket) -> None:
    """Answer each SEND with its checksum until the client is gone."""
    side = Side(sock)
    try:
        side.listen()
        while (completion := side.completion()) is not None:
            if completion.opcode & e.IBV_WC_RECV:
                checksum = zlib.crc32(side.mr.read(completion.byte_len, AREA))
                side.listen()
                side.mr.write(checksum.to_bytes(4, "big"), 4, 0)
                side.post(0, e.IBV_WR_SEND, 0, 4)
    finally:
        side.close()


def write_and_read(side: Side, chance: random.Random) -> int:
    """WRITE random pieces of random data, READ them back; how many bytes."""
    size = chance.randint(1, AREA)
    data = chance.randbytes(size)
    side.mr.write(data, size, 0)
    side.mr.write(bytes(size), size, AREA)
    cuts = sorted({0, size, *(chance.randrange(size) for _ in range(PIECES - 1))})
    pieces = list(itertools.pairwise(cuts))
    for number, (start, end) in enumerate(pieces):
        side.post(number, e.IBV_WR_RDMA_WRITE, start, end - start, start)
    for number, (start, end) in enumerate(pieces, len(pieces)):
        side.post(number, e.IBV_WR_RDMA_READ, AREA + start, end - start, start)
    side.completed(range(2 * len(pieces)))
    back = side.mr.read(size, AREA)
    if back != data:
        wrong = [at for at in range(size) if back[at] != data[at]]
        raise Wrong(f"{len(wrong)} of {size} bytes, from {wrong[0]} on, are not what was written")
    return 2 * size


def send_and_compare(side: Side, chance: random.Random) -> int:
    """SEND random data and get its checksum back; how many bytes."""
    size = chance.randint(1, AREA)
    data = chance.randbytes(size)
    side.mr.write(data, size, 0)
    side.listen()
    side.post(1, e.IBV_WR_SEND, 0, size)
    seen: set[bool] = set()
    while len(seen) < 2:
        completion = side.completion()
        if completion is None:
            raise Wrong("the other side is gone")
        seen.add(bool(completion.opcode & e.IBV_WC_RECV))
    if int.from_bytes(side.mr.read(4, AREA), "big") != zlib.crc32(data):
        raise Wrong(f"SEND of {size} bytes arrived as something else")
    return size


def count_once(side: Side, before: int) -> int:
    """Atomics, each of which must find what the one before left; how many."""
    for number in range(PIECES):
        side.post(number, e.IBV_WR_ATOMIC_FETCH_AND_ADD, AREA + 8 * number, 8, 2 * AREA, 1)
    side.completed(range(PIECES))
    for number in range(PIECES):
        found = int.from_bytes(side.mr.read(8, AREA + 8 * number), "little")
        if found != before + number:
            raise Wrong(f"atomic found {found} instead of {before + number}")
    return PIECES


def verbs_ask(sock: socket.socket, seconds: float, chance: random.Random) -> str:
    """Exchange and compare for so long."""
    side = Side(sock)
    try:
        side.mr.write(bytes(8), 8, 2 * AREA)
        side.post(0, e.IBV_WR_RDMA_WRITE, 2 * AREA, 8, 2 * AREA)
        side.completed(range(1))
        end_s = time.monotonic() + seconds
        compared = atomics = 0
        while time.monotonic() < end_s:
            compared += write_and_read(side, chance) + send_and_compare(side, chance)
            atomics += count_once(side, atomics)
    finally:
        side.close()
    return f"{compared} bytes, {atomics} atomics"


def tcp_serve(sock: socket.socket) -> None:
    """Send back what comes, a block at a time."""
    with sock:
        while len(data := receive(sock, TCP_BYTES)) == TCP_BYTES:
            sock.sendall(zlib.crc32(data).to_bytes(4, "big") + data)


def tcp_ask(sock: socket.socket, seconds: float, chance: random.Random) -> str:
    """Send random blocks, and compare what comes back."""
    end_s = time.monotonic() + seconds
    blocks = 0
    with sock:
        sock.settimeout(DEADLINE_S)
        while time.monotonic() < end_s:
            data = chance.randbytes(TCP_BYTES)
            sock.sendall(data)
            if receive(sock, 4 + TCP_BYTES) != zlib.crc32(data).to_bytes(4, "big") + data:
                raise Wrong("a block came back as something else")
            blocks += 1
    return f"{2 * blocks * TCP_BYTES} bytes"


def main(kind: str, what: str, *rest: str) -> None:
    """See the module."""
    if what == "serve":
        with socket.create_server(("", int(rest[0]))) as server:
            while True:
                sock, _ = server.accept()
                try:
                    (verbs_serve if kind == "verbs" else tcp_serve)(sock)
                except (OSError, ValueError, Wrong) as error:
                    print(f"{kind}: {error}", file=sys.stderr, flush=True)
    host, port, seconds, seed = rest
    sock = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
    try:
        print((verbs_ask if kind == "verbs" else tcp_ask)(sock, float(seconds), random.Random(int(seed))))
    except (OSError, Wrong) as error:
        sys.exit(f"{kind}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
