"""F03: side 0 waits for a connection by RDMA CM, side 1 asks for one; what each offered, and what its QP is like."""

import pyverbs.cm_enums as ce
from common import Peer, arguments, e, tell
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.qp import QPCap, QPInitAttr

PORT = "7471"
ALL = (
    e.IBV_QP_STATE
    | e.IBV_QP_PATH_MTU
    | e.IBV_QP_DEST_QPN
    | e.IBV_QP_RQ_PSN
    | e.IBV_QP_SQ_PSN
    | e.IBV_QP_MAX_QP_RD_ATOMIC
    | e.IBV_QP_MAX_DEST_RD_ATOMIC
    | e.IBV_QP_RETRY_CNT
    | e.IBV_QP_RNR_RETRY
)
events = []


def event(channel):
    """The next event, written down; the caller acknowledges it."""
    found = CMEvent(channel)
    events.append(found.event_str().removeprefix("RDMA_CM_EVENT_"))
    return found


def expect(channel, name):
    """The next event must be this one."""
    event(channel).ack_cm_event()
    if events[-1] != name:
        raise SystemExit(f"{name} did not come: {events}")


def queue_pair(cmid):
    """Make the connection's QP."""
    cmid.create_qp(QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=8, max_recv_wr=8)))


def describe(cmid):
    """The QP's attributes, as the driver answers."""
    attr, _ = cmid.query_qp(ALL)
    return {
        "qpn": cmid.qpn,
        "rts": attr.qp_state == e.IBV_QPS_RTS,
        "dest_qpn": attr.dest_qp_num,
        "rq_psn": attr.rq_psn,
        "sq_psn": attr.sq_psn,
        "mtu": attr.path_mtu,
        "reads_out": attr.max_rd_atomic,
        "reads_in": attr.max_dest_rd_atomic,
        "retry": attr.retry_cnt,
        "rnr_retry": attr.rnr_retry,
    }


def param(options):
    """What this side offers."""
    return ConnParam(resources=options.resources, depth=options.depth, retry=options.retry, rnr_retry=options.rnr)


def passive(options):
    """Side 0."""
    peer, channel = Peer(options), CMEventChannel()
    listener = CMID(creator=channel)
    listener.bind_addr(AddrInfo(src=options.address, src_service=PORT, flags=ce.RAI_PASSIVE))
    listener.listen()
    peer.meet()
    asked = event(channel)
    child = CMID(creator=asked, listen_id=listener)
    asked.ack_cm_event()
    queue_pair(child)
    child.accept(param(options))
    expect(channel, "ESTABLISHED")
    qp = describe(child)
    peer.meet()
    expect(channel, "DISCONNECTED")
    child.disconnect()
    tell(qp=qp, events=events)


def active(options):
    """Side 1."""
    peer, channel = Peer(options), CMEventChannel()
    peer.meet()
    cmid = CMID(creator=channel)
    cmid.resolve_addr(AddrInfo(dst=options.address, dst_service=PORT))
    expect(channel, "ADDR_RESOLVED")
    cmid.resolve_route()
    expect(channel, "ROUTE_RESOLVED")
    queue_pair(cmid)
    cmid.connect(param(options))
    expect(channel, "ESTABLISHED")
    qp = describe(cmid)
    peer.meet()
    cmid.disconnect()
    expect(channel, "DISCONNECTED")
    tell(qp=qp, events=events)


numbers = [(name, {"type": int}) for name in ("resources", "depth", "retry", "rnr")]
arguments_ = arguments(("address", {}), *numbers)
(passive if arguments_.peer.startswith("0") else active)(arguments_)
