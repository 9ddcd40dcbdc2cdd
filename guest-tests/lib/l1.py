"""A machine with /dev/kvm for hosts that have none: QEMU's TCG emulates AMD SVM, Debian's kvm-amd runs on it.

start() boots it with the host's / as its root, runs one command there and gives back its exit status.
See with-kvm for what it promises, l1/init for what happens inside.
"""

import os
import secrets
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import debkernel
import initramfs
import processes

HERE = Path(__file__).resolve().parent.parent
SCRATCH = "/run/spindle/scratch"
FRESH = ("/tmp", "/run", "/var/tmp", "/dev/shm")  # of the host; the machine has a tmpfs of its own there
HIDDEN = (*FRESH, "/dev", "/proc", "/sys")
MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "kvm_amd")
SCRATCH_MODULES = ("virtio_blk", "ext4", "crc32c_generic")
# A periodic tick (nohz, highres), in case an emulated timer interrupt gets lost: the next tick makes up for it, while a
# processor without one waits for ever ("Guests in emulated SVM" in README.md).
COMMAND_LINE = ("console=ttyS0 quiet loglevel=3 nokaslr mitigations=off no_timer_check tsc=reliable "
                "nohz=off highres=off panic=-1 rdinit=/init")


class Error(Exception):
    """One line that says what went wrong and what to do."""


class Lost(Error):
    """The machine ended before the command did."""


def _qemu() -> str:
    qemu = shutil.which("qemu-system-x86_64")
    if not qemu:
        raise Error("qemu-system-x86_64 is not installed: run scripts/install-deps --guest")
    return qemu


def make_scratch(path: Path, size: str) -> None:
    mke2fs = initramfs.find_program("mke2fs")
    with open(path, "wb") as f:
        f.truncate(parse_size(size))
    # Its own files are what is tested there, so nothing lazy may write behind a test's back.
    made = subprocess.run([mke2fs, "-q", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
                           "-O", "^has_journal", "-m", "0", str(path)], capture_output=True, text=True)
    if made.returncode != 0:
        raise Error(f"cannot make the scratch file system: {' '.join(made.stderr.split())}")


def parse_size(text: str) -> int:
    number, unit = text[:-1], text[-1:].upper()
    if text.isdigit():
        number, unit = text, ""
    if not number.isdigit() or unit not in ("", "K", "M", "G"):
        raise Error(f"{text!r} is no size: write it like 512M or 2G")
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def _command_script(command: list[str], environment: dict[str, str], directory: str) -> str:
    """A /bin/sh script that runs `command` with exactly this environment in this directory."""
    settings = [f"{name}={value}" for name, value in sorted(environment.items())]
    return (f"cd {shlex.quote(directory)} || exit 125\n"
            f"exec env -i {shlex.join(settings)} /bin/sh -c 'exec \"$@\"' with-kvm {shlex.join(command)}\n")


def _inside(path: str, directories) -> bool:
    return any(os.path.commonpath((path, d)) == d for d in directories)


def _hidden(directory: str, shared: list[str]) -> bool:
    directory = os.path.realpath(directory)
    return _inside(directory, HIDDEN) and not _inside(directory, shared)


def _lent(directories, rw: list[str]) -> list[str]:
    """Those of the directories to share read-only, because a tmpfs of the machine would hide them, outermost first.

    A tmpfs itself is never replaced: a program that is started in /tmp still wants to write there.
    """
    lent: list[str] = []
    for directory in sorted({os.path.realpath(d) for d in directories}, key=len):
        if (_inside(directory, FRESH) and directory not in FRESH and not _inside(directory, (*rw, *lent))
                and not _inside(SCRATCH, (directory,)) and os.path.isdir(directory)):
            lent.append(directory)
    return lent


def _check_directory(directory: str, shared: list[str]) -> None:
    if _hidden(directory, shared):
        raise Error(f"the working directory {directory} does not exist in the machine, which has its own "
                    f"{next(d for d in HIDDEN if _inside(directory, (d,)))}: add --rw {shlex.quote(directory)} or start elsewhere")


def _initrd(work: Path, kernel: debkernel.Kernel, command: list[str], ro: list[str], rw: list[str], scratch: bool,
            verbose: bool, environment: dict[str, str], token: str) -> Path:
    base = (initramfs.Initramfs(kernel.modules).base().init(HERE / "l1/init").modules(*MODULES)
            .modules(*(SCRATCH_MODULES if scratch else ())).cached(debkernel.cache_dir()))
    conf = f"token={token}\nro={shlex.quote(chr(10).join(ro))}\nrw={shlex.quote(chr(10).join(rw))}\n"
    conf += f"scratch={'yes' if scratch else ''}\nverbose={'yes' if verbose else ''}\n"
    own = initramfs.Initramfs().data("/etc/l1.conf", conf).data(
        "/etc/l1.command", _command_script(command, environment, os.getcwd())).build()
    path = work / "initrd"
    path.write_bytes(base.read_bytes() + own)
    return path


def _arguments(qemu: str, work: Path, kernel: debkernel.Kernel, initrd: Path, smp: int, mem: int, ro: list[str],
               rw: list[str], scratch: Path | None, ports: dict[str, int]) -> list[str]:
    arguments = [qemu, "-accel", "tcg,thread=multi", "-machine", "pc", "-cpu", "max", "-smp", str(smp), "-m", str(mem),
                 "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                 "-kernel", str(kernel.vmlinux), "-initrd", str(initrd), "-append", COMMAND_LINE,
                 "-serial", f"file:{work}/console", "-device", "virtio-serial-pci,max_ports=8"]
    for name, fd in ports.items():
        arguments += ["-chardev", f"file,id={name},path=/dev/fd/{fd}",
                      "-device", f"virtserialport,chardev={name},name={name}"]
    shares = [("root", "/", ",readonly=on"), *((f"ro{i}", d, ",readonly=on") for i, d in enumerate(ro)),
              *((f"rw{i}", d, "") for i, d in enumerate(rw))]
    for tag, directory, option in shares:
        quoted = directory.replace(",", ",,")
        arguments += ["-fsdev", f"local,id={tag},path={quoted},security_model=none,multidevs=remap{option}",
                      "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    if scratch:
        arguments += ["-drive", f"if=none,id=scratch,file={scratch},format=raw,cache=unsafe",
                      "-device", "virtio-blk-pci,drive=scratch"]
    return arguments


class _Stream:
    """One output of the machine, copied to a descriptor of ours until the token that ends it."""

    def __init__(self, target: int, token: bytes):
        self._target, self._token, self._held, self.ended = target, token, b"", False

    def feed(self, data: bytes) -> None:
        if self.ended:  # of something the command left running
            return
        data = self._held + data
        before, found, _ = data.partition(self._token)
        self.ended = bool(found)
        keep = 0 if found else next((n for n in range(min(len(self._token), len(data)), 0, -1)
                                     if data.endswith(self._token[:n])), 0)
        self._held = data[len(data) - keep:] if keep else b""
        self._write(before[:len(before) - keep])

    def flush(self) -> None:
        """The machine is gone: what looked like the beginning of the token was none."""
        self._write(self._held)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._target, data):]


def _forward(pipes: dict[str, int], token: bytes, deadline: float | None) -> bytes:
    """Copy the machine's stdout and stderr to ours until both have ended and it told an exit status, or it dies."""
    status = b""
    streams = {pipes["out"]: _Stream(1, token), pipes["err"]: _Stream(2, token)}
    with selectors.DefaultSelector() as selector:
        for fd in pipes.values():
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and not (status.endswith(b"\n") and all(s.ended for s in streams.values())):
            remaining = None if deadline is None else deadline - time.monotonic()
            ready = selector.select(remaining) if remaining is None or remaining > 0 else []
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                elif key.fd in streams:
                    streams[key.fd].feed(data)
                else:
                    status += data
    for stream in streams.values():
        stream.flush()
    return status


def start(command: list[str], *, smp: int, mem: int, rw: list[str], scratch: str | None, timeout: float | None,
          verbose: bool) -> int:
    """Run `command` in the machine; its exit status. Raises Error, TimeoutError; whatever happens, no QEMU stays."""
    deadline = None if timeout is None else time.monotonic() + timeout
    qemu_path = _qemu()
    kernel = debkernel.prepare("full")
    ro = _lent((HERE.parent, os.getcwd(), debkernel.cache_dir()), rw)
    _check_directory(os.getcwd(), [*ro, *rw])
    with tempfile.TemporaryDirectory(prefix="with-kvm-") as work:
        work = Path(work)
        environment, disk = dict(os.environ), None
        temporary = environment.get("TMPDIR")
        if temporary and _hidden(temporary, rw):
            del environment["TMPDIR"]
        if scratch:
            disk = work / "scratch"
            make_scratch(disk, scratch)
            environment["SPINDLE_SCRATCH"] = SCRATCH
        token = f"end-{secrets.token_hex(16)}"
        initrd = _initrd(work, kernel, command, ro, rw, bool(scratch), verbose, environment, token)
        pipes = {name: os.pipe() for name in ("out", "err", "rc")}
        writers = {name: pair[1] for name, pair in pipes.items()}
        with (work / "qemu").open("w") as log:
            qemu = subprocess.Popen(_arguments(qemu_path, work, kernel, initrd, smp, mem, ro, rw, disk, writers),
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                                    pass_fds=list(writers.values()), start_new_session=True, preexec_fn=processes.tied())
        for fd in writers.values():
            os.close(fd)
        try:
            status = _forward({name: pair[0] for name, pair in pipes.items()}, token.encode(), deadline)
            how = "" if status.strip().isdigit() else _end_of(qemu)
        finally:
            qemu.kill()
            qemu.wait()
            if verbose:
                sys.stderr.write((work / "console").read_text(errors="replace") if (work / "console").exists() else "")
        if not status.strip().isdigit():
            raise Lost(f"the machine ended without an exit status ({how}): {_last_words(work)}")
        return int(status)


def _end_of(qemu: subprocess.Popen) -> str:
    try:
        status = qemu.wait(timeout=5)  # its pipes may have closed a moment before
    except subprocess.TimeoutExpired:
        return "its QEMU still runs"
    return f"its QEMU ended with {status}" if status else "it was switched off or reset itself"


def _last_words(work: Path) -> str:
    for name in ("qemu", "console"):
        path = work / name
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        lines = [line.strip() for line in lines if line.strip()]
        if lines:
            return lines[-1]
    return "it said nothing (try -v)"
