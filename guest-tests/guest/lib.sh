# Shell vocabulary of the guest scenarios (busybox sh; sourced by init).

# A result line for the host: "@@ KIND key=value ...". Values have no blanks.
emit() { echo "@@ $*"; }

# Tell the host where we are and wait until it types a line: meanwhile it reads counters, or pulls the plug.
sync_host() {
    emit "sync $*"
    read -r _
}

# Wait for a path to appear (disks are probed asynchronously); 1 and an error line if it does not.
wait_path() {
    tries=0
    until [ -e "$1" ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { emit "error missing=$1"; return 1; }
        usleep 50000
    done
}

# wait_disks "sda vda": until all are there and no probing of partitions is left.
wait_disks() {
    for disk in $1; do wait_path "/sys/block/$disk" && wait_path "/dev/$disk" || return 1; done
}

# "a,b" -> "a b": lists on the kernel command line have commas.
list() { echo "$1" | tr , ' '; }

# The ways to toggle this disk's write cache.
methods_of() {
    case $1 in
    sd*) echo "sg hdparm sysfs" ;;
    *) echo sysfs ;;
    esac
}

# wce DISK METHOD on|off: toggle, wait until all the guest's sources agree. Emits "toggle" and "wait-state" or "setwce-sysfs".
wce() {
    case $2-$3 in
    sg-on) sg_sat_set_features --feature=0x02 "/dev/$1" ;;
    sg-off) sg_sat_set_features --feature=0x82 "/dev/$1" ;;
    hdparm-on) hdparm -q -W1 "/dev/$1" ;;
    hdparm-off) hdparm -q -W0 "/dev/$1" ;;
    sysfs-*) ;;
    *) emit "error no-such-toggle=$2-$3"; return 2 ;;
    esac
    toggled=$?
    emit "toggle dev=$1 method=$2 mode=$3 status=$toggled"
    [ $toggled -eq 0 ] || return $toggled
    if [ "$2" = sysfs ]; then
        blkload setwce-sysfs "$1" "$3"
    else
        blkload wait-state "$1" "$3"
    fi
}

# Kernel messages that must not appear in a good run: errors, timeouts, resets, lost interrupts of the disks.
disk_complaints() {
    dmesg | grep -iE '(ata[0-9]|sd[a-z]|vd[a-z]|virtio|blk_update).*(error|exception|timeout|frozen|failed|reset|lost)' |
        grep -viE 'error handling|softreset'
}
