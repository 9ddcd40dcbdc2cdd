"""Errors of the host: reported as each bus does, retried by Linux, or the guest stops for them and goes on (rerror=, werror=)."""

import time

import guestrun
from suites.control import Control

FAULTS = "read:@1M+512:EIO:always;write:@2M+4096:1:ENOSPC;write:@2M+4096:2:ENOSPC;write:@3M+512:EIO:always"


def run(context):
    path = context.directory / "errors.sock"
    options = (f"fault={FAULTS}",)
    disks = [guestrun.Disk(context.image("errors-ide.img"), bus="ide", options=("id=sda", *options)),
             guestrun.Disk(context.image("errors-virtio.img"), options=("id=vda", *options))]
    with context.machine(disks, "errors", scenario="errors", parameters={"disks": "sda,vda"},
                         extra=("--control", f"unix:{path}")) as machine:
        for disk in ("sda", "vda"):
            read = machine.expect("read", disk=disk)
            wrong = read["status"] == "0" or read["medium"] == "0" or (disk == "sda" and read["unc"] == "0")
            context.check(f"{disk}: a read that fails is an I/O error{', UNC on IDE' if disk == 'sda' else ''}", wrong and read.text)
            machine.expect("waiting", disk=disk)
            control = Control(path)
            problem = _stopped_twice(control, disk)
            context.check(f"{disk}: without space the guest stops, and again until there is some", problem)
            space = machine.expect("space", disk=disk)
            context.check(f"{disk}: and never hears of it", (space["status"] != "0" or space["complaints"] != "0") and space.text)
            write = machine.expect("write", disk=disk)
            # Linux tries an aborted write of an ATA disk again, five times.
            wrong = write["status"] == "0" or (disk == "sda" and write.number("tries") < 2)
            context.check(f"{disk}: a write that fails is {'tried again, and then ' if disk == 'sda' else ''}an I/O error", wrong and write.text)
        status = machine.wait()
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check("what was written is there, and the machine powers off", (status or errors) and f"exit status {status}, {errors}; {machine.tail()}")
        said = machine.stderr_path.read_text().count("the guest is stopped")
        context.check("each stop is told in one line", said != 4 and f"{said}: {machine.stderr()}")


def _stopped_twice(control, disk):
    for stop in (1, 2):
        if problem := _io_error(control):
            return f"stop {stop}: {problem}"
        waits = {d["device"]: d["io-status"] for d in control("query-block")}
        if waits.pop(disk) != "nospace" or set(waits.values()) != {"ok"}:
            return f"stop {stop}: io-status of {disk} is not nospace, or of others not ok: {waits}"
        control("cont")
    return ""


def _io_error(control, seconds=60):
    end = time.monotonic() + seconds
    while (status := control("query-status"))["status"] != "io-error":
        if time.monotonic() > end:
            return f"it does not stop: {status}"
    return "" if status["running"] is False else f"it says {status}"
