# For each disk: as configured, then off and on again in every way there is; a fixed load after each.
#
#   disks=sda,vda  methods=sg,hdparm,sysfs (default: all the disk has)  writes=8  size=4096  fsync_every=4
#
# Each step emits "step dev= method= mode=", the toggle lines, "state", and stops at two sync points,
# "sync dev= method= mode= phase=toggled" and "... phase=loaded": the counters between them are the load's.
disks=$(list "${disks:-sda,vda}")
wait_disks "$disks" || exit 1

step() { # disk method mode
    emit "step dev=$1 method=$2 mode=$3"
    if [ "$3" != configured ]; then wce "$1" "$2" "$3" || failed=1; fi
    blkload state "$1"
    sync_host "dev=$1 method=$2 mode=$3 phase=toggled"
    blkload write "$1" --count "${writes:-8}" --size "${size:-4096}" --fsync-every "${fsync_every:-4}" || failed=1
    sync_host "dev=$1 method=$2 mode=$3 phase=loaded"
}

failed=0
for disk in $disks; do
    step "$disk" none configured
    ways=$(methods_of "$disk")
    [ -z "${methods:-}" ] || ways=$(list "$methods")
    for method in $ways; do
        step "$disk" "$method" off
        step "$disk" "$method" on
    done
done
exit $failed
