"""What the monitor needs beyond the guest's memory, measured by itself while a guest with a disk on each bus is up."""

import json

import guestrun

MIB = 1 << 20
BAR = 16 * MIB


def run(context):
    disks = [guestrun.Disk(context.image("overhead-ide.img"), bus="ide"), guestrun.Disk(context.image("overhead-virtio.img"))]
    with context.machine(disks, "overhead", script="wait_disks sda vda; sync_host phase=up", kernel=context.images.bzimage) as machine:
        machine.expect("sync", phase="up")
        machine.stats()
        memory = json.loads(machine.stats_path.read_text())["memory"]
        overhead = memory["overhead_bytes"]
        # scripts/bench reads this line.
        context.check(f"overhead beyond guest memory is {overhead / MIB:.1f} MiB, at most {BAR / MIB:.0f}",
                      not 0 < overhead <= BAR and f"{memory}")
        machine.resume()
        status = machine.wait()
        context.check("a bzImage with a disk on each bus boots and powers off with 0",
                      status and f"exit status {status}, said: {machine.stderr()}; console: {machine.tail()}")
