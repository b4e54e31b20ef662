"""What the rest of the firmware asks of the card's management agents."""

from typing import Protocol

from vhca.wire.packet import Packet


class Management(Protocol):
    """The agents behind QP0 and QP1 of the card's ports; ports are given by number."""

    def smp_in(self, number: int, packet: Packet) -> bool:
        """An SMP from the wire; True if it was the agent's (whether or not it gets an answer)."""
        ...

    def unattended(self, number: int, packet: Packet) -> bool:
        """A datagram for QP0 or QP1 while the host has no such queue pair; True if it was answered."""
        ...

    def local_mad(self, number: int, mad: bytes, ignore_mkey: bool) -> bytes | None:
        """A MAD from the host (MAD_IFC); returns the reply, None if it is discarded."""
        ...

    def set_admin_state(self, number: int, up: bool) -> None:
        """The host wants the link up or down."""
        ...

    def set_capability_mask(self, number: int, mask: int) -> None:
        """The host changed what its management software can do."""
        ...

    def set_node_description(self, text: bytes) -> None:
        """The host renamed the node."""
        ...

    def node_description(self) -> bytes:
        """The node's name, 64 bytes."""
        ...


class NoManagement:
    """A card without agents: nothing is answered, nothing is told."""

    def smp_in(self, number: int, packet: Packet) -> bool:
        """See :class:`Management`."""
        return False

    def unattended(self, number: int, packet: Packet) -> bool:
        """See :class:`Management`."""
        return False

    def local_mad(self, number: int, mad: bytes, ignore_mkey: bool) -> bytes | None:
        """See :class:`Management`."""
        return None

    def set_admin_state(self, number: int, up: bool) -> None:
        """See :class:`Management`."""

    def set_capability_mask(self, number: int, mask: int) -> None:
        """See :class:`Management`."""

    def set_node_description(self, text: bytes) -> None:
        """See :class:`Management`."""

    def node_description(self) -> bytes:
        """See :class:`Management`."""
        return bytes(64)
