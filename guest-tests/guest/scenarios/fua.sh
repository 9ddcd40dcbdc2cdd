# WRITE DMA FUA EXT, sent past the block layer: Linux sends it to disks with NCQ only, which no IDE disk has, so
# O_DSYNC would become writes and flushes here even with libata.fua=1. Emits what Linux makes of the disk nevertheless.
#
#   disk=sda  writes=8  size=4096
disk=${disk:-sda}
wait_disks "$disk" || exit 1
read -r fua <"/sys/block/$disk/queue/fua"
emit "fua dev=$disk queue=$fua"
sync_host "dev=$disk phase=ready"
blkload write "$disk" --count "${writes:-8}" --size "${size:-4096}" --fua
status=$?
sync_host "dev=$disk phase=loaded"
blkload verify "$disk" --count "${writes:-8}" --size "${size:-4096}" || status=1
exit $status
