"""libata with FUA on: O_DSYNC writes arrive as WRITE DMA FUA EXT and are durable without a flush of their own."""

import guestrun

WRITES = 8


def run(context):
    disk = guestrun.Disk(context.image("fua.img"), bus="ide", cache="none", options=("id=sda",))
    with context.machine([disk], "fua", scenario="fua", append="libata.fua=1",
                         parameters={"disk": "sda", "writes": WRITES}) as machine:
        offered = machine.expect("fua")
        context.check("the guest uses FUA", offered["queue"] != "1" and f"queue/fua is {offered['queue']}")
        machine.expect("sync", phase="ready")
        before = machine.stats()["sda"]
        machine.resume()
        machine.expect("sync", phase="loaded")
        moved = guestrun.difference(machine.stats()["sda"], before)
        machine.resume()
        context.check(f"{WRITES} O_DSYNC writes are {WRITES} FUA writes", moved.get("fua_writes") != WRITES and f"moved {moved}")
        flushes = moved.get("flush_requests", 0) + moved.get("flushes_writethrough", 0)
        context.check("they need no flush", flushes and f"moved {moved}")
        status = machine.wait()
        context.check("the machine powers off", status and f"exit status {status}: {machine.stderr()}")
