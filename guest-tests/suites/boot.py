"""Ways to start and to end: kernels, vCPUs, power-off, panic, triple fault, reset, locked images."""

import subprocess

import guestrun


def run(context):
    for part in (_four_cpus, _endings, _locking):
        try:
            part(context)
        except guestrun.Error as e:
            context.check(part.__name__.strip("_"), e)


def _ended(machine, wanted, *words):
    """A problem if the monitor did not end with this status and say these words."""
    status, said = machine.wait(), machine.stderr()
    missing = [w for w in words if w not in said.lower()]
    return (status != wanted or missing) and f"exit status {status}, said: {said}; console: {machine.tail()}"


def _four_cpus(context):
    with context.machine([], "four-cpus", script="true", cpus=4) as machine:
        boot = machine.expect("boot")
        context.check("four vCPUs come up", boot["cpus"] != "4" and boot.text)
        context.check("and power off", _ended(machine, 0))


def _endings(context):
    with context.machine([], "panic", script="echo c >/proc/sysrq-trigger", meant_to_die=True) as machine:
        context.check("a guest panic ends with 1 and says so", _ended(machine, 1, "panic"))
    with context.machine([], "triple-fault", script="reboot -f; read -r _", append="reboot=t", meant_to_die=True) as machine:
        context.check("a triple fault ends with 1 and says so", _ended(machine, 1, "triple fault"))
    with context.machine([], "no-reboot", script="reboot -f; read -r _", extra=("--no-reboot",)) as machine:
        context.check("a reset with --no-reboot ends with 0", _ended(machine, 0))
    image = context.image("terminate.img")
    with context.machine([guestrun.Disk(image)], "terminate", script="wait_disks vda; blkload ack vda --count 100000 --fsync-every 8") as machine:
        machine.expect("SYNC")
        machine.process.terminate()
        context.check("SIGTERM under load ends with 0", _ended(machine, 0))
        acknowledged = machine.last("ACK")
    left = guestrun.records(context.images, image, count=acknowledged + 8)
    context.check("and loses nothing that was written", left.number("whole") < acknowledged and f"{acknowledged} written, left: {left.text}")


def _locking(context):
    image = context.image("locked.img")
    with context.machine([guestrun.Disk(image)], "holder", script="wait_disks vda; sync_host phase=up") as machine:
        machine.expect("sync", phase="up")
        with context.machine([guestrun.Disk(image)], "second", script="true") as second:
            context.check("a second monitor on the image is refused with 2", _ended(second, 2, "locked.img"))
        qemu = subprocess.run(["qemu-io", "-f", "raw", "-c", "write 0 512", image], capture_output=True, text=True)
        context.check("qemu-io is refused while we run", (qemu.returncode == 0 or "lock" not in qemu.stderr) and
                      f"exit status {qemu.returncode}: {qemu.stdout}{qemu.stderr}")
        machine.resume()
        machine.wait()
    qemu = subprocess.run(["qemu-io", "-f", "raw", "-c", "write 0 512", image], capture_output=True, text=True)
    context.check("and let in afterwards", qemu.returncode and qemu.stderr)
    with subprocess.Popen(["qemu-io", "-f", "raw", image], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        holder.stdin.write("write 0 512\n")
        holder.stdin.flush()
        holder.stdout.readline()  # it has answered, so it holds the lock
        with context.machine([guestrun.Disk(image)], "refused", script="true") as second:
            context.check("we are refused while qemu-io runs", _ended(second, 2, "locked.img"))
        holder.communicate("quit\n")
