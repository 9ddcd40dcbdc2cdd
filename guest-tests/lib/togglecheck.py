"""The toggle scenario with its expectations: what the guest must see, and what the host must have done for the load.

rows() boots one guest with one IDE and one virtio disk in a cache mode and yields a Row a step: as configured,
then off and on again in every way the disk has. The load of each step is WRITES writes with an fsync every
FSYNC_EVERY, on the bare device, one after the other; so the counters must be exact.
"""

import dataclasses
from pathlib import Path

import guestimage
import guestrun

WRITES, FSYNC_EVERY = 8, 4
FSYNCS = WRITES // FSYNC_EVERY
MODES = ("writeback", "none", "writethrough", "directsync", "unsafe")
COMMANDS = {
    ("sg", "off"): "sg_sat_set_features --feature=0x82", ("sg", "on"): "sg_sat_set_features --feature=0x02",
    ("hdparm", "off"): "hdparm -W0", ("hdparm", "on"): "hdparm -W1",
    ("sysfs", "off"): "write through > cache_type", ("sysfs", "on"): "write back > cache_type",
}
O_ACCMODE, O_SYNC, O_DSYNC, O_DIRECT = 0o3, 0o4000000, 0o10000, 0o40000


@dataclasses.dataclass
class Row:
    device: str
    command: str
    identify: str    # IDENTIFY word 85 bit 5, "-" where there is no IDENTIFY
    cache_type: str  # sd's or virtio's
    queue: str       # queue/write_cache
    load: dict[str, int]    # counters that the load moved
    toggle: dict[str, int]  # counters that the toggle moved
    expected: str
    problems: list[str]


def expected_load(cache: str, wce: bool) -> dict[str, int]:
    """The counters that WRITES writes with FSYNCS fsyncs must move, and how far; all others stay."""
    outcome = "flushes_elided" if cache == "unsafe" else "flushes_issued"
    moved = {"write_ops": WRITES, "write_bytes": WRITES * 4096}
    if wce:
        return moved | {"flush_requests": FSYNCS, outcome: FSYNCS}
    return moved | {"flushes_writethrough": WRITES, outcome: WRITES}


def expected_toggle(method: str, was: bool, wce: bool) -> dict[str, int]:
    """A toggle to off asks for a flush, which is skipped: the load before it ended in a flush. To on costs nothing,
    and neither does setting what is set.

    hdparm -W0 itself sends FLUSH CACHE before and after its SET FEATURES; these are skipped for the same reason.
    """
    moved = {}
    if was != wce:
        moved = {"cache_toggles": 1} | ({} if wce else {"flushes_toggle": 1, "flushes_elided": 1})
    if method == "hdparm" and not wce:
        moved["flush_requests"] = 2
        moved["flushes_elided"] = moved.get("flushes_elided", 0) + 2
    return moved


def steps(device: str) -> list[tuple[str, str]]:
    """(method, mode) of every step that a device must go through, in order."""
    methods = ("sg", "hdparm", "sysfs") if device.startswith("sd") else ("sysfs",)
    return [("none", "configured")] + [(method, mode) for method in methods for mode in ("off", "on")]


def _without_reads(counters: dict[str, int]) -> dict[str, int]:
    return {k: v for k, v in counters.items() if k not in ("read_ops", "read_bytes")}


def _judge(row: Row, cache: str, was: bool, wce: bool, method: str) -> None:
    shown = "write_back" if wce else "write_through"
    if row.identify not in ("-", "1" if wce else "0"):
        row.problems.append(f"IDENTIFY word 85 bit 5 is {row.identify}")
    if not row.cache_type.startswith(shown):
        row.problems.append(f"cache_type is {row.cache_type}")
    if row.queue != shown:
        row.problems.append(f"queue/write_cache is {row.queue}")
    for what, got, wanted in (("load", row.load, expected_load(cache, wce)), ("toggle", row.toggle, expected_toggle(method, was, wce))):
        if got != wanted:
            row.problems.append(f"{what} moved {got}, expected {wanted}")


def _check_open_flags(machine: guestrun.Machine, files: list[Path], cache: str, row: Row) -> None:
    for file in files:
        flags = machine.open_flags(file)
        if not any(each & O_ACCMODE for each in flags):
            row.problems.append(f"the monitor has no writable descriptor on {file.name}")
        for each in flags:
            if each & (O_SYNC | O_DSYNC):
                row.problems.append(f"{file.name} is open with O_SYNC or O_DSYNC")
            # The one that only holds the lock is read-only and moves no data.
            if each & O_ACCMODE and bool(each & O_DIRECT) != (cache in ("none", "directsync")):
                row.problems.append(f"{file.name}: O_DIRECT does not fit cache={cache}")


def rows(images: guestimage.Images, directory: Path, cache: str, size: int = 64 << 20):
    """Yields each Row as its step ends. Raises guestrun.Error if the guest does not go through all of steps()."""
    disks = {}
    for device, bus in (("sda", "ide"), ("vda", "virtio")):
        file = directory / f"{cache}-{bus}.img"
        file.unlink(missing_ok=True)
        file.touch()
        file.open("r+b").truncate(size)
        disks[device] = guestrun.Disk(file, bus=bus, cache=cache, options=(f"id={device}",))
    configured = cache not in ("writethrough", "directsync")
    with guestrun.Machine(images, list(disks.values()), directory=directory, scenario="toggle", name=f"toggle-{cache}",
                          parameters={"disks": "sda,vda", "writes": WRITES, "fsync_every": FSYNC_EVERY}) as machine:
        last: dict[str, dict[str, int]] = {}
        mode_of = dict.fromkeys(disks, configured)
        due = [(device, *step) for device in disks for step in steps(device)]
        problems: list[str] = []
        state = toggled = None
        while event := machine.next_event():
            if event.kind == "error":
                problems.append(event.text)
            elif event.kind == "toggle" and event["status"] != "0":
                problems.append(f"the command failed: {event.text}")
            elif event.kind == "state":
                state = event
            elif event.kind == "write" and event["errors"] != "0":
                problems.append(f"the load failed: {event.text}")
            elif event.kind == "sync" and event["phase"] == "toggled":
                toggled = machine.stats()
                machine.resume()
            elif event.kind == "sync":
                device, method, mode = event["dev"], event["method"], event["mode"]
                if not due or due.pop(0) != (device, method, mode):
                    raise guestrun.Error(f"{machine.name}: {device} {method} {mode} is no step that was due")
                now = machine.stats()
                wce = configured if mode == "configured" else mode == "on"
                before = last.get(device, toggled[device])
                # A guest reads what it likes when it revalidates a disk; writes and flushes are ours alone.
                row = Row(device, COMMANDS.get((method, mode), f"(cache={cache})"), state["identify"], state["cache_type"],
                          state["queue"], _without_reads(guestrun.difference(now[device], toggled[device])),
                          _without_reads(guestrun.difference(toggled[device], before)),
                          f"{'write-back' if wce else 'write-through'}", problems)
                _judge(row, cache, mode_of[device], wce, method)
                mode_of[device] = wce
                _check_open_flags(machine, [Path(disks[device].file)], cache, row)
                last[device], problems = now[device], []
                yield row
                machine.resume()
            elif event.kind == "end":
                if event["status"] != "0":
                    raise guestrun.Error(f"{machine.name}: the scenario ended with {event['status']}: {machine.tail()}")
        status = machine.wait()
        if due or problems:
            raise guestrun.Error(f"{machine.name}: {len(due)} steps were left out; {'; '.join(problems)}; the monitor ended with "
                                 f"{status}: {machine.stderr()}; the console says: {machine.tail()}")
        if status != 0:
            raise guestrun.Error(f"{machine.name}: the monitor ended with {status}: {machine.stderr()}")


HEADINGS = ("disk", "in the guest", "w85.5", "cache_type", "queue", "writes", "flush req.", "write-thr.", "issued", "elided",
            "expected", "")


def cells(row: Row) -> tuple[str, ...]:
    numbers = (str(row.load.get(k, 0)) for k in ("write_ops", "flush_requests", "flushes_writethrough", "flushes_issued", "flushes_elided"))
    return (row.device, row.command, row.identify, row.cache_type, row.queue, *numbers, row.expected,
            "FAIL" if row.problems else "PASS")


def line(cells_: tuple[str, ...]) -> str:
    widths = (4, 36, 5, 13, 13, 6, 10, 10, 6, 6, 13, 4)
    return "  ".join(cell.ljust(width) for cell, width in zip(cells_, widths)).rstrip()
