# Numbered records until the host pulls the plug: "ACK n" after each completed write, "SYNC n" after each fsync.
#
#   disk=sda  mode=configured|on|off  method=sysfs  count=100000  size=4096  fsync_every=0
disk=${disk:-sda}
wait_disks "$disk" || exit 1
[ "${mode:-configured}" = configured ] || wce "$disk" "${method:-sysfs}" "$mode" || exit 1
blkload state "$disk"
sync_host "dev=$disk phase=ready"
blkload ack "$disk" --count "${count:-100000}" --size "${size:-4096}" --fsync-every "${fsync_every:-0}"
