#!/bin/sh
# libvirt.sh SOCKET < DOMAIN.xml > NEW.xml: add a card to a libvirt domain (by qemu:commandline).
#
#   vhca serve --hcas 2 --dir /run/ib &
#   virsh dumpxml --inactive vm | libvirt.sh /run/ib/h0.sock | virsh define /dev/stdin
#
# libvirt has no element for vfio-user devices, so the card goes into <qemu:commandline>; memory must be shared,
# which <memoryBacking> says.  The domain needs machine type q35 and an emulator of 10.1.1 or newer.  QEMU must be
# allowed to open the socket: see README.md for libvirt's user, and allow it in AppArmor or SELinux if those confine QEMU.
set -eu
[ $# -eq 1 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
exec python3 -c '
import json, sys
import xml.etree.ElementTree as xml

QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
xml.register_namespace("qemu", QEMU)
domain = xml.parse(sys.stdin).getroot()
backing = domain.find("memoryBacking")
if backing is None:
    backing = xml.SubElement(domain, "memoryBacking")
for name, attribute, value in (("source", "type", "memfd"), ("access", "mode", "shared")):
    element = backing.find(name)
    if element is None:
        element = xml.SubElement(backing, name)
    element.set(attribute, value)
line = domain.find(f"{{{QEMU}}}commandline")
if line is None:
    line = xml.SubElement(domain, f"{{{QEMU}}}commandline")
device = {"driver": "vfio-user-pci", "bus": "hcaport", "socket": {"type": "unix", "path": sys.argv[1]}}
for value in ("-device", "pcie-root-port,id=hcaport,bus=pcie.0,addr=0x1e,chassis=250,slot=250", "-device", json.dumps(device)):
    xml.SubElement(line, f"{{{QEMU}}}arg", value=value)
xml.indent(domain)
print(xml.tostring(domain, encoding="unicode"))
' "$1"
