"""Runs in a guest, as root: sends one SMP from QP0 without asking for anything first, prints what came back.

    python3 forge_smp.py LID MODIFIER DATA

DATA is the hexadecimal content of a Set(PortInfo). Prints "answered STATUS" or "silence".
"""

import fcntl
import os
import select
import struct
import sys

REGISTER = 0xC01C1B01  # _IOWR(0x1b, 1, 28 bytes)
ENABLE_PKEY = 0x1B03
HEADER = 64
WAIT_MS = 500


def main() -> None:
    lid, modifier, data = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
    umad = os.open("/dev/infiniband/umad0", os.O_RDWR)
    fcntl.ioctl(umad, ENABLE_PKEY)
    # QP0, class of LID-routed SMPs, version 1; answers only
    request = bytearray(struct.pack("=I4IBBB3sB", 0, 0, 0, 0, 0, 0, 1, 1, bytes(3), 0))
    fcntl.ioctl(umad, REGISTER, request)
    (agent,) = struct.unpack_from("=I", request)
    header = struct.pack("=IIIII", agent, 0, WAIT_MS, 0, HEADER + 256) + struct.pack(">IIHBB", 0, 0, lid, 0, 0)
    mad = struct.pack(">BBBBHHQHHIQ", 1, 1, 1, 2, 0, 0, 0x77, 0x15, 0, modifier, 0).ljust(64, b"\0")
    os.write(umad, header.ljust(HEADER, b"\0") + (mad + data.ljust(64, b"\0")).ljust(256, b"\0"))
    if not select.select([umad], [], [], 5)[0]:
        print("silence")
        return
    answer = os.read(umad, HEADER + 256)
    (timed_out,) = struct.unpack_from("=I", answer, 4)
    (status,) = struct.unpack_from(">H", answer, HEADER + 4)
    print("silence" if timed_out else f"answered {status:#06x}")


main()
