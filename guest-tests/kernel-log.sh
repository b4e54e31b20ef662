#!/bin/sh
# Nothing in the kernel's log that a driver says when something went wrong.
. "$(dirname "$0")/common.sh"

# one line is expected: the card has no vendor-specific PCI capability
bad=$(dmesg | grep -iE 'WARNING:|BUG:|Oops|Call Trace|timeout|health|leak|mlx5.*(failed|error|syndrome)' |
    grep -v 'mlx5_pci_vsc_init.*Failed to get valid vendor specific ID')
[ -z "$bad" ] || failed "$(echo "$bad" | tail -n 1)"
ok "$(dmesg | wc -l) lines"
