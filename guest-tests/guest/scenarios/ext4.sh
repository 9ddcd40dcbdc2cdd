# mkfs, mount, write, fsync, check sums, unmount. The host checks the image and the sums after power-off.
#
#   disk=sda  files=8  kilobytes=512  made=1 (the disk has a file system already)
disk=${disk:-sda}
wait_disks "$disk" || exit 1
[ -n "$made" ] || mkfs.ext4 -q -F "/dev/$disk" || { emit "error mkfs"; exit 1; }
mkdir -p /mnt/disk
mount -t ext4 "/dev/$disk" /mnt/disk || { emit "error mount"; exit 1; }
number=0
while [ $number -lt "${files:-8}" ]; do
    file=/mnt/disk/file$number
    dd if=/dev/urandom of=$file bs=1024 count="${kilobytes:-512}" conv=fsync 2>/dev/null || { emit "error write=$file"; exit 1; }
    sum=$(sha256sum <$file)
    emit "sum file=file$number sha256=${sum%% *}"
    number=$((number + 1))
done
umount /mnt/disk || { emit "error umount"; exit 1; }
