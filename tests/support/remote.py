"""A driver without a kernel on the other end of a card's socket: what a guest does through an unmodified QEMU.

Memory is a sealed memfd that the card maps; registers are vfio-user messages. For benchmarks and attacks that need the
whole of a rack in a process of its own.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import time
from pathlib import Path

from tests.support.commands import PAGE, CommandFailed, fill
from tests.support.driver import Driver
from tests.wire.client import Client
from vhca.hw.memory import FlatMemory
from vhca.pci.function import CONFIG_REGION
from vhca.wire import mad as madwire
from vhca.wire import smp
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.qpc import Qpc
from vhca.wire.connectx.wqe import CtrlSegment, DatagramSegment, DataSegment, RaddrSegment, WqeOpcode
from vhca.wire.mad import Smp

COMMAND_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 20.0
PCI_COMMAND = 4
MEMORY_AND_MASTER = b"\x06\x00"
BLOCK = 64
Q_KEY = 0x1234
FIRST_PSN = 0x1000
RC, UC, UD = 0, 1, 2
NO_RECEIVES = 3


class SharedMemory(FlatMemory):
    """Guest memory in a memfd that cannot shrink, as QEMU's memory-backend-memfd makes it."""

    __slots__ = ("fd",)

    def __init__(self, size_bytes: int) -> None:
        self.base = 0
        self.fd = os.memfd_create("guest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size_bytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.data = mmap.mmap(self.fd, size_bytes)  # type: ignore[assignment]


class RemoteDriver(Driver):
    """A card behind a socket, and its driver."""

    memory: SharedMemory

    def __init__(self, path: Path, memory_bytes: int = 64 << 20) -> None:
        self.memory = SharedMemory(memory_bytes)
        self.client = Client(_connect(path), lambda: None)
        self.client.negotiate()
        self.client.dma_map(0, memory_bytes, fd=self.memory.fd)
        self.client.region_write(CONFIG_REGION, PCI_COMMAND, MEMORY_AND_MASTER)
        self._next = 16 * PAGE
        self.queue = self.alloc(PAGE)
        self._in_box = self.alloc(1024 * 1024)
        self._out_box = self.alloc(1024 * 16)
        self.bar_write(0x10, (self.queue >> 32).to_bytes(4, "big"))
        self.bar_write(0x14, (self.queue & 0xFFFFFFFF).to_bytes(4, "big"))

    def close(self) -> None:
        """Switch the machine off."""
        self.client.close()
        self.memory.data.close()  # type: ignore[attr-defined]
        os.close(self.memory.fd)

    def bar_read(self, offset: int, count: int = 4) -> bytes:
        """A register; the answer comes when the card's socket has its turn."""
        return self.client.region_read(0, offset, count)

    def bar_write(self, offset: int, data: bytes) -> None:
        """A posted write, as a guest's store is."""
        self.client.region_write(0, offset, data, posted=True)

    def wait(self, addr: int) -> None:
        """Poll a command entry, as mlx5_core does before it has event queues."""
        end = time.monotonic() + COMMAND_TIMEOUT_S
        while self.memory.data[addr + 0x3F] & 1:
            if time.monotonic() > end:
                raise TimeoutError("a command was not answered")
            time.sleep(0)

    # ---- verbs ----

    def start(self) -> None:
        """Bring the card up: objects that every load needs."""
        self.probe()
        self.pd = self.alloc_pd()
        self.eqn, _ = self.create_eq(6, 0)
        self.key = self.create_key(0)

    def lid(self) -> int:
        """The port's LID once it is Active; waits for that."""
        end = time.monotonic() + CONNECT_TIMEOUT_S
        while time.monotonic() < end:
            info = self._port_info()
            if info.port_state == smp.PORT_ACTIVE:
                return info.lid
            time.sleep(0.05)
        raise TimeoutError("the port did not become Active")

    def port_state(self) -> int:
        """The state of the port now."""
        return self._port_info().port_state

    def _port_info(self) -> smp.PortInfo:
        request = Smp(base_version=1, mgmt_class=madwire.CLASS_SUBN_LID, class_version=1,
                      method=madwire.METHOD_GET, attr_id=smp.PORT_INFO, attr_mod=1).to_bytes()  # fmt: skip
        out = self.run(Op.MAD_IFC, cmd.MadIfcIn(port=1, mad=request), out_size=cmd.MadIfcOut.SIZE, op_mod=1)
        return smp.PortInfo.from_bytes(Smp.from_bytes(cmd.MadIfcOut.from_bytes(out).response_mad_packet).data)

    def create_cq(self, log_size: int = 6) -> int:
        """A completion queue that may be lapped."""
        size = BLOCK << log_size
        buffer = self.alloc(size)
        return self.make_cq(buffer, size, dbr_addr=self.alloc(64), log_cq_size=log_size, oi=1)


class RemoteQp:
    """A queue pair of a :class:`RemoteDriver`."""

    def __init__(self, driver: RemoteDriver, service: int = RC, log_sq: int = 12, log_rq: int = 0) -> None:
        self.driver = driver
        self.service = service
        self.log_sq, self.log_rq = log_sq, log_rq
        rq_bytes = BLOCK << log_rq if log_rq else 0
        size = rq_bytes + (BLOCK << log_sq)
        self.rq = driver.alloc(size)
        self.sq = self.rq + rq_bytes
        self.record = driver.alloc(64)
        self.posted = 0
        cqn = driver.create_cq()
        context = driver.qp_context(
            service, log_sq_size=log_sq, log_rq_size=log_rq, log_rq_stride=2, rq_type=0 if log_rq else NO_RECEIVES,
            cqn_snd=cqn, cqn_rcv=cqn, dbr_addr=self.record,
        )  # fmt: skip
        self.number = driver.make_qp(context, driver.pages(self.rq, size))

    def modify(self, op: Op, mask: int = 0, **fields: int) -> None:
        """A transition; `path_` fields belong to the primary path."""
        context = Qpc()
        fill(context, **fields)
        output = self.driver.modify_qp(op, self.number, mask, context)
        if output[0]:
            raise CommandFailed(op, output[0], int.from_bytes(output[4:8], "big"))

    def connect(self, lid: int, number: int, first_psn: int = FIRST_PSN) -> None:
        """To RTS; a datagram queue needs no peer."""
        self.modify(Op.RST2INIT_QP, path_vhca_port_num=1, rre=1, rwe=1, rae=1, q_key=Q_KEY)
        self.modify(Op.INIT2RTR_QP, mtu=5, log_msg_max=30, next_rcv_psn=first_psn, log_rra_max=4, min_rnr_nak=1,
                    remote_qpn=number, path_rlid=lid)  # fmt: skip
        self.modify(Op.RTR2RTS_QP, next_send_psn=first_psn, log_sra_max=4, retry_count=7, rnr_retry=7,
                    path_ack_timeout=20)  # fmt: skip

    def write(self, local: int, size: int, remote: int, key: int, lkey: int | None = None) -> bytes:
        """Segments of an RDMA WRITE, from one key to another."""
        return RaddrSegment(raddr=remote, rkey=key).to_bytes() + self.sge(local, size, lkey)

    def sge(self, addr: int, size: int, key: int | None = None) -> bytes:
        """A gather entry."""
        return DataSegment(byte_count=size, lkey=self.driver.key if key is None else key, addr=addr).to_bytes()

    def address(self, lid: int, number: int, gid: bytes | None = None, q_key: int = Q_KEY) -> bytes:
        """An address vector."""
        return DatagramSegment(q_key=q_key, ext=1, dqpn=number, rlid=lid, grh=int(gid is not None), hop_limit=1,
                               rgid=gid or bytes(16)).to_bytes()  # fmt: skip

    def post(self, opcode: int, segments: bytes, count: int = 1, ring: bool = True) -> None:
        """The same request `count` times."""
        blocks = -(-(16 + len(segments)) // BLOCK)
        units = 1 + len(segments) // 16
        pack = CtrlSegment.packer("wqe_index", "opcode", "qpn", "ds", "ce")
        rest = segments.ljust(blocks * BLOCK - 16, b"\0")
        mask = (1 << self.log_sq) - 1
        for _ in range(count):
            at = (self.posted & mask) * BLOCK
            wqe = pack(self.posted & 0xFFFF, opcode, self.number, units, 0)[:16] + rest
            room = (BLOCK << self.log_sq) - at
            self.driver.memory.write(self.sq + at, wqe[:room])
            if len(wqe) > room:
                self.driver.memory.write(self.sq, wqe[room:])
            self.posted += blocks
        if ring:
            self.ring()

    def ring(self) -> None:
        """Doorbell record and doorbell."""
        self.driver.memory.write(self.record + 4, (self.posted & 0xFFFF).to_bytes(4, "big"))
        self.driver.bar_write(self.driver.uar * PAGE + 0x800, self.doorbell())

    def doorbell(self) -> bytes:
        """The eight bytes of a doorbell."""
        return ((self.posted & 0xFFFF) << 8).to_bytes(4, "big") + (self.number << 8 | 1).to_bytes(4, "big")

    def receives(self, count: int, addr: int, size: int) -> None:
        """Post so many receives, all to the same place."""
        wqe = (self.sge(addr, size) + DataSegment(lkey=0x100).to_bytes()).ljust(BLOCK, b"\0")
        self.driver.memory.write(self.rq, wqe * (1 << self.log_rq))
        self.driver.memory.write(self.record, (count & 0xFFFF).to_bytes(4, "big"))

    def context(self) -> Qpc:
        """QUERY_QP."""
        out = self.driver.run(Op.QUERY_QP, cmd.QueryQpIn(qpn=self.number), out_size=cmd.QueryQpOut.SIZE)
        return cmd.QueryQpOut.from_bytes(out).qpc

    def executed(self) -> int:
        """Blocks of the send queue that the card has taken, of those that were posted."""
        done = self.posted & ~0xFFFF | self.context().hw_sq_wqebb_counter
        return done if done <= self.posted else done - 0x10000


def pair(
    a: RemoteDriver, b: RemoteDriver, lids: dict[RemoteDriver, int], log_sq: int = 12
) -> tuple[RemoteQp, RemoteQp]:
    """Two connected queue pairs."""
    left, right = RemoteQp(a, log_sq=log_sq), RemoteQp(b, log_sq=log_sq)
    left.connect(lids[b], right.number)
    right.connect(lids[a], left.number)
    return left, right


def _connect(path: Path) -> socket.socket:
    end = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(path))
        except OSError:
            sock.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return sock


__all__ = ["Q_KEY", "RC", "UC", "UD", "Op", "RemoteDriver", "RemoteQp", "WqeOpcode", "pair"]
