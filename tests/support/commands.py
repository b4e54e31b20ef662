"""The commands of a driver, laid out by their declarations. How they reach a card is said by who derives from this."""

from __future__ import annotations

import struct

from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.mkey import QPN_ANY
from vhca.wire.connectx.qpc import Qpc

PAGE = 4096
ANY_USER_INDEX = 0xFFFFFF
ENTRY_BYTES = 64
# Access rights of a memory key that may be used for everything.
EVERYTHING = {"lr": 1, "lw": 1, "rr": 1, "rw": 1, "a": 1}


class CommandFailed(Exception):
    """A command came back with a status."""

    def __init__(self, op: int, status: int, syndrome: int) -> None:
        super().__init__(f"{op:#x}: status {status:#x}, syndrome {syndrome:#x}")
        self.status = status


def fill(context: Layout, **fields: int | bytes) -> None:
    """Set fields of a context; `path_` and `alternate_` begin those of a queue pair's primary and alternate path."""
    for name, value in fields.items():
        if name.startswith("path_") and isinstance(context, Qpc):
            setattr(context.primary_address_path, name[5:], value)
        elif name.startswith("alternate_") and isinstance(context, Qpc):
            setattr(context.secondary_address_path, name[10:], value)
        else:
            setattr(context, name, value)


class Commands:
    """A driver's commands; :meth:`raw` brings one to the card.

    :ivar uar: the doorbell page. :ivar pd: the protection domain of keys and queues. :ivar eqn: the event queue that
    completion queues report to. Who derives from this sets the last two.
    """

    uar: int
    pd: int
    eqn: int

    def raw(self, data: bytes, out_size: int = 16) -> bytes:
        """Run a command; returns its whole output, whatever its status."""
        raise NotImplementedError

    def submit(
        self, op: Op, view: Layout | None = None, tail: bytes = b"", *, out_size: int = 16, op_mod: int = 0
    ) -> bytes:
        """Run a command that may be refused; `view` is its input (its header is filled in here). Returns the output."""
        data = bytearray((view or cmd.BareIn()).to_bytes() + tail)
        data[0:2] = int(op).to_bytes(2, "big")
        data[6:8] = op_mod.to_bytes(2, "big")
        return self.raw(bytes(data), out_size)

    def run(
        self, op: Op, view: Layout | None = None, tail: bytes = b"", *, out_size: int = 16, op_mod: int = 0
    ) -> bytes:
        """As :meth:`submit`, but the command must succeed."""
        output = self.submit(op, view, tail, out_size=out_size, op_mod=op_mod)
        if output[0]:
            raise CommandFailed(op, output[0], int.from_bytes(output[4:8], "big"))
        return output

    def probe(self) -> None:
        """The commands of mlx5_core up to the event queues."""
        self.run(Op.ENABLE_HCA, cmd.EnableHcaIn())
        self.run(Op.QUERY_ISSI, out_size=cmd.QueryIssiOut.SIZE)
        issi = cmd.SetIssiIn()
        issi.current_issi = 1
        self.run(Op.SET_ISSI, issi)
        self.run(Op.QUERY_PAGES, cmd.QueryPagesIn(), op_mod=1)
        block = self.run(Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn(), out_size=0x1010, op_mod=1)
        caps = cmd.SetHcaCapIn()
        caps.capability = block[16:]
        self.run(Op.SET_HCA_CAP, caps)
        self.run(Op.QUERY_PAGES, cmd.QueryPagesIn(), op_mod=2)
        self.run(Op.INIT_HCA, cmd.InitHcaIn())
        self.run(Op.QUERY_ADAPTER, out_size=0x110)
        self.uar = cmd.AllocUarOut.from_bytes(self.run(Op.ALLOC_UAR)).uar

    @staticmethod
    def pages(buffer: int, size: int) -> bytes:
        """The page list of a buffer."""
        addresses = range(buffer, buffer + max(size, 1), PAGE)
        return struct.pack(f">{len(addresses)}Q", *addresses)

    # ---- objects; each gives the number of a new one ----

    def alloc_pd(self) -> int:
        """A protection domain."""
        return cmd.AllocPdOut.from_bytes(self.run(Op.ALLOC_PD)).pd

    def alloc_xrcd(self) -> int:
        """An XRC domain."""
        return cmd.AllocXrcdOut.from_bytes(self.run(Op.ALLOC_XRCD)).xrcd

    def alloc_q_counter(self) -> int:
        """A counter set."""
        return cmd.AllocQCounterOut.from_bytes(self.run(Op.ALLOC_Q_COUNTER)).counter_set_id

    def make_eq(self, buffer: int, log_size: int, mask: int, vector: int = 0) -> int:
        """An event queue over memory whose ownership bits are set; `mask` has a bit for each type of event."""
        view = cmd.CreateEqIn()
        fill(view.eq_context_entry, log_eq_size=log_size, uar_page=self.uar, intr=vector)
        view.event_bitmask = mask.to_bytes(8, "big") + bytes(24)
        if not mask:
            # Queues of completions are for everybody: user contexts name them.
            view.uid = 0xFFFF
        out = self.run(Op.CREATE_EQ, view, self.pages(buffer, ENTRY_BYTES << log_size))
        return cmd.CreateEqOut.from_bytes(out).eq_number

    def create_key(self, mode: int, tail: bytes = b"", pg_access: int = 0, **fields: int) -> int:
        """A memory key of this access mode with a translation list; gives the whole key. It has all rights, but others
        may be given as fields. Mode 0 shows all of memory at its bus addresses.
        """
        view = cmd.CreateMkeyIn(pg_access=pg_access)
        context = view.memory_key_mkey_entry
        octwords = -(-len(tail) // 16)
        view.translations_octword_actual_size = octwords
        basic = {"access_mode_1_0": mode & 3, "access_mode_4_2": mode >> 2, "pd": self.pd, "qpn": QPN_ANY,
                 "mkey_7_0": 0x5A, "length64": int(not mode), "translations_octword_size": octwords}  # fmt: skip
        fill(context, **{**basic, **EVERYTHING, **fields})
        index = cmd.CreateMkeyOut.from_bytes(self.run(Op.CREATE_MKEY, view, tail)).mkey_index
        return index << 8 | context.mkey_7_0

    def make_cq(self, buffer: int, size: int, **fields: int) -> int:
        """A completion queue over `size` bytes of memory; `dbr_addr` and `log_cq_size` are among the fields."""
        view = cmd.CreateCqIn()
        fill(view.cq_context, **{"c_eqn_or_apu_element": self.eqn, "uar_page": self.uar, **fields})
        return cmd.CreateCqOut.from_bytes(self.run(Op.CREATE_CQ, view, self.pages(buffer, size))).cqn

    def make_qp(self, context: Qpc, pages: bytes) -> int:
        """A queue pair over these pages, receive queue first."""
        view = cmd.CreateQpIn()
        view.qpc = context
        return cmd.CreateQpOut.from_bytes(self.run(Op.CREATE_QP, view, pages)).qpn

    def qp_context(self, service: int, **fields: int) -> Qpc:
        """What CREATE_QP needs of a queue pair in the driver's domain and doorbell page."""
        context = Qpc()
        basic = {"st": service, "pd": self.pd, "uar_page": self.uar, "user_index": ANY_USER_INDEX}
        fill(context, **{**basic, **fields})
        return context

    def modify_qp(self, op: Op, number: int, mask: int = 0, context: Qpc | None = None) -> bytes:
        """A transition; gives the output, whatever its status."""
        view = cmd.Rst2initQpIn(qpn=number, opt_param_mask=mask)
        if context is not None:
            view.qpc = context
        return self.submit(op, view)
