"""A CD-ROM drive: a mounted ISO and its check sums, a disk and a CD on one channel, a medium with a bad block."""

import hashlib
import random
import subprocess

import guestrun

BAD = 40


def make_iso(directory, name, seed):
    """An ISO image with files of known content, as {file name: check sum}."""
    tree = directory / f"{name}.tree"
    tree.mkdir(exist_ok=True)
    content = random.Random(seed)
    sums = {}
    for file, size in (("empty", 0), ("small", 37), ("sectors", 4096), ("large", 5 * 1000 * 1000 + seed)):
        data = content.randbytes(size)
        (tree / file).write_bytes(data)
        sums[file] = hashlib.sha256(data).hexdigest()
    iso = directory / f"{name}.iso"
    made = subprocess.run(["genisoimage", "-quiet", "-R", "-V", name.upper(), "-o", iso, tree], capture_output=True, text=True)
    if made.returncode != 0:
        raise guestrun.Error(f"genisoimage: {' '.join(made.stderr.split())}")
    return iso, sums


def files(machine, name):
    """The check sums that the guest found in the files of a medium."""
    return {e["name"]: e["sum"] for e in machine.events if e.kind == "file" and e["set"] == name}


def run(context):
    iso, sums = make_iso(context.directory, "first", 1)
    whole = hashlib.sha256(iso.read_bytes()).hexdigest()
    disks = [guestrun.Disk(context.image("cdrom-disk.img"), bus="ide", options=("bus=0", "unit=0")),
             guestrun.Disk(iso, bus="ide", options=("bus=0", "unit=1", "media=cdrom")),
             guestrun.Disk(iso, bus="ide", options=("bus=1", "unit=0", "media=cdrom", f"fault=read:1:@{BAD * 2048}+2048:EIO:always"))]
    with context.machine(disks, "cdrom", scenario="cdrom", parameters={"bad": BAD}) as machine:
        drive = machine.expect("drive")
        context.check("sr0 has the size of the image and cannot be written",
                      (drive.number("size") != iso.stat().st_size // 2048 or drive["ro"] != "1" or drive["model"] != "DVD-ROM") and drive.text)
        device = machine.expect("device")
        context.check("mounted, its files have their check sums", files(machine, "first") != sums and f"{files(machine, 'first')} {machine.tail()}")
        context.check("the device has the image's", device["sum"] != whole and device.text)
        both = machine.expect("both")
        context.check("a disk and a CD on one channel at once", (both["load"], both["verify"], both["sum"]) != ("0", "ok", whole) and both.text)
        bad = machine.expect("bad")
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check("the kernel complains of nothing before", "; ".join(errors))
        context.check("a block that cannot be read is a medium error, those around it are fine",
                      (bad["before"] != "0" or bad["at"] == "0" or bad["after"] != "0" or not bad.number("read")) and bad.text)
        status = machine.wait()
        context.check("the machine powers off", status and f"exit status {status}; {machine.tail()}")
