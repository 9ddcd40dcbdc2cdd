"""FUA writes on IDE: WRITE DMA FUA EXT from inside the guest is durable without a flush of its own.

libata is booted with fua=1. Debian's 6.1.192 has the rule of Linux 6.3, though, that sd uses FUA only on disks with NCQ, which
no ata_piix disk has (queue/fua stays 0 whatever IDENTIFY offers; a kernel without that rule shows 1). So the scenario sends the
command itself, by ATA PASS-THROUGH, which takes the same way through libata and the controller.
"""

import guestrun

WRITES = 8


def run(context):
    disk = guestrun.Disk(context.image("fua.img"), bus="ide", cache="none", options=("id=sda",))
    with context.machine([disk], "fua", scenario="fua", append="libata.fua=1",
                         parameters={"disk": "sda", "writes": WRITES}) as machine:
        machine.expect("sync", phase="ready")
        before = machine.stats()["sda"]
        machine.resume()
        machine.expect("sync", phase="loaded")
        moved = guestrun.difference(machine.stats()["sda"], before)
        machine.resume()
        context.check(f"{WRITES} WRITE DMA FUA EXT are {WRITES} FUA writes", moved.get("fua_writes") != WRITES and f"moved {moved}")
        flushes = moved.get("flush_requests", 0) + moved.get("flushes_writethrough", 0)
        context.check("they need no flush", flushes and f"moved {moved}")
        status = machine.wait()
        verified = [e for e in machine.events if e.kind == "verify"]
        context.check("the data is what was written, and the machine powers off",
                      (status or not verified or verified[-1]["bad"] != "0") and
                      f"exit status {status}: {machine.stderr()}; {[e.text for e in verified]}")
