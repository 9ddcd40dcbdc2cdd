"""A guest makes an ext4, fills it, fsyncs, unmounts and powers off: the host's e2fsck and checksums must agree.

One of the disks is recorded: what its log says was flushed is the file system too.
"""

import hashlib
import struct
import subprocess

import guestrun
import initramfs


def run(context):
    for device, bus, cache in (("sda", "ide", "none"), ("vda", "virtio", "none"), ("sda", "ide", "writethrough"),
                               ("vda", "virtio", "writeback")):
        _one(context, device, bus, cache)


def _one(context, device, bus, cache):
    image = context.image(f"ext4-{bus}-{cache}.img")
    log = image.with_suffix(".log") if (bus, cache) == ("virtio", "none") else None
    disk = guestrun.Disk(image, bus=bus, cache=cache, options=(f"record={log}",) if log else ())
    with context.machine([disk], f"ext4-{bus}-{cache}", scenario="ext4", parameters={"disk": device, "files": 4}) as machine:
        status = machine.wait()
        sums = {e["file"]: e["sha256"] for e in machine.events if e.kind == "sum"}
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check(f"{bus} {cache}: 4 files written, power off",
                      (status or len(sums) != 4 or errors) and f"exit status {status}, {len(sums)} files, {errors}; {machine.tail()}")
    check = subprocess.run([initramfs.find_program("e2fsck"), "-fn", image], capture_output=True, text=True)
    context.check(f"{bus} {cache}: e2fsck -fn is clean", check.returncode and (check.stdout + check.stderr).replace("\n", " | "))
    if log:
        _check_log(context, image, log)
    wrong = [] if sums else ["all: there are none, and so they"]
    for name, expected in sums.items():
        data = subprocess.run([initramfs.find_program("debugfs"), "-R", f"cat /{name}", image], capture_output=True).stdout
        if hashlib.sha256(data).hexdigest() != expected:
            wrong.append(name)
    context.check(f"{bus} {cache}: checksums are the guest's", wrong and f"{wrong} differ")


def _check_log(context, image, log):
    exported, replayed = log.with_suffix(".dmlog"), log.with_suffix(".replayed")
    done = subprocess.run([guestrun.spindle_binary(), "crash", "export", log, exported], capture_output=True, text=True)
    context.check("record: the log can be exported", done.returncode and done.stdout + done.stderr)
    flushes = _replay(exported, replayed, image.stat().st_size)
    context.check(f"record: up to the last of {flushes} flushes it is what the image holds",
                  (flushes == 0 or replayed.read_bytes() != image.read_bytes()) and "they differ")
    check = subprocess.run([initramfs.find_program("e2fsck"), "-fn", replayed], capture_output=True, text=True)
    context.check("record: and e2fsck -fn is clean", check.returncode and (check.stdout + check.stderr).replace("\n", " | "))


def _replay(exported, to, size) -> int:
    """Writes what a dm-log-writes log holds up to its last flush; the number of flushes."""
    kept = device = bytes(size)
    device, flushes = bytearray(device), 0
    with open(exported, "rb") as log:
        entries = struct.unpack("<QQQQ", log.read(512)[:32])[2]
        for _ in range(entries):
            sector, sectors, flags, _ = struct.unpack("<QQQQ", log.read(512)[:32])
            if flags & 1:  # FLUSH
                kept, flushes = bytes(device), flushes + 1
            elif not flags & 8:  # MARK
                data = bytes(sectors * 512) if flags & 4 else log.read(sectors * 512)
                device[sector * 512:sector * 512 + len(data)] = data
    to.write_bytes(kept)
    return flushes
