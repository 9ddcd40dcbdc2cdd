# What the tools people use say of an IDE disk and do to it: hdparm, smartctl, sg3-utils, blkdiscard, fstrim.
# One disk is alone on the first channel, the other is the second drive of the other channel, whose first place is empty.
wait_disks "sda sdb" || exit 1
on() { basename "/sys/devices/pci"*/*/"$1"/host*/target*/*/block/*; } # they are found in any order
disk=/dev/$(on ata1)
other=$(on ata2)
# "@@ TOOL LINE..." for each line of its output, blanks squeezed, and then its status.
say() {
    kind=$1
    shift
    "$@" >/tmp/said 2>&1
    status=$?
    tr -s '\t ' '  ' </tmp/said | sed "s/^ *//; /^$/d; s/^/@@ $kind /"
    emit "$kind-status $status"
}
say identify hdparm -I "$disk"
say geometry hdparm -g "$disk"
say native hdparm -N "$disk"
say info smartctl -i "$disk"
say health smartctl -H "$disk"
say attributes smartctl -A "$disk"
say errorlog smartctl -l error "$disk"
say satidentify sg_sat_identify "$disk"
sync_host phase=told
say sgsync sg_sync "$disk"
sync_host phase=synced
say power hdparm -C "$disk"
say standby hdparm -y "$disk"
say power hdparm -C "$disk"
say read dd if="$disk" of=/dev/null bs=4096 count=1 iflag=direct
say power hdparm -C "$disk"
say sleep hdparm -Y "$disk"
say read dd if="$disk" of=/dev/null bs=4096 skip=1 count=1 iflag=direct
dmesg -c >/dev/null # libata wakes a drive by a reset, and says so
say write dd if=/dev/urandom of="$disk" bs=1048576 count=24 oflag=direct
sync_host phase=written
say discard /usr/sbin/blkdiscard -o 0 -l 8388608 "$disk"
sync_host phase=discarded
say mkfs mkfs.ext4 -q -F "$disk"
mkdir -p /mnt/disk
mount -t ext4 "$disk" /mnt/disk || emit "error mount"
say write dd if=/dev/urandom of=/mnt/disk/file bs=1048576 count=16 conv=fsync
rm /mnt/disk/file
sync
sync_host phase=removed
say trim fstrim -v /mnt/disk
sync_host phase=trimmed
umount /mnt/disk
say slave blkload write "$other" --count 4 --fsync
say slave blkload verify "$other" --count 4
emit "complaints count=$(disk_complaints | wc -l)"
disk_complaints | while read -r line; do emit "error $line"; done
