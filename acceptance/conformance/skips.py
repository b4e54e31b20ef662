"""The key to the skips: why each test of rdma-core that does not run on a device cannot run there.

Data, with the one function that looks it up. The first entry that fits wins; a skip that no entry fits is
*unexplained*, which makes a conformance run fail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

#: A real ConnectX with an InfiniBand port skips the test as well.
NOT_ON_IB: Final = "no real ConnectX on IB does this"
#: A real ConnectX does it and this one does not; `gap` is its heading in docs/limits.md.
GAP: Final = "gap"
#: Soft-RoCE, the baseline, cannot do it.
NOT_IN_SOFT_ROCE: Final = "not in Soft-RoCE"


@dataclass(slots=True, frozen=True)
class Explanation:
    """Why tests are skipped: `reason` is matched from the start of the skip's text, `tests` anywhere in the id."""

    device: str  # "hca", "soft-roce", or "" for both
    reason: str
    kind: str
    text: str
    tests: str = ""
    gap: str = ""

    def fits(self, device: str, test_id: str, reason: str) -> bool:
        """Does this explain that skip?"""
        return (
            self.device in ("", device)
            and re.match(self.reason, reason) is not None
            and re.search(self.tests, test_id) is not None
        )

    @property
    def line(self) -> str:
        """The explanation in one line."""
        if self.kind == GAP:
            return f'gap: {self.text}, see docs/limits.md, "{self.gap}"'
        return f"{self.kind}: {self.text}"


_ANY_HARDWARE: Final = (
    Explanation("", r"Can not run the test over non EFA device", NOT_ON_IB, "the test is for Amazon's EFA"),
    Explanation("", r"Not supported on non EFA devices", NOT_ON_IB, "the test is for Amazon's EFA"),
    Explanation("", r"cuda-python", NOT_ON_IB, "the memory is that of an NVIDIA GPU, which the machine has not"),
    Explanation(
        "",
        r"Device /dev/dri/renderD\d+ is not present",
        NOT_ON_IB,
        "the memory is a dma-buf of an AMD or Intel GPU, which the machine has not",
    ),
)

_SOFT_ROCE: Final = tuple(
    Explanation("soft-roce", reason, NOT_IN_SOFT_ROCE, text)
    for reason, text in (
        (r"Can not run the test over non MLX5 device", "the test is for mlx5 devices"),
        (r"Could not open mlx5 context \(This is not an MLX5 device\)", "the test is for mlx5 devices"),
        (r"PCI device must be passed", "the test is for a ConnectX behind vfio-pci"),
        (r"Device memory is not supported", "it has no memory of its own"),
        (r"Create XRCD is not supported", "it has no XRC"),
        (r"Create QP type 8 is not supported", "it has no raw packet QPs"),
        (r"Create Raw Packet QP with", "it has no raw packet QPs"),
        (r"Create Extended CQ is not supported", "its completions carry no time stamps"),
        (r"Extended CQ is not supported", "it has no tag matching"),
        (r"Query device real time is not supported", "it has no clock"),
        (r"Rereg MR is not supported", "its user-space provider cannot re-register"),
        (r"Parent Domain is not supported", "its user-space provider has no parent domains"),
        (r"ODP implicit is not supported", "it pages on demand, but not whole address spaces"),
        (r"Create player of OdpRC is not supported", "it does not take the huge page flag of a registration"),
        (r"Advise MR with flags", "its user-space provider does not pass the advice on to the kernel"),
        (r"Importing a device is not supported", "its user-space provider cannot import"),
    )
)

_ETHERNET: Final = tuple(
    Explanation("hca", reason, NOT_ON_IB, text, tests)
    for reason, text, tests in (
        (r"Create (QP type 8|Raw Packet QP)", "raw packets are Ethernet frames", ""),
        (r"To Create RAW QP must be done by root on Ethernet", "raw packets are Ethernet frames", ""),
        (r"Must be run by root on Ethernet link layer", "raw packets and flow steering are for Ethernet frames", ""),
        (r"Must be run on Ethernet link layer with Eswitch on", "the card's switch is for Ethernet frames", ""),
        (r"NIC flow table does not support", "flow tables steer Ethernet frames", ""),
        (r"Link layer of port=1 is InfiniBand", "the test is for RoCE", ""),
        (r"No supported port is up", "UDP ports are RoCE's: the test takes a RoCE v2 GID", r"\.UdpSportTestCase\."),
        (r"Set LAG affinity is not supported", "a bond is made of Ethernet ports", ""),
        (r"VAR allocation is not supported", "the doorbells of emulated virtio network cards", ""),
        (r"Packet pacing entry allocation is not supported", "pacing is for queues of raw packets", ""),
    )
)
_OTHER_CARDS: Final = tuple(
    Explanation("hca", reason, NOT_ON_IB, text, tests)
    for reason, text, tests in (
        (r"SRQ resize is not supported", "the driver does not resize shared receive queues", ""),
        (r"Create custom mr with additional access flags 258", "no mlx5 device has the FLUSH operation", ""),
        (r"Extended QP is not supported", "no mlx5 device has the ATOMIC WRITE operation", r"_atomic_write$"),
        (r"Create memory window of type 3", "the test asks for a type that does not exist", ""),
        (r"Create Mlx5DV QP is not supported", "copies by DMA engine are BlueField's", r"\.DmaGgaMemcpy\."),
    )
)
_GAPS: Final = tuple(
    Explanation("hca", reason, GAP, text, tests, gap)
    for reason, text, gap, tests in (
        (r"All gid indices populated", "a port has one GID", "More GIDs", ""),
        (r"DCI caps is not supported", "no streams of an initiator", "Dynamically connected transport", ""),
        (r"Mapping AH to QP is not supported", "no mapping of address handles", "Dynamically connected transport", ""),
        (r"Tag matching is not supported", "no matching of tags in the card", "Tag matching", ""),
        (r"Create Mkey is not supported", "no signatures over data", "Signature offload", r"_sig_"),
        (r"Create Mlx5DV QP is not supported", "no signatures over data", "Signature offload", r"_sig_"),
        (r"The device crypto engines does not support AES", "no encryption of data", "Inline encryption", ""),
        (r"DV QP OOO feature", "packets are placed in order", "Out-of-order placement", ""),
        (r"UAR allocation \(with flag=0\)", "WQEs are fetched, not pushed", "BlueFlame", ""),
        (r"Creat(e|ion or usage of) schedule elements", "queues are served in turn", "Scheduling elements", ""),
    )
)

EXPLANATIONS: Final = (*_ANY_HARDWARE, *_SOFT_ROCE, *_ETHERNET, *_OTHER_CARDS, *_GAPS)


def explain(device: str, test_id: str, reason: str) -> Explanation | None:
    """The explanation of a skip, or `None`."""
    return next((entry for entry in EXPLANATIONS if entry.fits(device, test_id, reason)), None)
