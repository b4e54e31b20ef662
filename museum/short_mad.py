"""A program sends a datagram that claims to be long and ends before its own header."""

import fcntl
import os
import struct
from pathlib import Path

REGISTER_AGENT = 0xC01C1B01  # _IOWR(0x1b, 1, struct ib_user_mad_reg_req)
ENABLE_PKEY = 0x1B03
SUBN_ADM, RMPP_HEADER = 3, 36

child = os.fork()
if child == 0:
    fd = os.open("/dev/infiniband/umad0", os.O_RDWR)
    fcntl.ioctl(fd, ENABLE_PKEY)
    # id, method_mask[4], qpn, class, class version, oui, rmpp version
    request = bytearray(struct.pack("<IIIIIBBB3sB", 0, 0, 0, 0, 0, 1, SUBN_ADM, 2, bytes(3), 1).ljust(28, b"\0"))
    fcntl.ioctl(fd, REGISTER_AGENT, request)
    agent = struct.unpack_from("<I", request)[0]
    lid = int(Path("/sys/class/infiniband/mlx5_0/ports/1/lid").read_text(), 0)
    # struct ib_user_mad_hdr
    header = struct.pack("<IIIII", agent, 0, 1000, 0, 0) + struct.pack(">IIH", 1, 0x80010000, lid)
    header = header.ljust(64, b"\0")
    # The method SubnAdmGetTable, and an RMPP header: version, type DATA, flags Active and First.
    mad = struct.pack(">BBBBHHQHHI", 1, SUBN_ADM, 2, 0x12, 0, 0, 1, 0x11, 0, 0)
    mad += struct.pack(">BBBBII", 1, 1, 0x03, 0, 1, 0)
    print(f"agent {agent}, lid {lid}", flush=True)
    try:
        os.write(fd, header + mad.ljust(RMPP_HEADER, b"\0"))
        print("writing a datagram without its own header: taken", flush=True)
    except OSError as error:
        print(f"writing a datagram without its own header: {error.strerror}", flush=True)
    os._exit(0)
print(f"the program ended with status {os.waitpid(child, 0)[1]}", flush=True)
