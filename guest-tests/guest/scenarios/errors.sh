# Errors of the host as a guest meets them: at 1 MiB reads fail, at 2 MiB there is no space for the first two writes, at 3 MiB
# writes fail.
#
#   disks=sda,vda
for disk in $(list "$disks"); do
    wait_disks "$disk" || exit 1
    dmesg -c >/dev/null
    dd if="/dev/$disk" of=/dev/null bs=512 skip=2048 count=1 iflag=direct 2>/dev/null; read=$?
    emit "read disk=$disk status=$read unc=$(dmesg | grep -c 'UNC') medium=$(dmesg | grep -ciE 'Medium Error|critical medium error|I/O error')"
    dmesg -c >/dev/null
    emit "waiting disk=$disk"
    blkload write "$disk" --offset 2097152 --count 1; write=$?
    emit "space disk=$disk status=$write complaints=$(disk_complaints | wc -l)"
    blkload verify "$disk" --offset 2097152 --count 1 || emit "error verify=$disk"
    dmesg -c >/dev/null
    blkload write "$disk" --offset 3145728 --count 1; write=$?
    emit "write disk=$disk status=$write tries=$(dmesg | grep -c 'ABRT')"
done
