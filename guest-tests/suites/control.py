"""The control socket on a running guest: stop and cont under load, the write cache from outside, reset, quit, resize, power button."""

import json
import socket
import subprocess
import time

import guestrun

MIB = 1 << 20


class Control:
    """A QMP-like client."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rw", encoding="utf-8")
        assert "QMP" in json.loads(self.file.readline())

    def __call__(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        answer = json.loads(self.file.readline())
        if "return" not in answer:
            raise guestrun.Error(f"{command} {arguments}: {answer}")
        return answer["return"]

    def refused(self, command, **arguments):
        """Why the command cannot be carried out."""
        try:
            return f"it answers {self(command, **arguments)}"
        except guestrun.Error as error:
            return str(error)

    def counters(self):
        return {disk["device"]: disk["counters"] for disk in self("query-blockstats")}


def run(context):
    path = context.directory / "control.sock"
    disks = [guestrun.Disk(context.image("control-ide.img"), bus="ide", options=("id=sda",)),
             guestrun.Disk(context.image("control-virtio.img"), options=("id=vda",))]
    script = ("wait_disks sda vda; blkload ack sda --count 100000 --fsync-every 4 & "
              "blkload ack vda --count 100000 --fsync-every 4")
    with context.machine(disks, "control", script=script, extra=("--control", f"unix:{path}")) as machine:
        machine.expect("SYNC")
        control = Control(path)
        _stop_and_cont(context, control)
        _write_cache(context, control)
        _trace(context, control)
        _throttle(context, control)
        _command_line(context, path)
        control("system_reset")
        machine.expect("boot")
        context.check("system_reset boots the guest again", None)
        control("quit")
        status = machine.wait()
        context.check("quit ends the run with 0", status and f"exit status {status}: {machine.stderr()}")
        context.check("and removes the socket", path.exists() and "it is still there")
    _resize_and_power_button(context)


def _resize_and_power_button(context):
    path = context.directory / "resize.sock"
    images = {disk: context.image(f"resize-{disk}.img") for disk in ("sda", "vda")}
    disks = [guestrun.Disk(images["sda"], bus="ide", options=("id=sda",)), guestrun.Disk(images["vda"], options=("id=vda",))]
    with context.machine(disks, "resize", scenario="resize", extra=("--control", f"unix:{path}")) as machine:
        machine.expect("sync")
        control = Control(path)
        refused = control.refused("block_resize", device="vda", size=1000)
        context.check("block_resize refuses what is no whole sector", "512" not in refused and refused)
        for size in (96 * MIB, 32 * MIB):
            for disk in images:
                control("block_resize", device=disk, size=size)
            machine.resume()
            machine.expect("sync")
            seen = {e["disk"]: e for e in machine.events if e.kind == "size"}
            wrong = [f"{disk}: {seen[disk].text}, file {images[disk].stat().st_size}" for disk in images
                     if seen[disk].number("sectors") != size // 512 or seen[disk].number("last") != 0
                     or seen[disk].number("beyond") == 0 or images[disk].stat().st_size != size]
            context.check(f"block_resize to {size // MIB} MiB: both buses show it, and end there", "; ".join(wrong))
        machine.resume()
        machine.expect("sync")
        control("system_powerdown")
        key = machine.expect("key")
        context.check("system_powerdown reaches the guest as its power key", (key["code"] != "116") and key.text)
        status = machine.wait()
        errors = [e.text for e in machine.events if e.kind == "error"]
        context.check("and the guest switches itself off", (status or errors) and f"exit status {status}, {errors}; {machine.tail()}")


def _moved(control, before, seconds=60, counters=("write_ops",)):
    """Waits until both disks have written more (or what `counters` say) than before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = control.counters()
        if all(now[disk][counter] > before[disk][counter] for disk in before for counter in counters):
            return True
    return False


def _stop_and_cont(context, control):
    wrong = []
    for _ in range(10):
        before = control.counters()
        if not _moved(control, before):
            wrong.append("the guest writes no more")
            break
        control("stop")
        first, second = control.counters(), control.counters()
        if first != second:
            wrong.append(f"counters moved while stopped: {first} {second}")
        for disk, c in first.items():
            reasons = c["flush_requests"] + c["flushes_writethrough"] + c["flushes_toggle"] + c["flushes_background"]
            outcomes = c["flushes_issued"] + c["flushes_elided"] + c["flushes_coalesced"] + c["flushes_failed"]
            if reasons != outcomes:
                wrong.append(f"{disk} has a flush in flight: {c}")
        if control("query-status")["status"] != "paused":
            wrong.append("it does not say paused")
        control("cont")
    context.check("10 times stop under load leaves nothing in flight, and cont goes on", "; ".join(wrong))


def _write_cache(context, control):
    wrong = []
    for device in ("sda", "vda"):
        control("block_set_write_cache", device=device, writeback=False)
        shown = {d["device"]: d["inserted"]["cache"]["writeback"] for d in control("query-block")}
        before = control.counters()
        if shown[device] is not False or not _moved(control, before):
            wrong.append(f"{device}: {shown}")
        c = control.counters()[device]
        if c["flushes_writethrough"] <= before[device]["flushes_writethrough"]:
            wrong.append(f"{device} does not flush after its writes: {c}")
        control("block_set_write_cache", device=device, writeback=True)
    context.check("block_set_write_cache makes each bus write through and back", "; ".join(wrong))


def _trace(context, control):
    """The requests of a loaded guest whose caches are toggled from outside, as a viewer would read them."""
    file = context.directory / "trace.json"
    wrong = []
    control("trace-start", file=str(file))
    for device in ("sda", "vda"):
        control("block_set_write_cache", device=device, writeback=False)
        if not _moved(control, control.counters()):
            wrong.append("the guest writes no more")
        control("block_set_write_cache", device=device, writeback=True)
    if not _moved(control, control.counters(), counters=("write_ops", "flush_requests")):
        wrong.append("the guest writes or flushes no more")
    control("stop")
    control("cont")
    control("trace-stop")
    events = json.loads(file.read_text())
    disks = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    for name, request in (("disk sda", "WRITE"), ("disk vda", "virtio write")):
        mine = [e for e in events if e["pid"] == disks.get(name)]
        begun = [e["name"] for e in mine if e["ph"] == "b"]
        if sorted(begun) != sorted(e["name"] for e in mine if e["ph"] == "e"):
            wrong.append(f"{name}: not every span ends")
        if not any(span.startswith(request) for span in begun) or "node write" not in begun:
            wrong.append(f"{name}: no request down to the file: {sorted(set(begun))}")
        reasons = {e["args"].get("reason") for e in mine if e["ph"] == "b" and e["name"] == "flush"}
        marks = {(e["name"], e["args"].get("reason")) for e in mine if e["ph"] == "i" and "args" in e}
        wrong += [f"{name}: no flush for {r}" for r in ("guest flush", "write-through", "cache turned off") if r not in reasons]
        wrong += [f"{name}: no mark of {m}" for m in ("write cache off", "write cache on") if (m, "host") not in marks]
    marks = [e["name"] for e in events if e["ph"] == "i" and e["pid"] == disks["spindle"]]
    wrong += [f"no mark of {m}" for m in ("stop", "cont") if m not in marks]
    if control("query-trace")["lost"] != 0:
        wrong.append(f"records were lost: {control('query-trace')}")
    control("trace-start", file="/dev/full")
    if "No space left" not in control.refused("trace-stop") or not _moved(control, control.counters()):
        wrong.append("a full disk is not told, or stops the guest")
    context.check("trace-start and trace-stop show each bus's requests, flushes and toggles", "; ".join(wrong))


def _throttle(context, control):
    """Limits of hours between requests: a stop and the machine's reset must not wait for them."""
    none = {name: 0 for name in ("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr")}
    wrong = []
    for device in ("sda", "vda"):
        control("block_set_io_throttle", device=device, **{**none, "bps_wr": 1, "bps_wr_max": 2})
        shown = {d["device"]: d["inserted"] for d in control("query-block")}[device]
        if (shown["bps_wr"], shown["bps_wr_max"], shown["iops"]) != (1, 2, 0):
            wrong.append(f"{device} shows {shown}")
    control("stop")
    control("cont")
    # What waited when it was stopped has passed, and a first write may pass; each more takes minutes.
    few = {disk: {"write_ops": c["write_ops"] + 4} for disk, c in control.counters().items()}
    if _moved(control, few, seconds=5):
        wrong.append("the guest writes on as if there were no limits")
    for device in ("sda", "vda"):
        control("block_set_io_throttle", device=device, **none)
    if not _moved(control, control.counters()):
        wrong.append("the guest writes no more after the limits are gone")
    for device in ("sda", "vda"):
        control("block_set_io_throttle", device=device, **{**none, "bps_wr": 1})
    context.check("block_set_io_throttle slows each bus to a stop, and stop, cont and reset do not wait for it",
                  "; ".join(wrong))


def _command_line(context, path):
    spindle = guestrun.spindle_binary()
    said = subprocess.run([spindle, "ctl", path, "query-status"], capture_output=True, text=True)
    refused = subprocess.run([spindle, "ctl", path, "block_set_write_cache", "device=nothing", "writeback=off"],
                             capture_output=True, text=True)
    context.check("spindle ctl prints the answer, or says in a line why not",
                  (said.returncode or json.loads(said.stdout)["status"] != "running" or refused.returncode != 1
                   or refused.stderr.count("\n") != 1) and f"{said} {refused}")
