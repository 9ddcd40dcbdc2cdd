# A CD-ROM drive that is empty at first and whose medium the host changes: at rest, mounted, and by force; and the guest's own tray.
wait_disks sr0 || exit 1
cd=/dev/sr0
mkdir -p /mnt
read_disc() { dd if=$cd of=/dev/null bs=2048 count=1 2>&1 | grep -c 'No medium found'; }
sums() {
    mount -t iso9660 -o ro $cd /mnt || emit "error mount=$1"
    for file in /mnt/*; do emit "file set=$1 name=${file#/mnt/} sum=$(sha256sum <"$file" | cut -d' ' -f1)"; done
}
mount -t iso9660 -o ro $cd /mnt 2>/dev/null
emit "empty mount=$? none=$(read_disc)"
sync_host phase=empty
sums first
sync_host phase=mounted
sha256sum /mnt/small >/dev/null
emit "held read=$?"
sync_host phase=held
echo 3 >/proc/sys/vm/drop_caches
sha256sum /mnt/large >/dev/null 2>&1
emit "torn read=$? unmounted=$(umount /mnt && echo yes) none=$(read_disc)"
sync_host phase=torn
sums second
umount /mnt
sg_start --readonly --eject $cd
emit "ejected status=$?" # nothing may open the device now: Linux closes the tray for who does
sync_host phase=ejected
sg_start --readonly --load $cd
emit "loaded status=$?"
sums again
umount /mnt
sync_host phase=loaded
sums third
umount /mnt
