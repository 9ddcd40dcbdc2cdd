"""D4 with a real guest: a machine reset brings the configured cache mode back, on both buses, and the disks still work."""

import guestrun

SCRIPT = """
wait_disks "sda vda" || exit 1
for disk in sda vda; do blkload state $disk; done
sync_host "phase=booted"
for disk in sda vda; do
    wce $disk sysfs {mode} || exit 1
    blkload write $disk --count 4 || exit 1
done
sync_host "phase=toggled"
reboot -f
sleep 60
"""


def run(context):
    for cache, shown, mode in (("writeback", "write_back", "off"), ("directsync", "write_through", "on")):
        disks = [guestrun.Disk(context.image(f"reset-{bus}.img"), bus=bus, cache=cache, options=(f"id={bus}",))
                 for bus in ("ide", "virtio")]
        with context.machine(disks, f"reset-{cache}", script=SCRIPT.format(mode=mode), timeout=120) as machine:
            for boot in range(3):
                states = [machine.expect("state", dev=device) for device in ("sda", "vda")]
                machine.expect("sync", phase="booted")
                wrong = [s.text for s in states if s["queue"] != shown]
                context.check(f"cache={cache}: boot {boot} starts as configured", "; ".join(wrong))
                machine.resume()
                machine.expect("sync", phase="toggled")
                if boot < 2:
                    machine.resume()
            machine.process.terminate()
            status = machine.wait()
            context.check(f"cache={cache}: SIGTERM ends it in order", status and f"exit status {status}: {machine.stderr()}")
