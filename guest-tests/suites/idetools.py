"""IDE through the tools people use: hdparm, smartctl, sg_sat_identify, sg_sync, blkdiscard, fstrim; a drive that is second without a first."""

import guestrun

MIB = 1 << 20


def run(context):
    image = context.image("idetools.img")
    disks = [guestrun.Disk(image, bus="ide", cache="none", options=("id=sda", "serial=SPINDLE-1", "discard=unmap", "bus=0", "unit=0")),
             guestrun.Disk(context.image("idetools-second.img"), bus="ide", options=("id=sdb", "bus=1", "unit=1"))]
    with context.machine(disks, "idetools", scenario="idetools", programs=("smartctl", "sg_sync")) as machine:
        machine.expect("sync", phase="told")
        said = _Said(machine)
        sectors = 64 * MIB // 512
        for what, kind, wanted in (
                ("hdparm -I shows what the drive is", "identify",
                 ("Model Number: SPINDLE HARDDISK", "Serial Number: SPINDLE-1", f"LBA user addressable sectors: {sectors}",
                  "* Write cache", "* SMART feature set", "* Mandatory FLUSH_CACHE", "* 48-bit Address feature set",
                  "* Data Set Management TRIM supported", "* WRITE_{DMA|MULTIPLE}_FUA_EXT")),
                ("hdparm -g and -N agree on the size", "geometry", (f"sectors = {sectors}",)),
                ("smartctl -i knows the drive", "info", ("Device Model: SPINDLE HARDDISK", "Serial Number: SPINDLE-1",
                                                        "SMART support is: Enabled", "TRIM Command: Available")),
                ("smartctl -H passes it", "health", ("SMART overall-health self-assessment test result: PASSED",)),
                ("smartctl -l error shows an empty log", "errorlog", ("No Errors Logged",))):
            context.check(what, said.lacks(kind, wanted))
        context.check("smartctl -A reads the attributes", said.status("attributes") != 0 and said.text("attributes"))
        native = said.text("native")
        context.check("hdparm -N reads the native max address, and no part is hidden", f"{sectors}/{sectors}" not in native and native)
        context.check("sg_sat_identify reads IDENTIFY DEVICE", said.status("satidentify") != 0 and said.text("satidentify"))
        before = machine.stats()["sda"]
        machine.resume()
        machine.expect("sync", phase="synced")
        moved = guestrun.difference(machine.stats()["sda"], before)
        context.check("sg_sync is a flush", (said.status("sgsync") != 0 or moved.get("flush_requests", 0) < 1) and f"{said.text('sgsync')} {moved}")
        machine.resume()
        machine.expect("sync", phase="written")
        states = [e.text.rpartition(" ")[2] for e in machine.events if e.kind == "power"]
        states = [s for s in states if not s.startswith("/dev/")]  # hdparm says first which drive it is
        context.check("hdparm -y and -C: standby until somebody reads", states != ["active/idle", "standby", "active/idle"] and states)
        context.check("hdparm -Y: it wakes when somebody reads", any(said.statuses("read") + said.statuses("sleep")) and said.text("read"))
        full = _allocated(image)
        machine.resume()
        machine.expect("sync", phase="discarded")
        gone = full - _allocated(image)
        context.check("blkdiscard gives back 8 MiB", (gone != 8 or said.status("discard") != 0) and f"{gone} MiB; {said.text('discard')}")
        machine.resume()
        machine.expect("sync", phase="removed")
        full = _allocated(image)
        machine.resume()
        machine.expect("sync", phase="trimmed")
        gone = full - _allocated(image)
        context.check("fstrim gives back what a file had", (gone < 15 or said.status("trim") != 0) and f"{gone} MiB; {said.text('trim')}")
        machine.resume()
        status = machine.wait()
        context.check("a second drive without a first reads and writes", any(said.statuses("slave")) and said.text("slave"))
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check("nothing is complained of, and the machine powers off", (status or errors) and f"exit status {status}, {errors}; {machine.tail()}")


def _allocated(image):
    return image.stat().st_blocks * 512 // MIB


class _Said:
    """What the tools said so far."""

    def __init__(self, machine):
        self.machine = machine

    def text(self, kind):
        return " | ".join(e.text.removeprefix(f"@@ {kind} ") for e in self.machine.events if e.kind == kind)

    def statuses(self, kind):
        return [int(e.words[0]) for e in self.machine.events if e.kind == f"{kind}-status"]

    def status(self, kind):
        return self.statuses(kind)[-1]

    def lacks(self, kind, wanted):
        text = self.text(kind)
        missing = [w for w in wanted if w not in text]
        return (missing or self.status(kind) != 0) and f"status {self.status(kind)}, no {missing} in: {text}"
