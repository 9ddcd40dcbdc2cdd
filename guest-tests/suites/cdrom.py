"""CD-ROM drives: a mounted ISO and its check sums, a disk and a CD on one channel, a medium with a bad block; an empty drive whose
medium is changed while the guest runs."""

import hashlib
import random
import subprocess

import guestrun
from suites.control import Control

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
    _reading(context)
    _changing(context)


def _reading(context):
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


def _changing(context):
    path = context.directory / "medium.sock"
    isos = {name: make_iso(context.directory, name, seed) for seed, name in enumerate(("one", "two", "three"), 1)}
    with context.machine([], "medium", scenario="medium", programs=("sg_start",),
                         extra=("--disk", "if=ide,bus=1,unit=0,media=cdrom,id=cd", "--control", f"unix:{path}")) as machine:
        empty = machine.expect("empty")
        machine.expect("sync", phase="empty")
        control = Control(path)

        def drive():
            return control("query-block")[0]

        def change(name, **more):
            control("blockdev-change-medium", device="cd", filename=str(isos[name][0]), **more)
            return drive()

        context.check("Linux boots with an empty drive and finds no medium in it",
                      (empty["mount"] == "0" or empty["none"] != "1") and empty.text)
        shown = drive()
        context.check("query-block shows it removable, closed and empty",
                      (shown.get("removable"), shown.get("tray_open"), shown.get("locked"), "inserted" in shown) != (True, False, False, False) and f"{shown}")
        refused = control.refused("blockdev-change-medium", device="cd", filename=str(context.directory / "missing.iso"))
        context.check("a medium that is not there is refused, and the drive stays as it was",
                      ("No such file" not in refused or drive() != shown) and f"{refused}; {drive()}")
        shown = change("one")
        context.check("a medium comes into it", (shown["tray_open"] or shown["inserted"]["file"] != str(isos["one"][0])) and f"{shown}")
        machine.resume()
        machine.expect("sync", phase="mounted")
        context.check("the guest mounts it, its files have their check sums", files(machine, "first") != isos["one"][1] and f"{files(machine, 'first')} {machine.tail()}")
        said = _ctl(path, "eject", "device=cd")
        shown = drive()
        context.check("while it is mounted an eject is refused in one line",
                      (said.returncode != 1 or "locked" not in said.stderr or said.stderr.count("\n") != 1 or shown["tray_open"] or not shown["locked"])
                      and f"{said} {shown}")
        machine.resume()
        held = machine.expect("held")
        context.check("and the medium stays readable", held["read"] != "0" and held.text)
        machine.expect("sync", phase="held")
        said = _ctl(path, "eject", "id=cd", "force=on")
        shown = drive()
        context.check("force takes it out", (said.returncode or not shown["tray_open"] or shown["locked"] or "inserted" in shown) and f"{said} {shown}")
        machine.resume()
        torn = machine.expect("torn")
        context.check("the guest gets an error, lives on, and lets the file system go",
                      (torn["read"] == "0" or torn["unmounted"] != "yes" or torn["none"] != "1") and torn.text)
        machine.expect("sync", phase="torn")
        change("two")
        machine.resume()
        ejected = machine.expect("ejected")
        context.check("a new medium is mounted after that", files(machine, "second") != isos["two"][1] and f"{files(machine, 'second')} {machine.tail()}")
        machine.expect("sync", phase="ejected")
        shown = drive()
        context.check("the guest opens the tray, and its medium stays in it",
                      (ejected["status"] != "0" or not shown["tray_open"] or "inserted" not in shown) and f"{ejected.text} {shown}")
        machine.resume()
        machine.expect("sync", phase="loaded")
        context.check("closes it, and has it back", files(machine, "again") != isos["two"][1] and f"{files(machine, 'again')} {machine.tail()}")
        change("three", format="raw", **{"read-only-mode": "retain"})
        before = control.counters()["cd"]["read_bytes"]
        machine.resume()
        machine.expect("end")
        context.check("a medium that is not mounted is changed without force", files(machine, "third") != isos["three"][1] and f"{files(machine, 'third')} {machine.tail()}")
        status = machine.wait()
        after = machine.final_stats()["cd"]["read_bytes"]
        context.check("the drive's counters go on over its media", not after > before > 3 * 5 * 1000 * 1000 and f"{before} {after}")
        context.check("and the machine powers off", status and f"exit status {status}; {machine.tail()} {machine.stderr()}")


def _ctl(path, *words):
    return subprocess.run([guestrun.spindle_binary(), "ctl", path, *words], capture_output=True, text=True)
