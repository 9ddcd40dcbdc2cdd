"""SIGKILL of the monitor over `volatile` in the middle of guest writes is a power cut.

Write-through (D2): every write that the guest saw complete is in the file. Write-back (D1): everything before the last
completed fsync is. The guest says "ACK n" after each write and "SYNC n" after each fsync; record n names itself on disk.
"""

import guestrun

COUNT = 4000


def run(context):
    for device, bus in (("sda", "ide"), ("vda", "virtio")):
        _cut(context, device, bus, cache="writethrough", mode="configured", fsync_every=0, kill_after=300)
        _cut(context, device, bus, cache="writeback", mode="off", fsync_every=0, kill_after=217)
        _cut(context, device, bus, cache="writeback", mode="configured", fsync_every=16, kill_after=333)
        _cut(context, device, bus, cache="writethrough", mode="on", fsync_every=10, kill_after=255)


def _cut(context, device, bus, *, cache, mode, fsync_every, kill_after):
    image = context.image(f"cut-{bus}-{cache}-{mode}.img")
    disk = guestrun.Disk(image, bus=bus, cache=cache, options=("volatile=on",))
    cut(context, disk, f"{bus} cache={cache}, cache {mode} in the guest", device=device, mode=mode, fsync_every=fsync_every,
        kill_after=kill_after)


def cut(context, disk, name, *, device, mode, fsync_every, kill_after, raw=lambda image: image):
    """`raw`: what the guest would find on the image, as a file."""
    write_through = (disk.cache == "writethrough") if mode == "configured" else mode == "off"
    with context.machine([disk], f"{disk.file.name}-cut", scenario="powercut",
                         parameters={"disk": device, "mode": mode, "count": COUNT, "fsync_every": fsync_every}) as machine:
        machine.expect("sync", phase="ready")
        machine.resume()
        while (event := machine.next_event("ACK", "error", "end")) and event.kind == "ACK" and int(event.words[0]) < kill_after:
            pass
        if not event or event.kind != "ACK":
            context.check(name, f"the guest did not come to write {kill_after}: {machine.tail()}")
            return
        machine.kill()
        acknowledged, synced = machine.last("ACK"), machine.last("SYNC")
    left = guestrun.records(context.images, raw(disk.file), count=COUNT)
    promised = acknowledged if write_through else synced
    kept = _unbroken(left["ranges"])
    if promised < 10:
        context.check(name, f"only {promised} records were promised, which proves nothing")
        return
    context.check(f"{name}: the {promised} records promised of {acknowledged} written are there",
                  kept < promised and f"records are missing: there are {left['ranges']}")
    if not write_through:  # or the test would pass without a volatile cache in the way
        context.check(f"{name}: what was not flushed can be lost",
                      kept >= acknowledged and f"all {acknowledged} records survived a power cut that should lose some")


def _unbroken(ranges: str) -> int:
    """How many records are there from the first on, without a hole."""
    first, _, last = ranges.split(",")[0].partition("-")
    return int(last) if first == "1" else 0
