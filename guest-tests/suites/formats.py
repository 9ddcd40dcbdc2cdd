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
    _recorded(context)
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


def _recorded(context):
    """What power cuts may leave of a guest's ext4, state by state: the image opens and checks, and so does the file system."""
    raw = context.image("recorded.img", 32 << 20)
    subprocess.run([initramfs.find_program("mkfs.ext4"), "-q", "-F", raw], check=True)
    image, log = context.directory / "recorded.vdi", context.directory / "recorded.log"
    subprocess.run(["qemu-img", "convert", "-q", "-f", "raw", "-O", "vdi", raw, image], check=True)
    disk = guestrun.Disk(image, format="vdi", cache="none", options=(f"record={log}",))
    with context.machine([disk], "vdi-recorded", scenario="ext4", parameters={"disk": "vda", "files": 6, "made": 1}) as machine:
        status = machine.wait()
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check("vdi recorded: files written, power off", (status or errors) and f"exit status {status}, {errors}; {machine.tail()}")
    e2fsck = initramfs.find_program("e2fsck")
    # Sectors are not torn apart here: ext4 takes its superblock of 1024 bytes to be written whole or not at all.
    # As at the next boot: the journal first, then nothing may be wrong.
    judge = f'f() {{ {e2fsck} -E journal_only -y "$1" >/dev/null 2>&1; {e2fsck} -fn "$1"; }}; f'
    done = subprocess.run([guestrun.spindle_binary(), "crash", "explore", "--log", log, "--format", "vdi", "--states", "1500", "--torn", "4096",
                           "--run", judge, "--run-states", "30"], capture_output=True, text=True)
    told = (done.stdout + done.stderr).strip().replace("\n", " | ")
    context.check("vdi recorded: 1500 states open and check, and e2fsck -fn is clean on 30", (done.returncode or "30 states, 0 failed" not in told) and told)


def _power_cut(context, device, bus, cache, mode, fsync_every):
    image = _image(context, f"cut-{bus}-{cache}-{mode}.vdi")
    disk = guestrun.Disk(image, bus=bus, cache=cache, format="vdi", options=("volatile=on",))
    powercut.cut(context, disk, f"vdi {bus} cache={cache}, cache {mode} in the guest", device=device, mode=mode,
                 fsync_every=fsync_every, kill_after=300, raw=_raw)
    context.check(f"vdi {bus} cache={cache}, cache {mode} in the guest: QEMU's check finds leaks at worst", _qemu_check(image))
