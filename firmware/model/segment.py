"""Segmentation: how a message of so many bytes becomes packets, and packets become bursts (volume 1, 9.7.2).

A burst stands for consecutive packets of one message and holds at most `BURST_BYTES` of payload and `BURST_PACKETS`
packets, so that a long message is interleaved with others and may be acknowledged on the way.
"""

from typing import Final

from vhca.wire.packet import Packet

BURST_BYTES: Final = 256 << 10
BURST_PACKETS: Final = 256
MESSAGE_BYTES_MAX: Final = 1 << 31
# What a queue pair sends in one step.
WQE_BUDGET: Final = 64
BYTE_BUDGET: Final = 1 << 20
# And in a step of the engine in C, which takes less for each: a tenth of a millisecond.
TRAIN_WQE_BUDGET: Final = 1024
TRAIN_BYTE_BUDGET: Final = 4 << 20
# It takes no more than so long by the clock: memory that nobody has touched yet takes a hundred times as long as other.
TRAIN_NS: Final = 500_000
# While several of them run side by side, each takes so long instead: about as long as a card's turn.
SHARE_NS: Final = 300_000
# What a segment of a list costs there of the bytes.
SEGMENT_COST_BYTES: Final = 256
# A long run of packets asks for an acknowledgement on its way.
ASK_PACKETS: Final = 128
# What a burst costs of a step's budget beside its payload and its pieces; and what a packet costs at least, since a
# cable with faults cuts bursts.
BURST_COST_BYTES: Final = 256
LOG_PACKET_COST: Final = 10


def burst_limit(log_mtu: int) -> int:
    """The payload of the longest burst in bytes."""
    return min(BURST_BYTES, BURST_PACKETS << log_mtu)


def packet_count(length: int, log_mtu: int) -> int:
    """Packets of a message (or responses of a READ) of `length` bytes: an empty one takes one packet, too."""
    return (length + (1 << log_mtu) - 1) >> log_mtu or 1


def well_formed(packet: Packet, mtu: int) -> bool:
    """Tell whether a burst's payload fits its packet count and its place in the message at this MTU (9.7.4.1.6)."""
    size = len(packet.payload)
    count = packet.count
    if packet.end:
        # The last packet may be short, but only a message of one packet may be empty.
        if count == 1:
            return size <= mtu and (size > 0 or packet.start)
        return count > 1 and packet.mtu == mtu and (count - 1) * mtu < size <= count * mtu
    return count > 0 and size == count * mtu and (count == 1 or packet.mtu == mtu)
