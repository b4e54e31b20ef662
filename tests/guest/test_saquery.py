"""saquery with every option of its manual against the administration in the switch."""

from __future__ import annotations

import re

import pytest

from vhca.lab import Guest, Lab
from vhca.lab.perftest import wait_port_active

pytestmark = pytest.mark.vhca(guests=2)

# A datagram that nobody answers is waited for so long (ms): the test would not end in time.
SAQUERY = "saquery -t 100000"
SWITCH_GUID = "0x0002c90000fab000"
BROADCAST = "ff12:401b:ffff::ffff:ffff"


def gid(guest: Guest) -> str:
    return guest.run(["cat", "/sys/class/infiniband/mlx5_0/ports/1/gids/0"], check=True).stdout.strip()


def test_every_option_is_answered(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    one, two = guest_pair
    for guest in guest_pair:
        wait_port_active(guest)
    one.run(["sh", "-c", "modprobe ib_ipoib && ip link set ib0 up"], check=True)
    h0, h1 = (lab.fabric.lid(name) for name in ("h0", "h1"))
    here, there = gid(one), gid(two)
    # Options, and what must be in the answer; those of one group go into one line of the guest's shell.
    queries = {
        "": "NodeRecord dump",
        "-p": "PathRecord dump",
        "-N": r"node_type\.+Switch",
        "-D": '"h1"',
        "--list": '"h0"',
        "-S": "",
        "-I": "",
        "-L h1": rf"\b{h1}\b",
        "-l h1": rf"^{h1}$",
        "-G h1": "0x",
        f"-O {h1}": "^h1$",
        f"-U {SWITCH_GUID}": "vhca switch",
        "-c": r"Capability mask\.+0x2700",
        "-s": "IsSM ports",
        "-g": "MCMemberRecord group dump",
        "-m": "MCMemberRecord member dump",
        "--smkey 1 -m 0xc000": "h0",
        "-x": "LinkRecord dump",
        "--src-to-dst h0:h1": rf"dlid\.+{h1}",
        f"--src-to-dst {h0}:{h1}": rf"slid\.+{h0}",
        f"--sgid-to-dgid {here}-{there}": rf"dlid\.+{h1}",
        "--smkey 1 PKTR": "0xffff",
        "-K NR": "NodeRecord dump",
        f"PR --slid {h0} --dlid {h1}": rf"dlid\.+{h1}",
        f"PR --sgid {here} --dgid {there}": rf"dlid\.+{h1}",
        f"PR --slid {h0} --dlid {h1} --reversible 1 --numb_path 1 --pkey 0xffff --sl 0": rf"dlid\.+{h1}",
        f"PR --slid {h0} --dlid {h1} --qos_class 0 --mtu 2:5 --rate 2:16 --pkt_lifetime 2:14": rf"dlid\.+{h1}",
        f"PR --slid {h0} --dlid {h1} --tclass 0 --flow_label 0 --hop_limit 0 --service_id 0": rf"dlid\.+{h1}",
        f"MCMR --mgid {BROADCAST}": "mlid\\.+0xc000",
        f"MCMR --mlid 0xc000 --gid {here}": rf"PortGid\.+fe80.*{here.split(':')[-1].lstrip('0')}",
        "MCMR --pkey 0xffff --qkey 0xb1b --mtu 2:5 --rate 2:16 --pkt_lifetime 2:14": "mlid\\.+0xc000",
        "MCMR --sl 0 --tclass 0 --flow_label 0 --hop_limit 0 --scope 2 --proxy_join 0": "mlid\\.+0xc000",
        f"MCMR --gid {here} --join_state 1": "JoinState\\.+0x1",
        "CPI": "SA ClassPortInfo",
        f"NR {h1}": '"h1"|h1',
        f"PIR {h1}/1": "PortInfoRecord dump",
        "PIR 1/0": r"base_lid\.+1\b|EndPortLid\.+1\b",
        f"SL2VL {h0}": "SL2VLTableRecord dump",
        "SL2VL 1/1/2": r"InPort\.+1",
        f"--smkey 1 PKTR {h0}/1/0": "0xffff",
        f"VLAR {h0}/1/1": r"Block\.+1",
        "IIR": "",
        f"LR {h0}/1": rf"FromLID\.+{h0}",
        "SR": "",
        "LFTR 1/0": "LFT Record dump",
        "MFTR 1/0/0": "MFT Record dump",
        f"GIR {h0}/0": "GUIDInfo Record dump",
        "SWIR 1": "SwitchInfoRecord dump",
        "SMIR": r"SMState\.+3|sm_state\.+3|Priority\.+14",
    }
    wrong = {}
    for options, expected in queries.items():
        done = one.run([*SAQUERY.split(), *options.split()], timeout_s=30)
        if done.returncode or done.stderr or not re.search(expected, done.stdout, re.MULTILINE):
            wrong[options] = (done.returncode, done.stderr, done.stdout[:400])
    assert not wrong, wrong
    assert one.run([*SAQUERY.split(), "PKTR"], timeout_s=30).returncode, "for those who are trusted"
    none = one.run([*SAQUERY.split(), *f"PR --slid {h0} --dlid {h1} --sl 3".split()], timeout_s=30, check=True)
    assert none.stdout == ""
