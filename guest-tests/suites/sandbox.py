"""What a running monitor may still do: every thread filtered and without capabilities, nothing more needed than /dev/kvm and
the files, and nothing of it with --no-sandbox."""

import os
import shutil
import stat
from pathlib import Path

import guestrun

NOBODY = 65534
# To write other users' files, which root may go on doing on the threads that open files.
FILES = 1 << 1 | 1 << 3
OPENS_FILES = ("spindle", "disks")
THREADS = {"spindle", "disks", "vcpu0", "vcpu1", "console", "signals", "control", "clock", "trace"}
# The alarm makes the clock's thread work.
SCRIPT = ("wait_disks sda vda; blkload ack sda --count 64 --fsync-every 4; blkload ack vda --count 64 --fsync-every 4; "
          "emit alarm set=$(echo +1 > /sys/class/rtc/rtc0/wakealarm && echo yes); sync_host phase=up")


def run(context):
    _confined(context, "sandbox", ())
    _as_nobody(context)
    with context.machine([], "sandbox-off", script="sync_host phase=up", extra=("--no-sandbox",)) as machine:
        machine.expect("sync", phase="up")
        wrong = [name for name, status in _threads(machine) if status["Seccomp"] != "0"]
        context.check("--no-sandbox runs without filters", wrong)
        context.check("and says so", "the sandbox is off" not in machine.stderr() and machine.stderr())


def _threads(machine):
    """(name, fields of its status) of each thread, without the kernel's own for io_uring."""
    for task in (Path("/proc") / str(machine.process.pid) / "task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        if not status["Name"].startswith("iou-"):
            yield status["Name"], status


def _confined(context, name, monitor):
    """Boots a guest with a disk on each bus, and everything that opens files or sockets."""
    directory = context.directory / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    disks = [guestrun.Disk(context.image(f"{name}/ide.img"), bus="ide"), guestrun.Disk(context.image(f"{name}/virtio.img"))]
    kernel, owner = context.images.bzimage, None
    if monitor:
        # Who runs it need not be able to reach the cache, or our build.
        kernel, owner = Path(shutil.copy(kernel, directory)), NOBODY
        monitor = (*monitor, shutil.copy(guestrun.spindle_binary(), directory))
        for file in (directory, *directory.iterdir()):
            os.chown(file, owner, owner)
    with guestrun.Machine(context.images, disks, directory=directory, name=name, script=SCRIPT, kernel=kernel, cpus=2, monitor=monitor,
                          extra=("--control", f"unix:{directory}/control.sock")) as machine:
        alarm = machine.expect("alarm")
        context.check(f"{name}: the guest sets the clock's alarm", alarm.values.get("set") != "yes" and alarm.text)
        machine.expect("sync", phase="up")
        threads = dict(_threads(machine))
        context.check(f"{name}: all threads are there", threads.keys() != THREADS and f"{sorted(threads)}")
        wrong = {thread: status for thread, status in threads.items() if status["Seccomp"] != "2" or status["NoNewPrivs"] != "1"}
        context.check(f"{name}: each has a filter", wrong)
        held = {thread: int(status["CapPrm"], 16) & ~(FILES if thread in OPENS_FILES and not owner else 0)
                for thread, status in threads.items()}
        context.check(f"{name}: and no capabilities", any(held.values()) and f"{held}")
        if owner:
            users = {status["Uid"] for status in threads.values()}
            context.check(f"{name}: nor root's files", users != {"\t".join([str(NOBODY)] * 4)} and f"{users}")
        machine.stats()
        machine.resume()
        status = machine.wait()
        context.check(f"{name}: statistics, sockets and the end work",
                      (status or (directory / "control.sock").exists()) and f"exit status {status}, said: {machine.stderr()}")


def _as_nobody(context):
    name = "sandbox as a user without privileges"
    if os.geteuid() != 0:
        return context.skip(name, "the suite itself is run by one")
    device = os.stat("/dev/kvm")
    if guestrun.emulated():  # the machine is ours
        os.chmod("/dev/kvm", 0o666)
    elif not device.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return context.skip(name, "/dev/kvm is root's alone")
    setpriv = shutil.which("setpriv")
    _confined(context, "sandbox-nobody", (setpriv, f"--reuid={NOBODY}", f"--regid={device.st_gid}", "--clear-groups",
                                          "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"))
