"""A guest makes an ext4, fills it, fsyncs, unmounts and powers off: the host's e2fsck and checksums must agree."""

import hashlib
import subprocess

import guestrun
import initramfs


def run(context):
    for device, bus, cache in (("sda", "ide", "none"), ("vda", "virtio", "none"), ("sda", "ide", "writethrough"),
                               ("vda", "virtio", "writeback")):
        _one(context, device, bus, cache)


def _one(context, device, bus, cache):
    image = context.image(f"ext4-{bus}-{cache}.img")
    disk = guestrun.Disk(image, bus=bus, cache=cache)
    with context.machine([disk], f"ext4-{bus}-{cache}", scenario="ext4", parameters={"disk": device, "files": 4}) as machine:
        status = machine.wait()
        sums = {e["file"]: e["sha256"] for e in machine.events if e.kind == "sum"}
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check(f"{bus} {cache}: 4 files written, power off",
                      (status or len(sums) != 4 or errors) and f"exit status {status}, {len(sums)} files, {errors}; {machine.tail()}")
    check = subprocess.run([initramfs.find_program("e2fsck"), "-fn", image], capture_output=True, text=True)
    context.check(f"{bus} {cache}: e2fsck -fn is clean", check.returncode and (check.stdout + check.stderr).replace("\n", " | "))
    wrong = [] if sums else ["all: there are none, and so they"]
    for name, expected in sums.items():
        data = subprocess.run([initramfs.find_program("debugfs"), "-R", f"cat /{name}", image], capture_output=True).stdout
        if hashlib.sha256(data).hexdigest() != expected:
            wrong.append(name)
    context.check(f"{bus} {cache}: checksums are the guest's", wrong and f"{wrong} differ")
