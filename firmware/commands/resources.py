"""Plain numbered resources: doorbell pages, protection domains, XRC domains, user contexts, counter sets."""

from typing import TypeVar

from firmware.commands.registry import Command, command, refuse
from firmware.model.budget import OBJECT_BYTES, Budget
from firmware.model.hca import Hca
from firmware.model.ledger import HcaObject, Table
from firmware.model.objects import Pd, QCounter, TransportDomain, Uar, Uctx, Xrcd
from firmware.programs import is_program, may_name
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status

T = TypeVar("T", bound=HcaObject)


def allocate(table: Table[T], obj: T, list_bytes: int = 0) -> int:
    """Number `obj`, or refuse because the table is full, or the memory for it and `list_bytes` of its lists is."""
    amount = OBJECT_BYTES[table.kind] + list_bytes
    charge(table.budget, amount)
    handle = table.add(obj)
    if handle is None:
        table.budget.give(amount)
        refuse(Status.LIM_ERR, f"no {table.kind} is left")
    obj.charged = amount
    return handle


def charge(budget: Budget, amount: int) -> None:
    """Let the card's budget count so many bytes, or refuse."""
    if not budget.take(amount):
        refuse(Status.LIM_ERR, "the memory of this card is used up")


def find(table: Table[T], handle: int, uid: int) -> T:
    """The object with this number, if the user context `uid` may name it (0: the kernel, may name all); or refuse."""
    obj = table.get(handle)
    if obj is None:
        if table.history is not None:
            table.history.missing(table.kind, handle)
        refuse(Status.BAD_RES, f"{table.kind}: no such object")
    if not may_name(uid, obj):
        refuse(Status.BAD_RES, f"{table.kind}: belongs to another user context")
    return obj


def note_use(table: Table[T], obj: T, uid: int) -> None:
    """Tell whoever keeps the lives of objects that one is to be destroyed that others use."""
    if table.history is not None:
        table.history.in_use(table.kind, obj, is_program(uid))


def free(table: Table[T], handle: int, uid: int) -> None:
    """Take an unused object out; refuses unknown and referenced ones."""
    obj = find(table, handle, uid)
    if is_program(uid) and obj.uid != uid:
        refuse(Status.BAD_RES, f"{table.kind}: shared by the kernel, and ended by it alone")
    if obj.refs:
        note_use(table, obj, uid)
        refuse(Status.BAD_RES_STATE, f"{table.kind}: still in use")
    table.remove(obj)


@command(Op.ALLOC_UAR, cmd.BareIn)
def alloc_uar(hca: Hca, request: Command[cmd.BareIn]) -> Layout:
    """A doorbell page."""
    out = cmd.AllocUarOut()
    out.uar = allocate(hca.uars, Uar(uid=request.uid))
    return out


@command(Op.DEALLOC_UAR, cmd.DeallocUarIn)
def dealloc_uar(hca: Hca, request: Command[cmd.DeallocUarIn]) -> bytes:
    """Give a doorbell page back."""
    free(hca.uars, request.view.uar, request.uid)
    return bytes(16)


@command(Op.ALLOC_PD, cmd.BareIn)
def alloc_pd(hca: Hca, request: Command[cmd.BareIn]) -> Layout:
    """A protection domain."""
    out = cmd.AllocPdOut()
    out.pd = allocate(hca.pds, Pd(uid=request.uid))
    return out


@command(Op.DEALLOC_PD, cmd.DeallocPdIn)
def dealloc_pd(hca: Hca, request: Command[cmd.DeallocPdIn]) -> bytes:
    """Give a protection domain back; keys and queues in it are in the way."""
    free(hca.pds, request.view.pd, request.uid)
    return bytes(16)


@command(Op.ALLOC_XRCD, cmd.BareIn)
def alloc_xrcd(hca: Hca, request: Command[cmd.BareIn]) -> Layout:
    """An XRC domain."""
    out = cmd.AllocXrcdOut()
    out.xrcd = allocate(hca.xrcds, Xrcd(uid=request.uid))
    return out


@command(Op.DEALLOC_XRCD, cmd.DeallocXrcdIn)
def dealloc_xrcd(hca: Hca, request: Command[cmd.DeallocXrcdIn]) -> bytes:
    """Give an XRC domain back."""
    free(hca.xrcds, request.view.xrcd, request.uid)
    return bytes(16)


@command(Op.ALLOC_TRANSPORT_DOMAIN, cmd.BareIn)
def alloc_transport_domain(hca: Hca, request: Command[cmd.BareIn]) -> Layout:
    """A transport domain."""
    out = cmd.AllocTransportDomainOut()
    out.transport_domain = allocate(hca.transport_domains, TransportDomain(uid=request.uid))
    return out


@command(Op.DEALLOC_TRANSPORT_DOMAIN, cmd.DeallocTransportDomainIn)
def dealloc_transport_domain(hca: Hca, request: Command[cmd.DeallocTransportDomainIn]) -> bytes:
    """Give a transport domain back."""
    free(hca.transport_domains, request.view.transport_domain, request.uid)
    return bytes(16)


@command(Op.CREATE_UCTX, cmd.CreateUctxIn)
def create_uctx(hca: Hca, request: Command[cmd.CreateUctxIn]) -> Layout:
    """A user context: its number is the uid of the commands that follow."""
    if request.view.uctx.cap & ~hca.capabilities.general.uctx_cap:
        refuse(Status.BAD_PARAM, "uctx.cap asks for more than uctx_cap offers")
    out = cmd.CreateUctxOut()
    out.uid = allocate(hca.uctxs, Uctx(caps=request.view.uctx.cap))
    return out


@command(Op.DESTROY_UCTX, cmd.DestroyUctxIn)
def destroy_uctx(hca: Hca, request: Command[cmd.DestroyUctxIn]) -> bytes:
    """End a user context."""
    free(hca.uctxs, request.view.uid, 0)
    return bytes(16)


@command(Op.ALLOC_Q_COUNTER, cmd.BareIn)
def alloc_q_counter(hca: Hca, request: Command[cmd.BareIn]) -> Layout:
    """A counter set for queue pairs."""
    out = cmd.AllocQCounterOut()
    out.counter_set_id = allocate(hca.q_counters, QCounter(uid=request.uid))
    return out


@command(Op.DEALLOC_Q_COUNTER, cmd.DeallocQCounterIn)
def dealloc_q_counter(hca: Hca, request: Command[cmd.DeallocQCounterIn]) -> bytes:
    """Give a counter set back."""
    free(hca.q_counters, request.view.counter_set_id, request.uid)
    return bytes(16)


@command(Op.QUERY_Q_COUNTER, cmd.QueryQCounterIn, cmd.QueryQCounterOut.SIZE)
def query_q_counter(hca: Hca, request: Command[cmd.QueryQCounterIn]) -> Layout:
    """Read (and clear, if asked) a counter set; counters are 32 bit and stick at their maximum."""
    counter = find(hca.q_counters, request.view.counter_set_id, request.uid)
    out = cmd.QueryQCounterOut()
    for name, value in counter.values.items():
        setattr(out, name.value, min(value, 0xFFFFFFFF))
    if request.view.clear:
        counter.values.clear()
    return out
