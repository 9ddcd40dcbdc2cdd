"""A guest discards, zeroes and trims a virtio disk: with discard=unmap the image gives space back, without it nothing happens."""

import subprocess

import guestrun
import initramfs

MIB = 1 << 20
LIMIT = str(4194303 * 512)  # of a request, as QEMU has it


def run(context):
    for discard, queues in (("unmap", 2), ("ignore", 1)):
        _one(context, discard, queues)


def _one(context, discard, queues):
    image = context.image(f"discard-{discard}.img")
    disk = guestrun.Disk(image, cache="none", options=("id=vda", f"discard={discard}", f"queues={queues}"))
    unmap = discard == "unmap"

    def allocated():
        return image.stat().st_blocks * 512 // MIB

    def bytes_at(offset, length):
        with image.open("rb") as f:
            f.seek(offset)
            return f.read(length)

    with context.machine([disk], f"discard-{discard}", scenario="discard", cpus=queues, parameters={"disk": "vda"}) as machine:
        before = {}

        def phase(name):
            """The counters moved since the last phase, once the guest waits at the end of this one."""
            nonlocal before
            machine.expect("sync", phase=name)
            after = machine.stats()["vda"]
            moved, before = guestrun.difference(after, before), after
            return moved

        phase("filled")
        queue = next(e for e in machine.events if e.kind == "queue")
        wrong = (queue["discard"], queue["zeroes"], queue["queues"]) != (LIMIT, LIMIT, str(queues))
        context.check(f"{discard}: the guest sees the limits and queues={queues}", wrong and queue.text)
        full, data = allocated(), bytes_at(0, 8 * MIB)
        machine.resume()

        moved = phase("discarded")
        gone = full - allocated()
        problem = (moved.get("discard_ops", 0) < 1 or gone != (8 if unmap else 0) or
                   bytes_at(0, 8 * MIB) != (bytes(8 * MIB) if unmap else data))
        context.check(f"{discard}: blkdiscard gives back {8 if unmap else 0} MiB", problem and f"{gone} MiB; moved {moved}")
        machine.resume()

        moved = phase("zeroed")
        problem = moved.get("zero_ops", 0) < 1 or moved.get("write_ops", 0) or bytes_at(8 * MIB, 8 * MIB) != bytes(8 * MIB)
        context.check(f"{discard}: blkdiscard -z zeroes without writing", problem and f"moved {moved}")
        machine.resume()

        phase("removed")
        full = allocated()
        machine.resume()
        moved = phase("trimmed")
        gone = full - allocated()
        problem = moved.get("discard_ops", 0) < 1 or (gone < 15 if unmap else gone != 0)
        context.check(f"{discard}: fstrim gives back {'what a file had' if unmap else 'nothing'}", problem and f"{gone} MiB; moved {moved}")
        machine.resume()
        status = machine.wait()
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check(f"{discard}: power off", (status or errors) and f"exit status {status}, {errors}; {machine.tail()}")
    check = subprocess.run([initramfs.find_program("e2fsck"), "-fn", image], capture_output=True, text=True)
    context.check(f"{discard}: e2fsck -fn is clean", check.returncode and (check.stdout + check.stderr).replace("\n", " | "))
