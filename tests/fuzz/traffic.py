"""The moves of work and of the world outside: queue pairs, requests, packets, links, resets, time.

They are registered with those of :mod:`tests.fuzz.moves`.
"""

from __future__ import annotations

from tests.fuzz import work
from tests.fuzz.book import Item
from tests.fuzz.mischief import spoil_bytes, spoil_packet, wild_word
from tests.fuzz.moves import Turn, furnish, make_qp, move
from tests.fuzz.world import PAGE, Host
from vhca.wire import mad as madwire
from vhca.wire import smp
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.qpc import Qpc
from vhca.wire.connectx.registers import RegisterId
from vhca.wire.mad import PerfMad, Smp
from vhca.wire.packet import Grh, Packet, Route
from vhca.wire.smp import PortInfo

RC, UC, UD, XRC = 0, 1, 2, 3
RST, RTS, SQER, ERR = 0, 3, 4, 6
GROUPS = tuple(b"\xff\x12" + bytes(13) + bytes((number,)) for number in range(3))


# ---- queue pairs ----


@move(8)
def connect(turn: Turn) -> None:
    """A queue pair on each card, joined (or one on this card alone, joined to itself), up to RTS."""
    random = turn.random
    service = random.choice((RC, RC, RC, UC, UD, XRC))
    ends: list[tuple[Host, int]] = []
    for host in turn.world.hosts:
        turn.host = host
        same = [item.number for item in host.book.items["qp"].values() if item.service == service]
        broken = [number for number in same if work.state_of(host, number) in (SQER, ERR)]
        if broken:
            turn.run(Op.QP_2RST, cmd.Qp2errIn(qpn=random.choice(broken)))
        ready = [number for number in same if work.state_of(host, number) == RST]
        number = random.choice(ready) if ready else make_qp(turn, service)
        if number is None:
            return
        ends.append((host, number))
    if random.random() < 0.15:
        ends = [ends[0], ends[0]]
    for (host, number), (peer, peer_number) in (ends, ends[::-1]):
        turn.host = host
        for op in (Op.RST2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP):
            turn.run(op, transition_of(turn, number, peer_number, peer.lid))
        qp = host.book.items["qp"].get(number)
        if qp is not None and qp.has_rq and random.random() < 0.8:
            _post_receives(turn, qp, shared=False)


def transition_of(turn: Turn, number: int, peer_number: int, peer_lid: int) -> cmd.Rst2initQpIn:
    """What the transitions of a connection say."""
    random = turn.random
    view = cmd.Rst2initQpIn(qpn=number)
    context: Qpc = view.qpc
    path = context.primary_address_path
    path.vhca_port_num = 1
    path.rlid = peer_lid
    path.ack_timeout = random.choice((0, 1, 14))
    context.rre = context.rwe = context.rae = 1
    context.q_key = 0x1111
    context.pd = turn.number("pd")
    counter = turn.pick("q_counter")
    context.counter_set_id = counter.number if counter is not None else 0
    # Both sides of a pair must agree, or nothing but errors follows.
    context.mtu = 3 if random.random() < 0.7 else random.choice((1, 1, 3, 5))
    context.log_msg_max = random.choice((30, 30, 30, 10, 31))
    context.remote_qpn = peer_number
    context.next_rcv_psn = context.next_send_psn = 0xFFFFF0
    context.log_rra_max = context.log_sra_max = random.choice((0, 2))
    context.retry_count = context.rnr_retry = random.choice((0, 1, 7))
    context.min_rnr_nak = 1
    return view


@move(3)
def transition(turn: Turn) -> None:
    op = turn.random.choice((
        Op.RST2INIT_QP, Op.INIT2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP, Op.RTS2RTS_QP, Op.SQERR2RTS_QP, Op.SQD_RTS_QP,
    ))  # fmt: skip
    peer = turn.pick("qp", turn.host.other)
    view = transition_of(turn, turn.number("qp"), peer.number if peer else 5, turn.host.other.lid)
    turn.run(op, view)


@move(2)
def break_qp(turn: Turn) -> None:
    turn.run(turn.random.choice((Op.QP_2ERR, Op.QP_2RST)), cmd.Qp2errIn(qpn=turn.number("qp")))


@move(2)
def multicast(turn: Turn) -> None:
    op = turn.random.choice((Op.ATTACH_TO_MCG, Op.ATTACH_TO_MCG, Op.DETACH_FROM_MCG))
    turn.run(op, cmd.AttachToMcgIn(qpn=turn.number("qp"), multicast_gid=turn.random.choice(GROUPS)))


@move(30)
def post_send(turn: Turn) -> None:
    ready = [item for item in turn.host.book.items["qp"].values() if item.has_sq]
    if not ready:
        return
    live = [item for item in ready if work.state_of(turn.host, item.number) == RTS]
    qp = turn.random.choice(live if live and turn.random.random() < 0.9 else ready)
    for _ in range(turn.random.choice((1, 1, 2, 8))):
        wqe = work.send_wqe(turn, qp)
        if len(wqe) // 64 > work.room(turn.host, qp) and not turn.wrong():
            break
        if turn.wrong():
            wqe = spoil_bytes(turn.random, wqe)
        work.put_wqe(turn.host, qp, wqe)
    posted = qp.sq_posted if not turn.wrong() else turn.random.getrandbits(16)
    turn.host.memory.poke(qp.dbr + 4, (posted & 0xFFFF).to_bytes(4, "big"))
    qp.sq_posted = posted
    turn.host.doorbell(turn.random.choice((0x800, 0x900)), 0, qp.number << 8)
    turn.world.note(f"{turn.host.name}: posted {wqe[:16].hex()} on {qp.number:#x} (service {qp.service})")


@move(9)
def post_receive(turn: Turn) -> None:
    kind = turn.random.choice(("qp", "qp", "srq"))
    item = turn.pick(kind)
    if item is None or (kind == "qp" and not item.has_rq):
        return
    _post_receives(turn, item, shared=kind == "srq")


def _post_receives(turn: Turn, item: Item, shared: bool) -> None:
    for _ in range(turn.random.choice((1, 4, 16))):
        work.put_receive(turn, item, shared)
    posted = item.posted if not turn.wrong() else turn.random.getrandbits(16)
    turn.host.memory.poke(item.dbr, (posted & 0xFFFF).to_bytes(4, "big"))
    item.posted = posted


@move(9)
def poll_cq(turn: Turn) -> None:
    """Consume what is there, arm or not."""
    items = list(turn.host.book.items["cq"].values())
    for item in items if turn.random.random() < 0.7 else items[:1]:
        _poll_cq(turn, item)


def _poll_cq(turn: Turn, item: Item) -> None:
    cq = turn.host.board.firmware.hca.cqs.get(item.number)  # type: ignore[attr-defined]
    consumer = cq.producer if cq is not None and not turn.wrong() else turn.random.getrandbits(24)
    turn.host.memory.poke(item.dbr, (consumer & 0xFFFFFF).to_bytes(4, "big"))
    if turn.random.random() < 0.7:
        turn.host.doorbell(0x20, turn.random.randrange(2) << 24 | consumer & 0xFFFFFF, item.number)


@move(7)
def poll_eq(turn: Turn) -> None:
    for item in list(turn.host.book.items["eq"].values()):
        _poll_eq(turn, item)


def _poll_eq(turn: Turn, item: Item) -> None:
    eq = turn.host.board.firmware.hca.eqs.get(item.number)  # type: ignore[attr-defined]
    consumer = eq.producer if eq is not None and not turn.wrong() else turn.random.getrandbits(24)
    turn.host.doorbell(turn.random.choice((0x40, 0x48)), item.number << 24 | consumer & 0xFFFFFF)


@move(2)
def srq_limit(turn: Turn) -> None:
    item = turn.pick("srq")
    if item is None:
        return
    if item.service == 1:
        turn.run(Op.ARM_XRC_SRQ, cmd.ArmXrcSrqIn(xrc_srqn=item.number, lwm=1), op_mod=1)
    else:
        view = cmd.ModifyRmpIn(rmp_state=1, rmpn=item.number)
        view.bitmask.lwm = 1
        view.ctx.wq.lwm = 1
        turn.run(Op.MODIFY_RMP, view)


# ---- the outside ----


@move(12)
def deliver(turn: Turn) -> None:
    turn.world.deliver(turn.random.choice((1, 3, 20)))


@move(12)
def settle(turn: Turn) -> None:
    turn.world.settle()


@move(6)
def mischief_on_the_wire(turn: Turn) -> None:
    """Spoil what is under way, or send something like what was sent before."""
    world, random = turn.world, turn.random
    keys = [item.key for host in world.hosts for item in host.book.items["mkey"].values()]
    qpns = [number for host in world.hosts for number in host.book.items["qp"]]
    if world.wire and random.random() < 0.5:
        at = random.randrange(len(world.wire))
        target, packet = world.wire[at]
        del world.wire[at]
        for item in spoil_packet(random, packet, keys, qpns):
            world.wire.insert(min(len(world.wire), at + random.choice((0, 0, 3))), (target, item))
    elif world.last:
        packet = random.choice(world.last)
        for item in spoil_packet(random, packet, keys, qpns):
            world.wire.append((random.choice(world.hosts), item))
    world.note("mischief on the wire")


@move(6)
def time(turn: Turn) -> None:
    span = turn.random.choice((1, 1000, 2_000_000, 60_000_000, 300_000_000, 20_000_000_000))
    turn.world.pass_time(span, turn.random.choice((1, 4, 40)))
    turn.world.note(f"{span} ns pass")


@move(2)
def odd_timer(turn: Turn) -> None:
    """Timers are asked for although nothing is due, or long after."""
    turn.world.clock.advance(turn.random.choice((0, 1)))
    turn.host.board.run_timers(turn.world.clock.now_ns())


@move(2)
def manage(turn: Turn) -> None:
    """MADs from the host: sensible ones, spoilt ones, all classes."""
    turn.run(Op.MAD_IFC, cmd.MadIfcIn(port=1, mad=_mad(turn)), op_mod=turn.random.choice((0, 1)))


@move(4)
def mad_on_the_wire(turn: Turn) -> None:
    """A manager or another node speaks to QP0 or QP1."""
    random = turn.random
    qpn = random.choice((0, 0, 1))
    packet = Packet(
        route=Route(
            random.choice((turn.host.lid, turn.host.lid, 0xFFFF, 9)),
            random.choice((turn.host.other.lid, 0xFFFF)),
            vl=15 if (qpn == 0) != turn.wrong() else 0,
            grh=random.choice((None, None, Grh(bytes(15) + b"\1", bytes(15) + b"\2"))),
        ),
        service=0x60,
        op=0,
        dest_qp=qpn,
        psn=0,
        payload=_mad(turn),
        qkey=0 if qpn == 0 else 0x80010000,
        src_qp=random.choice((qpn, 0x55)),
    )
    turn.world.wire.append((turn.host, packet))
    turn.world.note(f"MAD to {turn.host.name}: {packet.payload[:24].hex()}")


@move(2)
def register_access(turn: Turn) -> None:
    register = turn.random.choice([int(one) for one in RegisterId])
    content = turn.random.choice((bytes(64), b"\0\1" + bytes(62), turn.random.randbytes(64)))
    view = cmd.AccessRegisterIn(register_id=register)
    turn.run(Op.ACCESS_REG, view, content, op_mod=turn.random.randrange(2), out_size=16 + 64)


@move(3)
def lone_pairs(turn: Turn) -> None:
    """Queue pairs without a partner: datagrams, management, registration."""
    service = turn.random.choice((UD, 7, 8, 0xC))
    same = [item.number for item in turn.host.book.items["qp"].values() if item.service == service]
    number = turn.random.choice(same) if len(same) > 1 else make_qp(turn, service)
    if number is None:
        return
    if work.state_of(turn.host, number) not in (RST, RTS):
        turn.run(Op.QP_2RST, cmd.Qp2errIn(qpn=number))
    if work.state_of(turn.host, number) == RST:
        for op in (Op.RST2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP):
            turn.run(op, transition_of(turn, number, 0, 0))
    qp = turn.host.book.items["qp"].get(number)
    if qp is not None and qp.has_rq:
        _post_receives(turn, qp, shared=False)


def _mad(turn: Turn) -> bytes:
    random = turn.random
    info = PortInfo(lid=turn.host.lid, sm_lid=1, gid_prefix=0xFE80 << 48, lmc=random.choice((0, 0, 1, 7)),
                    port_state=random.choice((0, 0, 1, 3, 4)), subnet_timeout=18)  # fmt: skip
    if random.random() < 0.25:
        perf = PerfMad(base_version=1, mgmt_class=4, class_version=1, method=random.choice((1, 2)),
                       attr_id=random.choice((1, 0x12, 0x1D)), data=b"\0\1\xff\xff".ljust(192, b"\x5a"))  # fmt: skip
        return perf.to_bytes()
    mad = Smp(
        base_version=1,
        mgmt_class=random.choice((0x01, 0x81, 0x04, 0x03, 0x32)),
        class_version=1,
        method=random.choice((madwire.METHOD_GET, madwire.METHOD_SET)),
        attr_id=random.choice((0x10, 0x11, 0x12, smp.GUID_INFO, smp.PORT_INFO, smp.P_KEY_TABLE, 0x17, 0x18, 0x1D)),
        attr_mod=random.choice((0, 0, 1, 0x10000, wild_word(random))),
        data=info.to_bytes() if random.random() < 0.6 else random.randbytes(64),
    ).to_bytes()
    if turn.wrong():
        mad = spoil_bytes(random, mad)
    return mad


@move(2)
def repair_port(turn: Turn) -> None:
    turn.host.link_up()


@move(1)
def link_flap(turn: Turn) -> None:
    turn.host.set_link(not turn.host.link)
    turn.world.note(f"{turn.host.name}: link {'up' if turn.host.link else 'down'}")


@move(1)
def reset(turn: Turn) -> None:
    if turn.random.random() < 0.8:
        return
    turn.host.board.reset("fuzz")
    turn.host.probe()
    turn.world.note(f"{turn.host.name}: reset")
    furnish(turn)


@move(2)
def start_again(turn: Turn) -> None:
    host = turn.host
    if not host.book.items["uar"]:
        host.probe()
        furnish(turn)
    elif host.uar not in host.book.items["uar"]:
        host.uar = turn.number("uar")


@move(2)
def registers(turn: Turn) -> None:
    """Stores anywhere in the BAR but to the command doorbell and its queue's address."""
    random = turn.random
    for _ in range(random.choice((1, 4))):
        page = random.choice((turn.host.uar, turn.host.uar, random.randrange(8192)))
        offset = page * PAGE + random.choice((0x20, 0x24, 0x40, 0x48, 0x800, 0x804, 0x900, random.randrange(PAGE)))
        if not 0x0C <= offset <= 0x20:
            turn.host.bar_write(offset, random.randbytes(random.choice((1, 2, 4, 8, 64))))
        turn.host.board.bar0.read(offset, random.choice((1, 4, 8)))


@move(8)
def lost_records(turn: Turn) -> None:
    """A doorbell record gets any value."""
    if not turn.wrong():
        return
    kind = turn.random.choice(("qp", "srq", "cq"))
    item = turn.pick(kind)
    if item is not None:
        turn.host.memory.poke(item.dbr, turn.random.randbytes(8))
