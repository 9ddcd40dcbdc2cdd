"""Run a guest from a scenario: start it, follow its console, read its counters, end it.

    import guestimage, guestrun
    images = guestimage.images()
    disks = [guestrun.Disk("/scratch/a.img", bus="ide", cache="none")]
    with guestrun.Machine(images, disks, scenario="toggle", parameters={"disks": "sda"}, directory=work) as m:
        while event := m.next_event("sync", "end"):
            if event.kind == "end":
                break
            before = m.stats()
            m.resume()
        assert m.wait() == 0

Backend "spindle" runs `spindle run`; backend "qemu" boots the same guest in QEMU, for developing scenarios
and as an oracle of what a guest sees (no counters there).
"""

import ctypes
import dataclasses
import json
import os
import queue
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import guestimage
import kvmprobe
import processes

REPOSITORY = Path(__file__).resolve().parent.parent.parent
COMMAND_LINE = "console=ttyS0 quiet loglevel=3 nokaslr mitigations=off no_timer_check tsc=reliable panic=-1"
IN_CLOSE_WRITE, IN_MOVED_TO = 0x8, 0x80


class Error(Exception):
    """One line that says what went wrong and what to do."""


@dataclasses.dataclass(frozen=True)
class Disk:
    file: str | Path
    bus: str = "virtio"            # ide, virtio
    cache: str = "writeback"       # writeback, none, writethrough, directsync, unsafe
    format: str = "raw"
    options: tuple[str, ...] = ()  # more of --disk, e.g. ("serial=A1", "bus=0", "unit=1")

    def spindle_option(self) -> str:
        return ",".join((f"file={self.file}", f"format={self.format}", f"if={self.bus}", f"cache={self.cache}", *self.options))

    def qemu_option(self) -> str:
        return f"file={self.file},format={self.format},if={self.bus},cache={self.cache}"


@dataclasses.dataclass(frozen=True)
class Event:
    """One result line of the guest: "@@ KIND word key=value", "ACK n" or "SYNC n"."""
    kind: str
    words: tuple[str, ...]
    values: dict[str, str]
    text: str

    def __getitem__(self, key: str) -> str:
        return self.values[key]

    def number(self, key: str) -> int:
        return int(self.values[key])


def parse_line(line: str) -> Event | None:
    """The event in a console line, if there is one; other output may stand before the "@@"."""
    if m := re.fullmatch(r"(ACK|SYNC) (\d+)", line):
        return Event(m[1], (m[2],), {}, line)
    before, mark, rest = line.partition("@@ ")
    if not mark or not rest.strip():
        return None
    kind, *words = rest.split()
    values = dict(w.split("=", 1) for w in words if "=" in w)
    return Event(kind.rstrip(":"), tuple(w for w in words if "=" not in w), values, line)


def parse_stats(text: str) -> dict[str, dict[str, int]]:
    """--stats-json as {disk id: {counter: value}}."""
    return {disk["id"]: disk["counters"] for disk in json.loads(text)["disks"]}


def difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Counters that changed, with their increase."""
    return {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}


def spindle_binary() -> Path:
    """$SPINDLE_BINARY, else the one that was built into build/."""
    if os.environ.get("SPINDLE_BINARY"):
        return Path(os.environ["SPINDLE_BINARY"])
    for path in (REPOSITORY / "build/spindle", REPOSITORY / "build/tools/spindle"):
        if path.exists():
            return path
    raise Error("no spindle binary in build/: build it, or set SPINDLE_BINARY")


_started: list["Machine"] = []


class _FileWatch:
    """Waits until somebody has finished writing a file (inotify: no polling)."""

    def __init__(self, path: Path):
        self._path, self._libc = path, ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_CLOEXEC)
        if self._fd < 0 or self._libc.inotify_add_watch(self._fd, bytes(path.parent), IN_CLOSE_WRITE | IN_MOVED_TO) < 0:
            raise Error(f"cannot watch {path.parent}: {os.strerror(ctypes.get_errno())}")

    def wait(self, timeout: float) -> bool:
        name, deadline = self._path.name.encode() + b"\0", time.monotonic() + timeout
        while (remaining := deadline - time.monotonic()) > 0 and select.select([self._fd], [], [], remaining)[0]:
            if name in os.read(self._fd, 1 << 16):
                return True
        return False

    def close(self) -> None:
        os.close(self._fd)


class Machine:
    def __init__(self, images: guestimage.Images, disks: list[Disk], *, directory: str | Path, scenario: str = "",
                 script: str = "", parameters: dict[str, object] | None = None, append: str = "", cpus: int = 1,
                 memory: str = "512M", kernel: Path | None = None, backend: str = "spindle", extra: tuple[str, ...] = (),
                 programs: tuple[str, ...] = (), monitor: tuple[str, ...] = (), timeout: float = 120, name: str = "guest", meant_to_die: bool = False):
        """Starts at once; ends with the thread that starts it at the latest.

        `scenario` names a file of guest/scenarios, or `script` is the text of one.
        `programs` of the host come on top of those every guest has. `monitor` is what runs instead of spindle_binary().
        `parameters` become NAME=VALUE for the scenario. `timeout` (seconds) is for every wait that names none.
        `meant_to_die`: a panic or a triple fault is what the scenario is for. In `directory` are left NAME.console, NAME.stderr and NAME.stats.json. `kernel` defaults to the vmlinux.
        """
        self.directory, self.timeout, self.name = Path(directory), timeout, name
        self.console_path = self.directory / f"{name}.console"
        self.stderr_path = self.directory / f"{name}.stderr"
        self.stats_path = self.directory / f"{name}.stats.json"
        self.stats_path.unlink(missing_ok=True)
        self.meant_to_die = meant_to_die
        _started.append(self)
        initrd = images.initrd
        if script or programs:
            initrd = guestimage.with_more(initrd, self.directory / f"{name}.initrd", script=script, programs=programs)
        words = [COMMAND_LINE, f"scenario={scenario}" if scenario else ""]
        words += [f"{k}={v}" for k, v in (parameters or {}).items()] + [append]
        command_line = " ".join(w for w in words if w)
        kernel = kernel or images.vmlinux
        if backend == "spindle":
            command = [*(monitor or (str(spindle_binary()),)), "run", "--kernel", str(kernel), "--initrd", str(initrd), "--append", command_line,
                       "--cpus", str(cpus), "--memory", memory, "--stats-json", str(self.stats_path), "--console", "stdio"]
            for disk in disks:
                command += ["--disk", disk.spindle_option()]
        else:
            qemu = shutil.which("qemu-system-x86_64")
            if not qemu:
                raise Error("qemu-system-x86_64 is not installed: run scripts/install-deps --guest")
            accelerator = "tcg,thread=multi" if kvmprobe.why_unusable() else "kvm"
            command = [qemu, "-accel", accelerator, "-machine", "pc", "-nodefaults", "-no-user-config", "-display", "none",
                       "-no-reboot", "-serial", "stdio", "-m", memory, "-smp", str(cpus), "-kernel", str(kernel),
                       "-initrd", str(initrd), "-append", command_line]
            for disk in disks:
                command += ["-drive", disk.qemu_option()]
        self.command = [*command, *extra]
        with self.stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                                            start_new_session=True, preexec_fn=processes.tied())
        self.events: list[Event] = []         # all so far, in order
        self._queue: queue.Queue = queue.Queue()
        self._reader = threading.Thread(target=self._read_console, daemon=True)
        self._reader.start()

    def _read_console(self) -> None:
        pending = b""
        with self.console_path.open("wb") as log:
            while data := os.read(self.process.stdout.fileno(), 1 << 16):
                log.write(data)
                log.flush()
                *lines, pending = (pending + data).split(b"\n")  # a line that a power cut tore is none
                for line in lines:
                    if event := parse_line(line.decode(errors="replace").strip("\r\x00")):
                        self.events.append(event)
                        self._queue.put(event)
        self._queue.put(None)

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_) -> None:
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()

    def next_event(self, *kinds: str, timeout: float | None = None) -> Event | None:
        """The next event (of one of these kinds); None when the console has ended. Error when it takes too long."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            try:
                event = self._queue.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise Error(f"{self.name}: no {' or '.join(kinds) or 'event'} in time; the console says: {self.tail()}") from None
            if event is None:
                self._queue.put(None)
                return None
            if not kinds or event.kind in kinds:
                return event

    def expect(self, kind: str, timeout: float | None = None, **values: str) -> Event:
        """The next event of this kind with these values; Error if the guest ends before."""
        while event := self.next_event(kind, timeout=timeout):
            if all(event.values.get(k) == v for k, v in values.items()):
                return event
        raise Error(f"{self.name}: ended without {kind} {values or ''}; stderr: {self.stderr()}; the console says: {self.tail()}")

    def resume(self) -> None:
        """Let a guest that waits in sync_host go on."""
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def stats(self, timeout: float = 30) -> dict[str, dict[str, int]]:
        """The counters of the running machine (SIGUSR1 makes it rewrite the file)."""
        watch = _FileWatch(self.stats_path)
        try:
            self.process.send_signal(signal.SIGUSR1)
            deadline = time.monotonic() + timeout
            while watch.wait(deadline - time.monotonic()):
                try:
                    return parse_stats(self.stats_path.read_text())
                except (ValueError, FileNotFoundError):
                    continue  # seen half-written; the writer's close will come
        finally:
            watch.close()
        raise Error(f"{self.name}: no statistics {timeout:g} s after SIGUSR1; stderr: {self.stderr()}")

    def final_stats(self) -> dict[str, dict[str, int]]:
        """After wait(): the counters at exit."""
        return parse_stats(self.stats_path.read_text())

    def open_flags(self, file: str | Path) -> list[int]:
        """Open flags of every descriptor the machine holds on `file` (from fdinfo): no O_SYNC, no O_DSYNC may be in."""
        found, wanted = [], os.stat(file)
        base = Path("/proc") / str(self.process.pid)
        for fd in (base / "fd").iterdir():
            try:
                there = os.stat(fd)
                if (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino):
                    text = (base / "fdinfo" / fd.name).read_text()
                    found.append(int(re.search(r"^flags:\s+([0-7]+)", text, re.M)[1], 8))
            except FileNotFoundError:
                continue
        return found

    def wait(self, timeout: float | None = None) -> int:
        """Exit status of the monitor, negative if a signal ended it."""
        try:
            status = self.process.wait(self.timeout if timeout is None else timeout)
        except subprocess.TimeoutExpired:
            raise Error(f"{self.name}: the machine does not end; the console says: {self.tail()}") from None
        self._reader.join()
        return status

    def kill(self) -> None:
        """SIGKILL, the power cut. Everything the guest said before is in `events` when this returns."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def last(self, kind: str) -> int:
        """The highest n of "ACK n" or "SYNC n", 0 if there was none."""
        return max((int(e.words[0]) for e in self.events if e.kind == kind), default=0)

    def tail(self) -> str:
        lines = self.console_path.read_text(errors="replace").split("\n") if self.console_path.exists() else []
        return " | ".join(line.strip() for line in lines[-6:] if line.strip()) or "nothing"

    def last_words(self) -> str:
        """Of a kernel that panicked, or of the monitor when a processor ended in a triple fault; empty if neither happened."""
        for path, mark in ((self.console_path, "Kernel panic"), (self.stderr_path, "triple fault")):
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            for line in lines:
                if mark in line:
                    return line.strip()
        return ""

    def stderr(self) -> str:
        return " | ".join(self.stderr_path.read_text(errors="replace").split("\n")[-4:]).strip(" |") or "nothing"


def emulated() -> bool:
    """True in with-kvm's machine, whose processor is QEMU's emulation."""
    return "QEMU TCG" in Path("/proc/cpuinfo").read_text(errors="replace")


def unexpected_death() -> str:
    """The last words of a guest started in this process that died without being meant to; empty if all are well."""
    for machine in _started:
        if not machine.meant_to_die and (words := machine.last_words()):
            return f"{machine.name}: {words}"
    return ""


def records(images: guestimage.Images, image: str | Path, *, count: int, size: int = 4096, offset: int = 0) -> Event:
    """What `blkload ack` left in a raw image: values whole, torn, last, holes, ranges."""
    done = subprocess.run([str(images.blkload), "records", str(image), "--count", str(count), "--size", str(size),
                           "--offset", str(offset)], capture_output=True, text=True)
    event = parse_line(done.stdout.strip())
    if done.returncode != 0 or event is None:
        raise Error(f"cannot read the records of {image}: {done.stderr.strip()}")
    return event
