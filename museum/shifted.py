"""A program names a size of receive work requests that no number can hold."""

import struct

from raw import CREATE_QP, Raw, pages

RC = 2
SHIFT = 32

raw = Raw()
pd = raw.pd()
cq = raw.cq(pages(4), pages())
core = struct.pack("<QIIIIIIIIIBBBB", 0, pd, cq, cq, 0, 4, 4, 1, 1, 0, 0, RC, 0, 0)
# struct mlx5_ib_create_qp
driver = struct.pack("<QQIIIIIIQII", pages(4), pages(), 4, 4, SHIFT, 0, 0, 0, 0, 0, 0)
try:
    raw.command(CREATE_QP, core, driver, 64)
    print(f"a queue pair with receives of 2**{SHIFT} bytes: made")
except OSError as error:
    print(f"a queue pair with receives of 2**{SHIFT} bytes: {error.strerror}")
