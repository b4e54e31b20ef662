"""The kernel's interface for verbs, without a library: commands written to the device file."""

import ctypes
import mmap
import os
import struct

GET_CONTEXT, ALLOC_PD, CREATE_CQ, CREATE_QP = 0, 3, 18, 24


class Raw:
    """A context of the device, made by a program that knows nothing of dynamic doorbell pages."""

    def __init__(self, bfregs=16, capabilities=0):
        self.fd = os.open("/dev/infiniband/uverbs0", os.O_RDWR | os.O_CLOEXEC)
        # struct mlx5_ib_alloc_ucontext_req_v2
        self.command(GET_CONTEXT, b"", struct.pack("<IIIIBBHIQ", bfregs, 4, 0, 0, 1, 0, 0, 0, capabilities), 256)

    def command(self, number, core, driver, room):
        """Write one; its answer, of which there is room for so many bytes."""
        answer = ctypes.create_string_buffer(room)
        body = struct.pack("<Q", ctypes.addressof(answer)) + core + driver
        words = struct.pack("<IHH", number, (8 + len(body)) // 4, room // 4)
        os.write(self.fd, words + body)
        return answer.raw

    def pd(self):
        """A protection domain's handle."""
        return struct.unpack_from("<I", self.command(ALLOC_PD, b"", b"", 16))[0]

    def cq(self, buffer, record):
        """The handle of a completion queue of 64 entries: where its ring and its doorbell record are."""
        core = struct.pack("<QIIiI", 0, 63, 0, -1, 0)
        driver = struct.pack("<QQIBBHHHI", buffer, record, 64, 0, 0, 0, 0, 0, 0)
        return struct.unpack_from("<I", self.command(CREATE_CQ, core, driver, 16))[0]


def pages(count=1):
    """Pages of this process; their address. They stay."""
    area = mmap.mmap(-1, count * mmap.PAGESIZE)
    _KEPT.append(area)
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


_KEPT = []
