"""Both sides of the dynamically connected transport: targets, and initiators that name one with each work request."""

from firmware.model.dct import Dct
from firmware.model.qp import ST_DCI
from tests.scenario.world import ALL_RIGHTS, Card, CompletionQueue, End, SharedQueue, rights_fields
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cmd.dct import CreateDctIn, CreateDctOut, DctIn
from vhca.wire.connectx.wqe import DatagramSegment, RaddrSegment, WqeOpcode

KEY = 0x1234_5678_9ABC_DEF0
USER_INDEX = 0x77


class Target:
    """A DC target with its SRQ and CQ."""

    def __init__(
        self, card: Card, key: int = KEY, rights: int = ALL_RIGHTS, cqe_bytes: int = 64, **fields: int
    ) -> None:
        self.card = card
        self.cq = CompletionQueue(card, cqe_bytes=cqe_bytes)
        self.srq = SharedQueue(card)
        view = CreateDctIn()
        basic = {"pd": card.pd, "srqn_xrqn": self.srq.number, "cqn": self.cq.cqn, "port": 1, "mtu": 3,
                 "dc_access_key": key, "min_rnr_nak": 1, "user_index": USER_INDEX}  # fmt: skip
        allowed = rights_fields(rights)
        for right, name in (("rr", "rre"), ("rw", "rwe"), ("a", "rae")):
            basic[name] = allowed[right]
        for name, value in {**basic, **fields}.items():
            setattr(view.dct_context_entry, name, value)
        self.dctn = CreateDctOut.from_bytes(card.run(Op.CREATE_DCT, view)).dctn

    @property
    def dct(self) -> Dct:
        """The card's object, for looking."""
        dct = self.card.hca.dcts.get(self.dctn)
        assert dct is not None
        return dct

    def run(self, op: Op) -> None:
        """A command that names the target alone."""
        self.card.run(op, DctIn(dctn=self.dctn))

    def av(self, key: int = KEY, **fields: int | bytes) -> bytes:
        segment = DatagramSegment(ext=1, dqpn=self.dctn, rlid=self.card.port.lid, **fields)
        return key.to_bytes(8, "big") + segment.to_bytes()[8:]


def initiator(card: Card, **rts: int) -> End:
    end = End(card, ST_DCI, has_rq=False)
    end.to_init()
    end.to_rtr()
    end.to_rts(**rts)
    return end


def send(end: End, target: Target, content: bytes, key: int = KEY, **more: int) -> int:
    return end.post(WqeOpcode.SEND, target.av(key) + end.sge(end.buffer(content), len(content)), **more)


def write(end: End, target: Target, content: bytes, remote: int, key: int = KEY) -> int:
    raddr = RaddrSegment(raddr=remote, rkey=target.card.key).to_bytes()
    return end.post(WqeOpcode.RDMA_WRITE, target.av(key) + raddr + end.sge(end.buffer(content), len(content)))


def statuses(end: End) -> list[int]:
    return [c.syndrome for c in end.send_cq.poll()]
