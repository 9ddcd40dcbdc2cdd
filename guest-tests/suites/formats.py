"""A guest on an image that allocates: what it wrote is there for QEMU's tools to read, also after a power cut.

The images are made by QEMU. D1 and D2 as in the suite powercut, D8: an image after a power cut needs no tool.
"""

import hashlib
import shutil
import subprocess

import guestrun
import initramfs
from suites import powercut


def run(context):
    if not shutil.which("qemu-img"):
        context.skip("vdi", "qemu-img is not installed")
        return
    for device, bus, cache in (("sda", "ide", "none"), ("vda", "virtio", "writethrough"), ("vda", "virtio", "writeback")):
        _file_system(context, device, bus, cache)
    for device, bus, cache, mode, fsync_every in (("vda", "virtio", "writethrough", "configured", 0),
                                                  ("sda", "ide", "writeback", "configured", 16),
                                                  ("vda", "virtio", "writeback", "off", 0)):
        _power_cut(context, device, bus, cache, mode, fsync_every)


def _image(context, name):
    image = context.directory / name
    image.unlink(missing_ok=True)
    subprocess.run(["qemu-img", "create", "-q", "-f", "vdi", image, "64M"], check=True)
    return image


def _raw(image):
    """What QEMU reads in it, as a file."""
    raw = image.with_suffix(".raw")
    subprocess.run(["qemu-img", "convert", "-q", "-f", "vdi", "-O", "raw", image, raw], check=True)
    return raw


def _qemu_check(image) -> str:
    """What QEMU finds wrong. A count above what is used is an error for it, and a leak at worst."""
    check = subprocess.run(["qemu-img", "check", "-f", "vdi", image], capture_output=True, text=True)
    found = [line for line in (check.stdout + check.stderr).splitlines() if line.startswith("ERROR") and "allocated blocks mismatch" not in line]
    return " | ".join(found)


def _file_system(context, device, bus, cache):
    image = _image(context, f"ext4-{bus}-{cache}.vdi")
    disk = guestrun.Disk(image, bus=bus, cache=cache, format="vdi")
    with context.machine([disk], f"vdi-ext4-{bus}-{cache}", scenario="ext4", parameters={"disk": device, "files": 4}) as machine:
        status = machine.wait()
        sums = {e["file"]: e["sha256"] for e in machine.events if e.kind == "sum"}
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check(f"vdi {bus} {cache}: 4 files written, power off",
                      (status or len(sums) != 4 or errors) and f"exit status {status}, {len(sums)} files, {errors}; {machine.tail()}")
    check = subprocess.run(["qemu-img", "check", "-f", "vdi", image], capture_output=True, text=True)
    context.check(f"vdi {bus} {cache}: qemu-img check finds nothing", check.returncode and check.stdout + check.stderr)
    raw = _raw(image)
    check = subprocess.run([initramfs.find_program("e2fsck"), "-fn", raw], capture_output=True, text=True)
    context.check(f"vdi {bus} {cache}: e2fsck -fn is clean", check.returncode and (check.stdout + check.stderr).replace("\n", " | "))
    wrong = [] if sums else ["all: there are none, and so they"]
    for name, expected in sums.items():
        data = subprocess.run([initramfs.find_program("debugfs"), "-R", f"cat /{name}", raw], capture_output=True).stdout
        if hashlib.sha256(data).hexdigest() != expected:
            wrong.append(name)
    context.check(f"vdi {bus} {cache}: checksums are the guest's", wrong and f"{wrong} differ")


def _power_cut(context, device, bus, cache, mode, fsync_every):
    image = _image(context, f"cut-{bus}-{cache}-{mode}.vdi")
    disk = guestrun.Disk(image, bus=bus, cache=cache, format="vdi", options=("volatile=on",))
    powercut.cut(context, disk, f"vdi {bus} cache={cache}, cache {mode} in the guest", device=device, mode=mode,
                 fsync_every=fsync_every, kill_after=300, raw=_raw)
    context.check(f"vdi {bus} cache={cache}, cache {mode} in the guest: QEMU's check finds leaks at worst", _qemu_check(image))
