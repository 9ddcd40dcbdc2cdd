# The host resizes both disks at each sync point; each time the guest looks how large they are and writes about the end. Then it waits
# for the power key and goes.
wait_disks "sda vda" || exit 1
was=$(cat /sys/block/vda/size)
sync_host phase=start
write_at() { dd if=/dev/zero of="/dev/$1" bs=512 count=1 seek="$2" oflag=direct conv=notrunc 2>/dev/null; }
for round in 1 2; do
    tries=0
    while [ "$(cat /sys/block/vda/size)" = "$was" ]; do # told by an interrupt
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { emit "error not-told=vda"; exit 1; }
        usleep 50000
    done
    was=$(cat /sys/block/vda/size)
    # IDE cannot tell, and libata asks a drive for its size only when it finds it.
    echo 1 >/sys/block/sda/device/delete
    for host in /sys/class/scsi_host/host*; do echo "- - -" >"$host/scan"; done
    wait_disks sda || exit 1
    for disk in sda vda; do
        sectors=$(cat "/sys/block/$disk/size")
        write_at $disk $((sectors - 1)); last=$?
        write_at $disk "$sectors"; beyond=$?
        emit "size disk=$disk sectors=$sectors last=$last beyond=$beyond"
    done
    sync_host "phase=resized$round"
done
wait_path /dev/input/event0 || exit 1
exec 3</dev/input/event0 # before the key is pressed: nobody keeps events for who comes later
emit "sync phase=button"
# struct input_event: 16 bytes of time, then type, code, value; the key comes first.
emit "key code=$(dd bs=24 count=1 <&3 2>/dev/null | od -An -tu2 -j18 -N2 | tr -d ' ')"
