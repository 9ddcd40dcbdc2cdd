"""Two vCPUs, both disks busy and verified while the caches are toggled all the time: no error, no lost interrupt."""

import os

import guestrun
import stresscheck

SECONDS = int(os.environ.get("SPINDLE_STRESS_SECONDS", "30"))


def run(context):
    disks = [guestrun.Disk(context.image("stress-ide.img"), bus="ide", cache="none", options=("id=sda",)),
             guestrun.Disk(context.image("stress-virtio.img"), bus="virtio", cache="none", options=("id=vda",))]
    with context.machine(disks, "stress", scenario="stress", cpus=2, timeout=SECONDS + 120,
                         parameters={"disks": "sda,vda", "seconds": SECONDS}) as machine:
        stresscheck.check(context, machine, ("sda", "vda"), SECONDS)
