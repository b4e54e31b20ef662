"""Who listens to which multicast address."""

from dataclasses import dataclass, field

from firmware.model.qp import Qp


@dataclass(slots=True, eq=False)
class MulticastGroup:
    """QPs attached to one multicast GID."""

    gid: bytes
    members: list[Qp] = field(default_factory=list)
