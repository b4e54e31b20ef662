"""Widths and speeds of links: their names, how PortInfo tells them, and the rate that both make together.

One lane carries 2.5 Gbit/s (SDR) to 200 Gbit/s (XDR); a link has 1 to 12 lanes. From FDR on the speed is in the
extended fields of PortInfo, XDR in the second ones (14.2.5.6 of volume 1). FDR10, which is one vendor's, looks like QDR
there; MlnxExtPortInfo tells them apart.
"""

from dataclasses import dataclass
from typing import Final

from vhca.wire import smp
from vhca.wire.smp import PortInfo

WIDTHS: Final = {1: smp.WIDTH_1X, 2: smp.WIDTH_2X, 4: smp.WIDTH_4X, 8: smp.WIDTH_8X, 12: smp.WIDTH_12X}
"""Lanes, and PortInfo's code for so many."""

# (LinkSpeedActive; LinkSpeedExtActive, with LinkSpeedExtActive2 above it; Gbit/s of one lane as rates are named)
SPEEDS: Final = {
    "SDR": (smp.SPEED_SDR, 0, 2.5),
    "DDR": (smp.SPEED_DDR, 0, 5),
    "QDR": (smp.SPEED_QDR, 0, 10),
    "FDR10": (smp.SPEED_QDR, 0, 10),
    "FDR": (smp.SPEED_QDR, smp.SPEED_EXT_FDR, 14),
    "EDR": (smp.SPEED_QDR, smp.SPEED_EXT_EDR, 25),
    "HDR": (smp.SPEED_QDR, smp.SPEED_EXT_HDR, 50),
    "NDR": (smp.SPEED_QDR, smp.SPEED_EXT_NDR, 100),
    "XDR": (smp.SPEED_QDR, smp.SPEED_EXT2_XDR << 4, 200),
}
"""From slow to fast."""

# CapabilityMask2 of a port that can do a speed.
_CAPABILITIES2: Final = (
    (smp.SPEED_EXT_HDR, smp.CAP2_HDR),
    (smp.SPEED_EXT_NDR, smp.CAP2_NDR),
    (smp.SPEED_EXT2_XDR << 4, smp.CAP2_EXTENDED_SPEEDS_2 | smp.CAP2_XDR),
)

# Encodings of rates by Gbit/s (15.2.5.16, table of PathRecord:Rate).
_RATE_CODES: Final = {
    2.5: 2, 10: 3, 30: 4, 5: 5, 20: 6, 40: 7, 60: 8, 80: 9, 120: 10, 14: 11, 56: 12, 112: 13, 168: 14, 25: 15, 100: 16,
    200: 17, 300: 18, 28: 19, 50: 20, 400: 21, 600: 22, 800: 23, 1200: 24,
}  # fmt: skip
_GBPS: Final = {code: gbps for gbps, code in _RATE_CODES.items()}


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What a link runs at: `width` lanes of `speed`, names of :data:`WIDTHS` and :data:`SPEEDS`.

    :raises ValueError: there is no such link.
    """

    width: int = 4
    speed: str = "EDR"

    def __post_init__(self) -> None:
        if self.width not in WIDTHS:
            raise ValueError(f"width {self.width}: a link has {', '.join(map(str, WIDTHS))} lanes")
        if self.speed not in SPEEDS:
            raise ValueError(f"speed {self.speed!r}: there are {', '.join(SPEEDS)}")
        if SPEEDS[self.speed][2] * self.width not in _RATE_CODES:
            raise ValueError(f"{self}: there is no rate of so much")

    def __str__(self) -> str:
        """As tools show it: 4xEDR."""
        return f"{self.width}x{self.speed}"

    @property
    def rate(self) -> int:
        """The code of its rate, as in PathRecord."""
        return _RATE_CODES[SPEEDS[self.speed][2] * self.width]

    def at_most(self, other: "LinkSpeed") -> "LinkSpeed":
        """What two ends agree on that can do so much each: the narrower and the slower of both."""
        names = list(SPEEDS)
        speed = names[min(names.index(self.speed), names.index(other.speed))]
        return LinkSpeed(min(self.width, other.width), speed)

    def train(self, info: PortInfo) -> None:
        """Let a port run like that: it supports and enables this and less, and the active fields say it."""
        code, extended, _ = SPEEDS[self.speed]
        widths = sum(bit for lanes, bit in WIDTHS.items() if lanes in (1, self.width))
        info.link_width_supported = info.link_width_enabled = widths
        info.link_width_active = WIDTHS[self.width]
        info.link_speed_supported = info.link_speed_enabled = 2 * code - 1
        info.link_speed_active = code
        can = max(0, 2 * extended - 1)
        info.link_speed_ext_supported = info.link_speed_ext_enabled = can & 15
        info.link_speed_ext_active = extended & 15
        info.link_speed_ext_supported2 = info.link_speed_ext_enabled2 = can >> 4
        info.link_speed_ext_active2 = extended >> 4
        mask2 = smp.CAP2_LINK_WIDTH_2X if self.width == 2 else 0
        for bit, capability in _CAPABILITIES2:
            mask2 |= capability if can & bit else 0
        info.capability_mask2 = mask2

    @property
    def vendors_code(self) -> int:
        """MlnxExtPortInfo.LinkSpeedActive."""
        return smp.SPEED_FDR10 if self.speed == "FDR10" else 0


USUAL: Final = LinkSpeed()
"""What a card does, and a cable of which nothing is said."""


def rate_of(info: PortInfo) -> int:
    """The code of the rate at which a port runs, by its PortInfo; that of 4xEDR if it says nothing that exists."""
    lanes = next((lanes for lanes, code in WIDTHS.items() if code == info.link_width_active), 4)
    for speed, extended, gbps in SPEEDS.values():
        if (speed, extended) == (info.link_speed_active, info.link_speed_ext_active | info.link_speed_ext_active2 << 4):
            return _RATE_CODES[gbps * lanes]
    return smp.RATE_100_GBPS


def gbps(rate: int) -> float:
    """Gbit/s of the code of a rate, whose codes are not in order; 0 if there is no such rate."""
    return _GBPS.get(rate, 0)


def rates() -> list[int]:
    """The codes of all rates, from slow to fast."""
    return sorted(_GBPS, key=gbps)


def slower(one: int, other: int) -> int:
    """The code of the lower of two rates."""
    return min(one, other, key=gbps)
