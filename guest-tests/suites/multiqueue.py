"""Virtio under verified load and toggles: four vCPUs on four queues, split and packed; and one queue without MSI-X.

A minute in all, three parts; SPINDLE_MULTIQUEUE_SECONDS sets how long each of them is under load.
"""

import os

import guestrun
import stresscheck

SECONDS = int(os.environ.get("SPINDLE_MULTIQUEUE_SECONDS", "20"))
RING_PACKED = 34  # VIRTIO_F_RING_PACKED
SCRIPT = """
wait_disks vda || exit 1
emit "disk queues=$(ls /sys/block/vda/mq | wc -l) features=$(cat /sys/block/vda/device/features)"
(. /scenarios/stress.sh)
status=$?
grep virtio /proc/interrupts | while read -r line; do emit "interrupt $line"; done
exit $status
"""


def run(context):
    for part in (lambda: _queues(context, "split"), lambda: _queues(context, "packed"), lambda: _without_msix(context)):
        try:
            part()
        except guestrun.Error as e:
            context.check("run", e)


def _loaded(context, name, cpus, options, append=""):
    disk = guestrun.Disk(context.image(f"{name}.img"), cache="none", options=("id=vda", *options))
    parameters = {"disks": "vda", "seconds": SECONDS, "jobs": cpus}
    with context.machine([disk], name, script=SCRIPT, cpus=cpus, timeout=SECONDS * 5 // 4 + 120, parameters=parameters, append=append) as machine:
        stresscheck.check(context, machine, ("vda",), SECONDS, f"{name}: ")
        facts = next((e for e in machine.events if e.kind == "disk"), None)
        return facts, [e for e in machine.events if e.kind == "interrupt"]


def _queues(context, ring):
    facts, interrupts = _loaded(context, f"multiqueue-{ring}", 4, ("queues=4", f"packed={'on' if ring == 'packed' else 'off'}"))
    wanted = "1" if ring == "packed" else "0"
    context.check(f"{ring}: the guest uses 4 queues with {ring} rings",
                  not facts and "no result" or (facts["queues"], facts["features"][RING_PACKED]) != ("4", wanted) and facts.text)
    counts = {e.words[-1]: _count(e) for e in interrupts if "-req." in e.words[-1]}
    context.check(f"{ring}: every queue interrupts by a message of its own: {counts}",
                  (len(counts) != 4 or 0 in counts.values() or not all("PCI-MSI" in e.text for e in interrupts)) and
                  "; ".join(e.text for e in interrupts) or not interrupts and "no result")


def _without_msix(context):
    facts, interrupts = _loaded(context, "intx", 2, (), append="pci=nomsi")
    context.check("intx: the guest found its disk", not facts and "no result")
    lines = "; ".join(e.text for e in interrupts)
    context.check(f"intx: one line of the IO-APIC carries all {sum(map(_count, interrupts))} interrupts",
                  (len(interrupts) != 1 or "IO-APIC" not in lines or _count(interrupts[0]) == 0) and (lines or "no result"))


def _count(interrupt) -> int:
    """Of all processors, from a line of /proc/interrupts: "24: 10 0 IO-APIC 10-fasteoi virtio0"."""
    total = 0
    for word in interrupt.words[1:]:
        if not word.isdigit():
            break
        total += int(word)
    return total
