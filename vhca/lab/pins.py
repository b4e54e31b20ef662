"""What is pinned: which packages a lab is made of, and the checksums of those no index lists.

Data only. Changing a list here changes the key of what is built from it, so the cache rebuilds by itself.
"""

from __future__ import annotations

from typing import Final

from vhca.lab.packages import PoolFile

QEMU_PACKAGES: Final = ("qemu-system-x86",)
QEMU_SUITE: Final = "trixie-backports"

# For kernels that the usual suites do not have; asked in this order, and only for a version that is not there.
OTHER_KERNEL_SUITES: Final = ("bookworm", "bookworm-backports", "forky", "sid", "experimental")

TSHARK_PACKAGES: Final = ("tshark",)

# Programs that attach to a fabric from the host, and what they need; without what only a real system is set up with.
HOST_TOOL_PACKAGES: Final = ("ibsim-utils", "infiniband-diags", "opensm", "ibutils")
HOST_TOOLS_WITHOUT: Final = frozenset(["debconf", "init-system-helpers", "tzdata"])

GUEST_SUITE: Final = "trixie"
GUEST_PACKAGES: Final = (
    "bash",
    "busybox-static",
    "dash",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "infiniband-diags",
    "iproute2",
    "iputils-ping",
    "kmod",
    "opensm",
    "pciutils",
    "perftest",
    "python3-minimal",
    "python3-pyverbs",
    "rdmacm-utils",
    "strace",
)
# Needed to configure a real system, or by scripts that the guest does not use; a guest runs without them.
GUEST_WITHOUT: Final = frozenset(
    [
        "adduser",
        "base-files",
        "base-passwd",
        "debconf",
        "debianutils",
        "dpkg",
        "init-system-helpers",
        "libapparmor1",
        "libaudit-common",
        "libbsd0",
        "libdb5.3t64",
        "libdebconfclient0",
        "libgdbm-compat4t64",
        "libgdbm6t64",
        "libmd0",
        "libpam-modules",
        "libpam-modules-bin",
        "libpam0g",
        "libperl5.40",
        "libseccomp2",
        "libsemanage-common",
        "libsemanage2",
        "libsepol2",
        "libsystemd-shared",
        "login.defs",
        "mawk",
        "media-types",
        "mount",
        "openssl-provider-legacy",
        "passwd",
        "perl",
        "perl-base",
        "perl-modules-5.40",
        "rdma-core",
        "systemd",
        "tar",
        "tzdata",
        "udev",
    ]
)

# What has another name in other suites.
OTHER_SUITES_WITHOUT: Final = frozenset(
    [
        "libdb5.3",
        "libgdbm-compat4",
        "libgdbm6",
        "libperl5.36",
        "libperl5.42",
        "perl-modules-5.36",
        "perl-modules-5.42",
        "usrmerge",
    ]
)

# What iproute2 of other suites needs.
OTHER_SUITES_WITH: Final = frozenset(["libbsd0", "libmd0"])

# Left out of what packages that are asked for by name bring with them: what a guest goes without (but libraries), and
# what drives graphics processors, of which a guest has none: communication libraries ask for 300 MB of it.
EXTRA_WITHOUT: Final = (
    GUEST_WITHOUT
    - {"libapparmor1", "libbsd0", "libdb5.3t64", "libgdbm6t64", "libmd0", "libpam0g", "libseccomp2", "mount", "tar"}
) | {
    "libamd-comgr2",
    "libamdhip64-5",
    "libdrm-amdgpu1",
    "libdrm-common",
    "libdrm2",
    "libhsa-runtime64-1",
    "libhsakmt1",
    "libhwloc-plugins",
    "libllvm17t64",
    "libpciaccess0",
    "libx11-6",
    "libx11-data",
    "libxau6",
    "libxcb1",
    "libxdmcp6",
    "libxext6",
    "libxnvctrl0",
    "libz3-4",
    "libze1",
    "ocl-icd-libopencl1",
}

# The index lists only one of the three packages that make up this kernel; the pool still has them all.
_LINUX: Final = "pool/main/l/linux"
KERNELS: Final = {
    "6.19.14+deb13-amd64": (
        PoolFile(
            f"{_LINUX}-signed-amd64/linux-binary-6.19.14+deb13-amd64_6.19.14-1~bpo13+1_amd64.deb",
            "64a48046a3fa5f894a5a40dc36f2e42a67a7193e2266e43c09143a769aeab8e3",
            13504740,
        ),
        PoolFile(
            f"{_LINUX}/linux-base-6.19.14+deb13-amd64_6.19.14-1~bpo13+1_amd64.deb",
            "f12c1bdb44f0d820e6b740638cf88dfc570854938a250bfe58376250fe337590",
            1070396,
        ),
        PoolFile(
            f"{_LINUX}/linux-modules-6.19.14+deb13-amd64_6.19.14-1~bpo13+1_amd64.deb",
            "bea4d9513e8055d8f98644ef866dc30b70568b46b63843197404399d5e47b8ab",
            155982588,
        ),
    ),
}

# Sources that no index lists any more, by the name of their package.
KERNEL_SOURCES: Final = {
    "linux-source-6.19": PoolFile(
        f"{_LINUX}/linux-source-6.19_6.19.14-1~bpo13+1_all.deb",
        "027344f5c615c16df534878d7e434639d3bf7702c67bd41123be815e0953133b",
        160237128,
    ),
}

# What a kernel's build asks for beside a compiler and make. Of an old suite: what is linked against its C library runs
# on, and can be linked on, every later one.
BUILD_SUITE: Final = "bookworm"
BUILD_PACKAGES: Final = (
    "bc",
    "bison",
    "flex",
    "libelf-dev",
    "libelf1",
    "libreadline8",
    "libtinfo6",
    "m4",
    "zlib1g",
    "zlib1g-dev",
)
