"""A second RDMA device beside the card: Soft-RoCE on a network device that leads nowhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from acceptance.claims.bench import Bench


@contextlib.contextmanager
def soft_roce(bench: Bench, guest: int = 0) -> Iterator[None]:
    """A Soft-RoCE device rxe0 beside the card while the body runs."""
    bench.run(
        "modprobe -a rdma_rxe dummy; ip link add dummy9 type dummy; ip addr add 192.0.2.9/24 dev dummy9;"
        " ip link set dummy9 up; rdma link add rxe0 type rxe netdev dummy9",
        guest=guest,
    )
    try:
        yield
    finally:
        bench.run("rdma link delete rxe0; ip link delete dummy9", guest=guest, check=False, quiet=True)
