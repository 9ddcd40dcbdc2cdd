# All disks busy and verified while their write caches are toggled all the time.
#
#   disks=sda,vda  seconds=30  jobs=2  area=16777216  size=4096  fsync_every=16
#
# Emits one "stress" line a disk, "toggles dev= count= failed=" and "complaints count=", each complaint as "complaint: ...".
disks=$(list "${disks:-sda,vda}")
wait_disks "$disks" || exit 1

toggle_forever() { # disk; until /tmp/stop
    count=0 failed=0
    until [ -e /tmp/stop ]; do
        for method in $(methods_of "$1"); do
            for mode in off on; do
                wce "$1" "$method" $mode >/tmp/toggle-$1 || { failed=$((failed + 1)); cat /tmp/toggle-$1; }
                count=$((count + 1))
            done
        done
    done
    emit "toggles dev=$1 count=$count failed=$failed"
    [ $failed -eq 0 ]
}

loads= toggles= status=0
for disk in $disks; do
    blkload stress "$disk" --seconds "${seconds:-30}" --jobs "${jobs:-2}" --area "${area:-16777216}" \
        --size "${size:-4096}" --fsync-every "${fsync_every:-16}" &
    loads="$loads $!"
    toggle_forever "$disk" &
    toggles="$toggles $!"
done
for pid in $loads; do wait "$pid" || status=1; done
touch /tmp/stop
for pid in $toggles; do wait "$pid" || status=1; done
disk_complaints >/tmp/complaints
emit "complaints count=$(wc -l </tmp/complaints)"
if [ -s /tmp/complaints ]; then
    status=1
    sed 's/^/@@ complaint: /' /tmp/complaints
fi
exit $status
