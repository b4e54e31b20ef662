"""The M_Keys that a subnet manager gives to the ports of its subnet.

By default each place at a switch has a key of its own, made from a secret that lives as long as the manager: whoever
finds out the key of one port, for example by letting its lease run out with the cable pulled, knows no other.
"""

import hashlib
from random import Random
from typing import Final

from vhca.management.mkey import PROTECT_ALL, PROTECT_SETS
from vhca.subnet.topology import PortKey
from vhca.wire.smp import PortInfo

LEASE_S: Final = 60


class ManagementKeys:
    """Keys by place: the port of a switch that an adapter hangs on; all switches share one.

    `fixed` is one key for all ports, for people who want to use their own tools with it; 0 is no key and no
    protection, and None, the default, is a random key for each place.
    """

    def __init__(self, random: Random, fixed: int | None = None) -> None:
        if fixed is not None and not 0 <= fixed < 1 << 64:
            raise ValueError(f"an M_Key has 64 bits, not {fixed:#x}")
        self._secret = random.getrandbits(256).to_bytes(32, "big")
        self._fixed = fixed
        self._places: dict[PortKey, int] = {}
        self.switches = self._derive(b"switch") if fixed is None else fixed

    def at(self, place: PortKey | None) -> int:
        """The key of the adapter port that hangs on `place`; that of switches for None."""
        if place is None or self._fixed is not None:
            return self.switches
        key = self._places.get(place)
        if key is None:
            key = self._places[place] = self._derive(repr(place).encode())
        return key

    def protect(self, info: PortInfo, key: int) -> None:
        """Write the key and its protection into a PortInfo.

        A key that all ports share has no lease: one port whose lease ran out would show everybody's.
        """
        info.mkey = key
        info.mkey_protect_bits = PROTECT_ALL if key else PROTECT_SETS
        info.mkey_lease_period = LEASE_S if key and self._fixed is None else 0

    def _derive(self, what: bytes) -> int:
        digest = hashlib.blake2b(what, digest_size=8, key=self._secret).digest()
        return int.from_bytes(digest, "big") or 1
