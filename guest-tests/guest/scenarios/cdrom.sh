# A CD-ROM drive beside a disk on one channel, and one alone whose medium has a block that cannot be read: mount, check sums.
# Parameters: bad=N, the bad block of the second drive's medium.
wait_disks "sda sr0 sr1" || exit 1
on() { basename "/sys/devices/pci"*/*/"$1"/host*/target*/*/block/sr*; } # they are found in any order
cd=/dev/$(on ata1)
broken=/dev/$(on ata2)
disk=/dev/sda
emit "drive size=$(($(blockdev --getsize64 "$cd") / 2048)) model=$(tr -d ' ' </sys/block/"${cd#/dev/}"/device/model) ro=$(blockdev --getro "$cd")"
sums() {
    mount -t iso9660 -o ro "$cd" /mnt || emit "error mount"
    for file in /mnt/*; do emit "file set=$1 name=${file#/mnt/} sum=$(sha256sum <"$file" | cut -d' ' -f1)"; done
}
mkdir -p /mnt
sums first
umount /mnt
echo 3 >/proc/sys/vm/drop_caches
emit "device sum=$(dd if="$cd" bs=65536 2>/dev/null | sha256sum | cut -d' ' -f1)"
# Both drives of the channel at once, from the drive and not from memory.
echo 3 >/proc/sys/vm/drop_caches
blkload write "${disk#/dev/}" --count 200 --fsync-every 20 >/dev/null &
dd if="$cd" bs=2048 2>/dev/null | sha256sum >/tmp/sum
wait $!
emit "both load=$? verify=$(blkload verify "${disk#/dev/}" --count 200 >/dev/null && echo ok) sum=$(cut -d' ' -f1 /tmp/sum)"
disk_complaints | while read -r line; do emit "error $line"; done
# Around the bad block, and the page that it is the first half of, all is well.
dd if="$broken" of=/tmp/before bs=2048 count="$bad" 2>/dev/null
before=$?
dd if="$broken" of=/dev/null bs=2048 skip="$bad" count=1 2>/dev/null
at=$?
dd if="$broken" of=/dev/null bs=2048 skip=$((bad + 2)) count=8 2>/dev/null
after=$?
emit "bad before=$before at=$at after=$after sense=$(dmesg | grep -c 'Medium Error') read=$(dmesg | grep -c 'Unrecovered read error')"
