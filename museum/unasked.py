"""A stranger sends the first pieces of long answers that nobody asked for: does the kernel take and acknowledge them?

Runs in both guests: g1 sends, g0 counts.
"""

import fcntl
import os
import socket
import struct
import time
from pathlib import Path

PORT = Path("/sys/class/infiniband/mlx5_0/ports/1")
REGISTER_AGENT = 0xC01C1B01  # _IOWR(0x1b, 1, struct ib_user_mad_reg_req)
ENABLE_PKEY = 0x1B03
SUBN_ADM, GET_TABLE_RESP, NODE_RECORD = 3, 0x92, 0x11
DATA, ACTIVE, FIRST = 1, 1, 2
AGENTS, EACH = 16, 25


def counted(name):
    """One of the port's counters."""
    return int((PORT / "counters" / name).read_text())


def listen():
    """Tell the address, let the other send, and count."""
    server = socket.create_server(("", 6000))
    other, _ = server.accept()
    time.sleep(2)
    before = counted("port_rcv_packets"), counted("port_xmit_packets")
    other.sendall((PORT / "lid").read_bytes())
    other.recv(10)
    time.sleep(1)
    got, sent = counted("port_rcv_packets") - before[0], counted("port_xmit_packets") - before[1]
    print(f"{AGENTS * EACH} pieces of answers that nobody asked for: {got} packets came, {sent} went")


def send():
    """Send pieces to whichever agents the other kernel has: their numbers are the upper half of what is answered."""
    while True:
        try:
            other = socket.create_connection(("g0", 6000))
            break
        except OSError:
            time.sleep(0.2)
    lid = int(other.recv(20), 0)
    fd = os.open("/dev/infiniband/umad0", os.O_RDWR)
    fcntl.ioctl(fd, ENABLE_PKEY)
    request = bytearray(struct.pack("<IIIIIBBB3sB", 0, 0, 0, 0, 0, 1, SUBN_ADM, 2, bytes(3), 0).ljust(28, b"\0"))
    fcntl.ioctl(fd, REGISTER_AGENT, request)
    agent = struct.unpack_from("<I", request)[0]
    # struct ib_user_mad_hdr
    header = struct.pack("<IIIII", agent, 0, 0, 0, 0) + struct.pack(">IIH", 1, 0x80010000, lid)
    for number in range(EACH):
        for high in range(1, AGENTS + 1):
            mad = struct.pack(
                ">BBBBHHQHHI", 1, SUBN_ADM, 2, GET_TABLE_RESP, 0, 0, high << 32 | number, NODE_RECORD, 0, 0
            )
            mad += struct.pack(">BBBBII", 1, DATA, 0x1F << 3 | FIRST | ACTIVE, 0, 1, 0)
            os.write(fd, header.ljust(64, b"\0") + mad.ljust(256, b"\0"))
        time.sleep(0.05)
    other.sendall(b"done")


if socket.gethostname() == "g0":
    listen()
else:
    send()
