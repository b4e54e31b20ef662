"""Claim F05: block devices of another guest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from acceptance.claims.bench import Bench
from acceptance.claims.cable import Traffic, watch
from acceptance.claims.framework import Findings, claim
from acceptance.claims.ip_over_ib import ADDRESSES, bring_up
from acceptance.claims.verdict import Verdict
from vhca.wire.packet import READ_RESPONSE, WRITE

_BYTES: Final = 4 << 20
_IQN: Final = "iqn.2026-01.org.example:disk"
_CONFIGFS: Final = "grep -q configfs /proc/mounts || mount -t configfs configfs /sys/kernel/config"


@dataclass(slots=True, frozen=True)
class Storage:
    """A protocol: lines for the shell that offer /dev/ram{N} of g0, and that connect g1 with it."""

    name: str
    ram: int
    target: str
    initiator: str


def _backing(name: str, ram: int) -> str:
    """A block device of the kernel's target (LIO)."""
    disk = f"/sys/kernel/config/target/core/iblock_0/{name}"
    return (
        f"mkdir -p /etc/target; modprobe -a brd target_core_iblock; {_CONFIGFS}; mkdir -p {disk};"
        f" echo udev_path=/dev/ram{ram} >{disk}/control; echo 1 >{disk}/enable"
    )


_NVME: Final = Storage(
    "NVMe-oF",
    0,
    f"modprobe -a nvmet-rdma brd; {_CONFIGFS}; cd /sys/kernel/config/nvmet;"
    " mkdir -p subsystems/disk/namespaces/1 ports/1;"
    " echo 1 >subsystems/disk/attr_allow_any_host; echo -n /dev/ram0 >subsystems/disk/namespaces/1/device_path;"
    " echo 1 >subsystems/disk/namespaces/1/enable; echo rdma >ports/1/addr_trtype; echo ipv4 >ports/1/addr_adrfam;"
    f" echo {ADDRESSES[0]} >ports/1/addr_traddr; echo 4420 >ports/1/addr_trsvcid;"
    " ln -s /sys/kernel/config/nvmet/subsystems/disk ports/1/subsystems/disk",
    f"modprobe nvme-rdma; nvme connect -t rdma -a {ADDRESSES[0]} -s 4420 -n disk -i 1",
)
_ISER_PLACE: Final = f"/sys/kernel/config/target/iscsi/{_IQN}/tpgt_1"
_ISER: Final = Storage(
    "iSER",
    1,
    f"{_backing('iser', 1)}; modprobe ib_isert;"
    f" mkdir -p {_ISER_PLACE}/lun/lun_0 {_ISER_PLACE}/np/{ADDRESSES[0]}:3260;"
    f" echo 1 >{_ISER_PLACE}/np/{ADDRESSES[0]}:3260/iser;"
    f" ln -s /sys/kernel/config/target/core/iblock_0/iser {_ISER_PLACE}/lun/lun_0/disk;"
    f" echo 0 >{_ISER_PLACE}/attrib/authentication; echo 1 >{_ISER_PLACE}/attrib/generate_node_acls;"
    f" echo 0 >{_ISER_PLACE}/attrib/demo_mode_write_protect; echo 1 >{_ISER_PLACE}/enable",
    "modprobe -a ib_iser sd_mod; mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi;"
    " echo InitiatorName=iqn.2026-01.org.example:g1 >/etc/iscsi/initiatorname.iscsi; iscsid;"
    f" iscsiadm -m node -o new -T {_IQN} -p {ADDRESSES[0]}:3260,1 -I iser;"
    f" iscsiadm -m node -T {_IQN} -p {ADDRESSES[0]}:3260 -I iser --login",
)
_SRP: Final = Storage(
    "SRP",
    2,
    f"{_backing('srp', 2)}; modprobe ib_srpt;"
    " gid=0x$(tr -d : </sys/class/infiniband/mlx5_0/ports/1/gids/0);"
    " target=/sys/kernel/config/target/srpt/$gid/$gid; mkdir -p $target/lun/lun_0;"
    " echo 128 >$target/attrib/srp_sq_size;"
    " ln -s /sys/kernel/config/target/core/iblock_0/srp $target/lun/lun_0/disk;"
    " mkdir -p $target/acls/{initiator}/lun_0; ln -s $target/lun/lun_0 $target/acls/{initiator}/lun_0/disk;"
    " echo 1 >$target/enable",
    "modprobe -a ib_srp sd_mod;"
    " ibsrpdm -c -d /dev/infiniband/umad0 | head -n 1 >/sys/class/infiniband_srp/srp-mlx5_0-1/add_target",
)


@claim(
    "F05",
    "SRP, iSER, NVMe-oF give block devices over RDMA",
    needs=("spoils",),
    packages=("nvme-cli", "open-iscsi", "srptools"),
)
def f05(bench: Bench) -> Verdict:
    """A memory disk of one guest, offered by each protocol to the other one, written and read there."""
    found = Findings()
    bring_up(bench)
    eth0 = _ethernet(bench)
    moved = [_observe(bench, found, storage) for storage in (_NVME, _ISER, _SRP)]
    over_ethernet = _ethernet(bench) - eth0
    found.check("it does not go over Ethernet", over_ethernet < _BYTES, f"{over_ethernet} bytes on eth0")
    return found.verdict("; ".join(moved))


def _observe(bench: Bench, found: Findings, storage: Storage) -> str:
    """Connect, write, read, compare; says what came of it."""
    initiator = bench.read("/sys/class/infiniband/mlx5_0/ports/1/gids/0", 1).replace(":", "")[16:]
    bench.run(["sh", "-ec", storage.target.replace("{initiator}", f"0x{0:016x}{initiator}")], quiet=True)
    before = _disks(bench)
    bench.run(["sh", "-ec", storage.initiator], guest=1, timeout_s=120)
    bench.wait_for(f'[ "$(cat /sys/block/*/hidden | grep -c 0)" -gt {len(before)} ]', guest=1)
    new = sorted(_disks(bench) - before)
    name = storage.name
    if not found.check(f"{name}: a new block device appears", len(new) == 1, f"{name}: {new} appeared"):
        return f"{name}: none"
    disk = f"/dev/{new[0]}"
    bench.wait_for(f"[ -b {disk} ]", guest=1)
    blocks = _BYTES >> 17
    with watch(bench, 1) as traffic:
        bench.run(f"dd if=/dev/urandom of=/tmp/data bs=128k count={blocks}", guest=1)
        bench.run(f"dd if=/tmp/data of={disk} bs=128k oflag=direct", guest=1)
        bench.run(f"dd if={disk} of=/tmp/back bs=128k count={blocks} iflag=direct", guest=1)
    sums = [bench.run(f"sha256sum {file}", guest=1).stdout.split()[0] for file in ("/tmp/data", "/tmp/back")]
    sums.append(bench.run(f"head -c {_BYTES} /dev/ram{storage.ram} | sha256sum").stdout.split()[0])
    found.check(
        f"{name}: what is written to it arrives at the disk of the other guest, and is read back",
        len(set(sums)) == 1,
        f"{name}: the contents differ, {sums}",
    )
    out, back = _fetched(traffic), _written(traffic)
    found.check(
        f"{name}: most of the data goes by RDMA READ and WRITE of the target",
        out > _BYTES // 2 and back > _BYTES // 2,
        f"{name}: {out} bytes by READ, {back} by WRITE",
    )
    return (
        f"{name} made {disk}: {_BYTES >> 20} MiB written ({out} bytes by RDMA READ) and read back ({back} by RDMA"
        " WRITE)"
    )


def _disks(bench: Bench) -> set[str]:
    """Block devices of g1; a path of NVMe's to one is hidden."""
    listed = bench.run("cd /sys/block; grep -l 0 */hidden | cut -d / -f 1", guest=1, quiet=True)
    return set(listed.stdout.split())


def _ethernet(bench: Bench) -> int:
    return int(bench.read("/sys/class/net/eth0/statistics/tx_bytes", 1))


def _fetched(traffic: Traffic) -> int:
    """Bytes that left the card since the other one read them."""
    return sum(len(s.packet.payload) for s in traffic if not s.toward_card and s.packet.op == READ_RESPONSE)


def _written(traffic: Traffic) -> int:
    """Bytes that the other one wrote."""
    return sum(len(s.packet.payload) for s in traffic if s.toward_card and s.packet.op == WRITE)
