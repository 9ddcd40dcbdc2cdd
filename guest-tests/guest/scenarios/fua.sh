# Writes with O_DSYNC, which the block layer turns into FUA where the disk has it (boot with libata.fua=1).
#
#   disk=sda  writes=8  size=4096
disk=${disk:-sda}
wait_disks "$disk" || exit 1
read -r fua <"/sys/block/$disk/queue/fua"
parameter=-
[ ! -e /sys/module/libata/parameters/fua ] || read -r parameter </sys/module/libata/parameters/fua
emit "fua dev=$disk queue=$fua libata=$parameter"
sync_host "dev=$disk phase=ready"
blkload write "$disk" --count "${writes:-8}" --size "${size:-4096}" --dsync
status=$?
sync_host "dev=$disk phase=loaded"
exit $status
