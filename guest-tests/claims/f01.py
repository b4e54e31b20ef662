"""F01: the entry of one LID in a switch's forwarding table, by MADs of this process; with --set, another one before."""

import fcntl
import os
import select
import struct

from common import arguments, tell

REGISTER = 0xC01C1B01  # _IOWR(0x1b, 1, 28 bytes)
ENABLE_PKEY = 0x1B03
UMAD_HEADER = 64
WAIT_MS = 1000
CLASS_SUBN_LID = 1
GET, SET = 1, 2
LINEAR_FORWARDING_TABLE = 0x19
PER_BLOCK = 64


class Agent:
    """Sends SMPs by LID."""

    def __init__(self):
        self.umad = os.open("/dev/infiniband/umad0", os.O_RDWR)
        fcntl.ioctl(self.umad, ENABLE_PKEY)
        # QP0, class of LID-routed SMPs, version 1; answers only
        request = bytearray(struct.pack("=I4IBBB3sB", 0, 0, 0, 0, 0, 0, CLASS_SUBN_LID, 1, bytes(3), 0))
        fcntl.ioctl(self.umad, REGISTER, request)
        (self.agent,) = struct.unpack_from("=I", request)

    def ask(self, lid, method, modifier, data=b""):
        """The 64 bytes of data in the answer."""
        header = struct.pack("=IIIII", self.agent, 0, WAIT_MS, 3, UMAD_HEADER + 256)
        header += struct.pack(">IIHBB", 0, 0, lid, 0, 0)
        mad = struct.pack(
            ">BBBBHHQHHIQ", 1, CLASS_SUBN_LID, 1, method, 0, 0, 0x77, LINEAR_FORWARDING_TABLE, 0, modifier, 0
        )
        os.write(self.umad, header.ljust(UMAD_HEADER, b"\0") + (mad.ljust(64, b"\0") + data).ljust(256, b"\0"))
        if not select.select([self.umad], [], [], 10)[0]:
            raise SystemExit("no answer")
        answer = os.read(self.umad, UMAD_HEADER + 256)
        (timed_out,) = struct.unpack_from("=I", answer, 4)
        (status,) = struct.unpack_from(">H", answer, UMAD_HEADER + 4)
        if timed_out or status:
            raise SystemExit(f"refused or lost: {timed_out} {status:#x}")
        return answer[UMAD_HEADER + 64 : UMAD_HEADER + 128]


options = arguments(("switch", {"type": int}), ("lid", {"type": int}), ("--set", {"type": int}))
block, place = divmod(options.lid, PER_BLOCK)
agent = Agent()
table = agent.ask(options.switch, GET, block)
if options.set is not None:
    wanted = bytearray(table)
    wanted[place] = options.set
    table = agent.ask(options.switch, SET, block, bytes(wanted))
tell(port=table[place])
