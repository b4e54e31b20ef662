"""Modules that somebody asked for by name: does the kernel have them, and if not, what would it need?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from vhca.lab.errors import ImageError
from vhca.lab.kernels import Kernel, module_name

# What uses RDMA, or is needed to offer it: module -> the option of the kernel's configuration that builds it.
_OPTIONS: Final = {
    "9p": "9P_FS",
    "9pnet_virtio": "NET_9P_VIRTIO",
    "bonding": "BONDING",
    "cifs": "CIFS (with CIFS_SMB_DIRECT)",
    "ext4": "EXT4_FS",
    "ib_ipoib": "INFINIBAND_IPOIB",
    "ib_iser": "INFINIBAND_ISER",
    "ib_isert": "INFINIBAND_ISERT",
    "ib_srp": "INFINIBAND_SRP",
    "ib_srpt": "INFINIBAND_SRPT",
    "ksmbd": "SMB_SERVER (with SMB_SERVER_SMBDIRECT)",
    "nfsd": "NFSD",
    "nfsv4": "NFS_V4",
    "nvme_rdma": "NVME_RDMA",
    "nvmet_rdma": "NVME_TARGET_RDMA",
    "overlay": "OVERLAY_FS",
    "rdma_rxe": "RDMA_RXE",
    "rds": "RDS",
    "rds_rdma": "RDS_RDMA",
    "rnbd_client": "BLK_DEV_RNBD_CLIENT",
    "rnbd_server": "BLK_DEV_RNBD_SERVER",
    "rpcrdma": "SUNRPC_XPRT_RDMA",
    "rtrs_client": "INFINIBAND_RTRS_CLIENT",
    "rtrs_server": "INFINIBAND_RTRS_SERVER",
    "siw": "RDMA_SIW",
    "smc": "SMC",
    "smc_diag": "SMC_DIAG",
    "svcrdma": "SUNRPC_XPRT_RDMA",
    "virtio_blk": "VIRTIO_BLK",
    "xprtrdma": "SUNRPC_XPRT_RDMA",
}


def check_modules(kernel: Kernel, names: Iterable[str], wanted_by: str = "") -> None:
    """Raise :class:`ImageError` if the kernel has some of these neither as a module nor built in.

    It names all of them, the option that builds each, if that is known, and names that are nearly the same.
    """
    absent = sorted({module_name(name) for name in names} - kernel.modules.keys() - kernel.builtin)
    if not absent:
        return
    shown = [f"{name} (CONFIG_{_OPTIONS[name]})" if name in _OPTIONS else name for name in absent]
    what = f"kernel {kernel.release} has no module {', '.join(shown)}"
    near = [near for name in absent for near in difflib.get_close_matches(name, kernel.modules, 1)]
    remedy = "build the kernel with it, or take one that has it (`vhca kernels`)"
    if near:
        remedy += f"; if it is a slip: there is {', '.join(sorted(set(near)))}"
    raise ImageError(f"{wanted_by}{': ' if wanted_by else ''}{what} ({kernel.origin})", remedy)
