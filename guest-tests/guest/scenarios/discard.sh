# Discards and zeroes with the tools people use: blkdiscard, blkdiscard -z, fstrim. The host reads counters, the image's size and its
# bytes at each sync point.
#
#   disk=vda
disk=${disk:-vda}
blkdiscard=/usr/sbin/blkdiscard  # not busybox's, which has no -z
wait_disks "$disk" || exit 1
limit() { cat "/sys/block/$disk/queue/$1"; }
emit "queue discard=$(limit discard_max_bytes) zeroes=$(limit write_zeroes_max_bytes) queues=$(ls "/sys/block/$disk/mq" | wc -l)"
dd if=/dev/urandom of="/dev/$disk" bs=1048576 count=24 oflag=direct 2>/dev/null || { emit "error write"; exit 1; }
sync_host phase=filled
$blkdiscard -o 0 -l 8388608 "/dev/$disk" || { emit "error blkdiscard"; exit 1; }
sync_host phase=discarded
$blkdiscard -z -o 8388608 -l 8388608 "/dev/$disk" || { emit "error blkdiscard-z"; exit 1; }
sync_host phase=zeroed
mkfs.ext4 -q -F "/dev/$disk" || { emit "error mkfs"; exit 1; }
mkdir -p /mnt/disk
mount -t ext4 "/dev/$disk" /mnt/disk || { emit "error mount"; exit 1; }
dd if=/dev/urandom of=/mnt/disk/file bs=1048576 count=16 conv=fsync 2>/dev/null || { emit "error write=file"; exit 1; }
rm /mnt/disk/file
sync
sync_host phase=removed
fstrim /mnt/disk || { emit "error fstrim"; exit 1; }
sync_host phase=trimmed
umount /mnt/disk || { emit "error umount"; exit 1; }
