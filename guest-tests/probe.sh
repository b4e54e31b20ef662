#!/bin/sh
# The driver bound to the card and the subnet manager brought its port up.
. "$(dirname "$0")/common.sh"

driver=$(readlink "/sys/class/infiniband/$DEVICE/device/driver" 2>/dev/null) || failed "there is no $DEVICE"
[ "${driver##*/}" = mlx5_core ] || failed "$DEVICE is driven by ${driver##*/}"
wait_active
layer=$(cat "$PORT/link_layer")
[ "$layer" = InfiniBand ] || failed "the link layer is $layer"
[ $(($(cat "$PORT/lid"))) -gt 0 ] || failed "the port has no LID"
[ $(($(cat "$PORT/sm_lid"))) -gt 0 ] || failed "the port knows no subnet manager"
ibv_devinfo -d "$DEVICE" | grep -q PORT_ACTIVE || failed "ibv_devinfo does not call the port active"
ok "firmware $(cat "/sys/class/infiniband/$DEVICE/fw_ver"), LID $(cat "$PORT/lid"), SM $(cat "$PORT/sm_lid")"
