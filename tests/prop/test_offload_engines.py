"""Both engines do the same with offloads for IP: any packets, checksums and large sends, whole and cut short."""

import os
from random import Random

import pytest

from firmware.model.counters import Count
from firmware.native.library import loaded
from tests.scenario.test_offloads import address, ethernet
from tests.scenario.world import ST_UD, End, World
from tests.support.ip import TCP, Ip, ip_packet
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.ipoib import with_checksums

pytestmark = pytest.mark.skipif(not loaded().there, reason=f"no engine in C: {loaded().reason}")

PLACE = 4096
RECEIVES = 64
SOURCE = 16384


class Traffic:
    """Packets of one queue pair to two, with and without offloads on either side."""

    def __init__(self, seed: int, rails: bool) -> None:
        self.random = random = Random(seed)
        self.world = World()
        self.offloads, *others = (int(random.random() < 0.8) for _ in range(3))
        self.sender = End(self.world.a, ST_UD, log_sq=7, ulp_stateless_offload_mode=self.offloads)
        self.receivers = [End(self.world.b, ST_UD, ulp_stateless_offload_mode=mode) for mode in others]
        self.sender.connect(self.receivers[0], mtu=5)
        for end in self.receivers:
            end.connect(self.sender, mtu=5)
        if rails:
            self.world.lay_rails()
        self.source = self.sender.buffer(random.randbytes(SOURCE))
        self.places = [end.buffer(RECEIVES * 2 * PLACE) for end in self.receivers]
        self.seen: list[list[object]] = [[], [], []]

    def run(self, moves: int) -> None:
        random = self.random
        for _ in range(moves):
            index = random.randrange(2)
            end = self.receivers[index]
            if random.random() < 0.5:
                rq = end.qp.rq
                assert rq is not None
                for _ in range(min(random.randrange(40), RECEIVES - 4 - end.rq_posted + rq.consumer)):
                    place = self.places[index] + end.rq_posted % RECEIVES * 2 * PLACE
                    first = random.choice((4096, 4096, 40, 41, 63, 101, 200))
                    sges = [end.sge(place, first), end.sge(place + PLACE, 4096)]
                    end.post_recv(sges=sges)
            else:
                for _ in range(random.randrange(1, 6)):
                    self._post(self.receivers[random.random() < 0.2])
            self.world.settle()
            self.world.now_ns += 2_000_000
            for seen, end in zip(self.seen, (self.sender, *self.receivers), strict=True):
                seen += end.send_cq.poll() + end.recv_cq.poll()

    def _post(self, to: End) -> None:
        random = self.random
        ip = Ip(random)
        large = self.offloads and random.random() < 0.5
        ce, se = random.choice((0, 2)), random.getrandbits(1)
        l3, l4 = random.getrandbits(1), random.getrandbits(1)
        if large:
            ip = Ip(random, protocol=TCP)
            header = ip_packet(random, ip, b"")
            size = random.choice((1, 500, 3000, 9000))
            segments = ethernet(header, mss=random.choice((100, 1000, 1001, 3900)), checksums=(l3, l4))
            self.sender.post(WqeOpcode.LSO, address(to) + segments + self._gather(size), ce=ce, se=se)
            return
        packet = bytearray(ip_packet(random, ip, random.randbytes(random.choice((0, 1, 50, 1501, 3000)))))
        if random.random() < 0.3:
            packet = bytearray(with_checksums(bytes(packet), True, True))
        if random.random() < 0.3:
            packet[random.randrange(min(len(packet), 60))] ^= 1 << random.randrange(8)
        if random.random() < 0.1:
            del packet[random.randrange(len(packet)) :]
        segments = ethernet(checksums=(l3, l4)) if self.offloads else b""
        if len(packet) < 100 and random.random() < 0.5:
            data = (1 << 31 | len(packet)).to_bytes(4, "big") + bytes(packet)
            data += bytes(-len(data) % 16)
        else:
            at = self.source + self.sender.sq_posted % 4 * PLACE
            self.world.a.memory.write(at, bytes(packet))
            cut = random.randrange(len(packet) + 1)
            data = self.sender.sge(at, cut) if cut else b""
            data += self.sender.sge(at + cut, len(packet) - cut) if cut < len(packet) else b""
        self.sender.post(WqeOpcode.SEND, address(to) + segments + data, ce=ce, se=se)

    def _gather(self, size: int) -> bytes:
        cut = self.random.randrange(size + 1)
        data = self.sender.sge(self.source, cut) if cut else b""
        return data + (self.sender.sge(self.source + cut, size - cut) if cut < size else b"")


@pytest.mark.parametrize("seed", range(int(os.environ.get("VHCA_EXAMPLES", "20"))))
def test_offloads_have_one_outcome(seed: int) -> None:
    worlds = [Traffic(seed, rails) for rails in (False, True)]
    for one in worlds:
        one.run(40)
    python, native = worlds
    assert native.seen == python.seen
    differ = {Count.TRAINS, Count.TRAIN_MESSAGES}
    for mine, theirs in ((native.world.a, python.world.a), (native.world.b, python.world.b)):
        # Completions with their flags are in there.
        assert bytes(mine.memory.data) == bytes(theirs.memory.data)
        assert mine.port.counters == theirs.port.counters
        for name, value in theirs.hca.count.items():
            assert name in differ or mine.hca.count[name] == value, name
    assert native.sender.qp.requester.next_psn == python.sender.qp.requester.next_psn
    assert native.sender.qp.requester.lso_done == python.sender.qp.requester.lso_done == 0
    assert native.world.trains
