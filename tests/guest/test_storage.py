"""File systems and disks of another guest over RDMA, with a cable that loses one packet of a hundred.

NFS, NVMe over Fabrics, iSER and SRP: each is set up with the tools of its own, data is written and read, and checksums
are compared on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guest.cards import assert_no_complaint, moved
from tests.guest.upper import CONFIGFS, NVME_TARGET, address, lossy, network_up, sha256, shell
from vhca.lab import Guest, Lab

pytestmark = pytest.mark.vhca(guests=2, extra_packages=("storage",))

MIB = 8
BYTES = MIB << 20

NFS_SERVER = """
modprobe -a nfsd rpcrdma
mkdir -p /srv/files /var/lib/nfs/nfsdcld /var/lib/nfs/rpc_pipefs
mount -t tmpfs -o size=64m tmpfs /srv/files
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs sunrpc /var/lib/nfs/rpc_pipefs
touch /etc/exports /var/lib/nfs/etab
nfsdcld
exportfs -o rw,insecure,no_root_squash,no_subtree_check,fsid=0 '*:/srv/files'
rpc.mountd --no-nfs-version 3
rpc.nfsd --no-nfs-version 3 --rdma=20049 2
"""
NFS_CLIENT = """
modprobe -a nfsv4 rpcrdma
mkdir -p /mnt/files
mount.nfs4 -o rdma,port=20049,vers=4.2 {server}:/ /mnt/files
"""
DISK = f"""
mkdir -p /etc/target
modprobe -a brd target_core_iblock
{CONFIGFS}
"""
DISK += """
disk=/sys/kernel/config/target/core/iblock_0/{name}
mkdir -p $disk
echo udev_path={device} > $disk/control
echo 1 > $disk/enable
"""
IQN = "iqn.2026-01.org.example:disk"
ISER_TARGET = """
modprobe ib_isert
target=/sys/kernel/config/target/iscsi/{iqn}/tpgt_1
mkdir -p $target/lun/lun_0 $target/np/{server}:3260
echo 1 > $target/np/{server}:3260/iser
ln -s /sys/kernel/config/target/core/iblock_0/iser $target/lun/lun_0/disk
echo 0 > $target/attrib/authentication
echo 1 > $target/attrib/generate_node_acls
echo 0 > $target/attrib/demo_mode_write_protect
echo 1 > $target/enable
"""
ISER_INITIATOR = """
modprobe -a ib_iser sd_mod
mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi
echo InitiatorName=iqn.2026-01.org.example:g1 > /etc/iscsi/initiatorname.iscsi
iscsid
iscsiadm -m node -o new -T {iqn} -p {server}:3260,1 -I iser
iscsiadm -m node -T {iqn} -p {server}:3260 -I iser --login
"""
SRP_TARGET = """
modprobe ib_srpt
gid=0x$(tr -d : < /sys/class/infiniband/mlx5_0/ports/1/gids/0)
target=/sys/kernel/config/target/srpt/$gid/$gid
mkdir -p $target/lun/lun_0
echo 128 > $target/attrib/srp_sq_size
ln -s /sys/kernel/config/target/core/iblock_0/srp $target/lun/lun_0/disk
mkdir -p $target/acls/{initiator}/lun_0
ln -s $target/lun/lun_0 $target/acls/{initiator}/lun_0/disk
echo 1 > $target/enable
"""
NEW_DISK = """
i=0
while ! ls /dev/sd[a-z] 2> /dev/null; do i=$((i + 1)); [ $i -lt 300 ] || exit 1; usleep 100000; done
"""


@pytest.fixture
def ends(guest_pair: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    """Server and client."""
    for guest in guest_pair:
        network_up(guest)
    yield guest_pair
    assert_no_complaint(*guest_pair)


def write_and_read(lab: Lab, client: Guest, disk: str) -> str:
    """Fill the beginning of a disk and read it back, both past the page cache and over a lossy cable; the checksum."""
    with lossy(lab):
        shell(client, f"dd if=/dev/urandom of=/tmp/data bs=1M count={MIB}")
        shell(client, f"dd if=/tmp/data of={disk} bs=128k oflag=direct")
        shell(client, f"dd if={disk} of=/tmp/back bs=128k count={BYTES >> 17} iflag=direct")
    written = sha256(client, "/tmp/data")
    assert sha256(client, "/tmp/back") == written
    return written


def test_nfs(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    shell(server, NFS_SERVER)
    shell(client, NFS_CLIENT.format(server=address(server)))
    assert "proto=rdma" in shell(client, "grep /mnt/files /proc/mounts")
    with lossy(lab), moved(lab.hcas[0]) as card:
        shell(client, f"dd if=/dev/urandom of=/tmp/data bs=1M count={MIB}; cp /tmp/data /mnt/files/data; sync")
        shell(server, "cp /srv/files/data /srv/files/copy")
        shell(client, "umount /mnt/files; " + NFS_CLIENT.format(server=address(server)))
        read = sha256(client, "/mnt/files/copy")
    assert read == sha256(client, "/tmp/data") == sha256(server, "/srv/files/data")
    assert card["rx_bytes"] >= BYTES
    assert card["tx_bytes"] >= BYTES
    shell(client, "umount /mnt/files")


def test_nvme_over_fabrics(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    shell(server, NVME_TARGET.format(server=address(server)))
    shell(client, "modprobe nvme-rdma")
    assert "disk" in shell(client, f"nvme discover -t rdma -a {address(server)} -s 4420")
    shell(client, f"nvme connect -t rdma -a {address(server)} -s 4420 -n disk -i 1")
    written = write_and_read(lab, client, "/dev/nvme0n1")
    assert sha256(server, "/dev/ram0", BYTES) == written
    shell(client, "nvme disconnect -n disk")


def test_nvme_over_fabrics_takes_no_infiniband_addresses(ends: tuple[Guest, Guest]) -> None:
    """docs/limits.md says so: the target knows the name of the family, and refuses it."""
    server, _ = ends
    script = f"""
    modprobe -a nvmet-rdma
    {CONFIGFS}
    cd /sys/kernel/config/nvmet
    mkdir -p subsystems/none ports/2
    echo rdma > ports/2/addr_trtype
    echo ib > ports/2/addr_adrfam
    cat /sys/class/infiniband/mlx5_0/ports/1/gids/0 > ports/2/addr_traddr
    ln -s /sys/kernel/config/nvmet/subsystems/none ports/2/subsystems/none
    """
    assert server.run(["sh", "-ec", script]).returncode != 0
    assert "address family 3 not supported" in shell(server, "dmesg")


def test_what_the_kernel_was_built_without(lab: Lab) -> None:
    """docs/limits.md says so."""
    kernel = lab.prepared.kernel
    config = kernel.image.with_name(f"config-{kernel.release}").read_text().splitlines()
    absent = ("INFINIBAND_RTRS_CLIENT", "INFINIBAND_RTRS_SERVER", "CIFS_SMB_DIRECT", "SMB_SERVER_SMBDIRECT")
    assert {name for name in absent if f"# CONFIG_{name} is not set" in config} == set(absent)
    assert "CONFIG_SUNRPC_XPRT_RDMA=m" in config


def test_iser(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    shell(server, DISK.format(name="iser", device="/dev/ram1"))
    shell(server, ISER_TARGET.format(iqn=IQN, server=address(server)))
    shell(client, ISER_INITIATOR.format(iqn=IQN, server=address(server)))
    disk = shell(client, NEW_DISK).split()[0]
    assert "iser" in shell(client, "iscsiadm -m session")
    written = write_and_read(lab, client, disk)
    assert sha256(server, "/dev/ram1", BYTES) == written
    shell(client, f"iscsiadm -m node -T {IQN} --logout")


def test_srp(lab: Lab, ends: tuple[Guest, Guest]) -> None:
    server, client = ends
    shell(server, DISK.format(name="srp", device="/dev/ram2"))
    initiator = shell(client, "tr -d : < /sys/class/infiniband/mlx5_0/ports/1/gids/0").strip()[16:]
    shell(server, SRP_TARGET.format(initiator=f"0x{0:016x}{initiator}"))
    shell(client, "modprobe -a ib_srp sd_mod")
    found = shell(client, "ibsrpdm -c -d /dev/infiniband/umad0").splitlines()
    assert len(found) == 1
    shell(client, f"echo '{found[0]}' > /sys/class/infiniband_srp/srp-mlx5_0-1/add_target")
    disk = shell(client, NEW_DISK).split()[0]
    written = write_and_read(lab, client, disk)
    assert sha256(server, "/dev/ram2", BYTES) == written
