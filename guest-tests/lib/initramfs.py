"""Build the initramfs of a test machine.

The image is laid out like Debian (/bin, /sbin, /lib, /lib64 point into /usr) and contains busybox, device
nodes for the first moments, and what is asked for. Kernel modules are put in /lib/modules/NAME.ko;
/lib/modules/order lists them one a line in the order in which to load them.

Reproducible: the same input gives the same bytes, on any day and in any directory.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import elf
import kmods
import newc

MERGED = ("bin", "sbin", "lib", "lib64")


class Error(Exception):
    """One line that says what went wrong and what to do."""


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise Error(f"cannot read {what} {path}: {e.strerror}") from None


def find_program(name: str) -> Path:
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    found = shutil.which(name, path=path)
    if not found:
        raise Error(f"program {name} is not on this machine: run scripts/install-deps --guest")
    return Path(found)


class Initramfs:
    def __init__(self, modules_dir: Path | None = None):
        """`modules_dir` (.../lib/modules/RELEASE) is only needed when modules are asked for."""
        self._tree = kmods.ModuleTree(Path(modules_dir)) if modules_dir else None
        self._modules: list[str] = []
        self._entries: dict[str, newc.Entry] = {}

    # Every adder returns self, so calls can be chained.

    def base(self) -> "Initramfs":
        """Directories, device nodes and busybox with `sh`; everything but an archive to append wants it."""
        for name in MERGED:
            self._entries[name] = newc.symlink(f"usr/{name}")
            self._entries[f"usr/{name}"] = newc.directory()
        for name in ("dev", "proc", "sys", "tmp", "run", "etc", "mnt"):
            self._entries[name] = newc.directory()
        for name, numbers in (("console", (5, 1)), ("null", (1, 3)), ("kmsg", (1, 11))):
            self._entries[f"dev/{name}"] = newc.character_device(*numbers)
        self._busybox = find_program("busybox")
        if elf.Program(self._busybox).interpreter:
            raise Error(f"{self._busybox} is dynamically linked: install busybox-static")
        self.file(self._busybox, "/bin/busybox")
        return self.applets("sh")

    def _put(self, destination: str, entry: newc.Entry) -> "Initramfs":
        path = os.path.normpath(destination).lstrip("/")
        if path.split("/")[0] in MERGED:
            path = f"usr/{path}"
        self._entries[path] = entry
        return self

    def data(self, destination: str, contents: bytes | str, mode: int = 0o644) -> "Initramfs":
        return self._put(destination, newc.file(contents.encode() if isinstance(contents, str) else contents, mode))

    def file(self, source: Path, destination: str, executable: bool | None = None) -> "Initramfs":
        source = Path(source)
        contents = _read(source, "file")
        if executable is None:
            executable = os.access(source, os.X_OK)
        return self.data(destination, contents, 0o755 if executable else 0o644)

    def init(self, source: Path) -> "Initramfs":
        return self.file(source, "/init", executable=True)

    def applets(self, *names: str) -> "Initramfs":
        """Links to busybox; "all" means all it has."""
        listed = subprocess.run([self._busybox, "--list-full"], capture_output=True, text=True, check=True).stdout.split()
        paths = {os.path.basename(p): p for p in listed}
        for name in sorted(paths) if "all" in names else names:
            if name not in paths:
                raise Error(f"busybox has no applet {name}: use --with-program for a real program")
            destination = paths[name]
            merged = destination if destination.startswith("usr/") else f"usr/{destination}"
            if merged not in self._entries and os.path.basename(destination) != "busybox":
                self._put(destination, newc.symlink("/bin/busybox"))
        return self

    def program(self, name: str, destination: str | None = None) -> "Initramfs":
        """A program of this host, by name or path, with the shared libraries it needs."""
        path = Path(name) if "/" in name else find_program(name)
        contents = _read(path, "program")
        try:
            libraries = elf.shared_objects(path)
        except elf.NotElf:
            raise Error(f"{path} is no ELF program: add a script with --file SRC=DEST") from None
        except FileNotFoundError as e:
            raise Error(str(e)) from None
        self.data(destination or str(path), contents, 0o755)
        for where, library in libraries.items():
            self.data(where, _read(library, "library"), 0o755)
        return self

    def modules(self, *names: str) -> "Initramfs":
        self._modules += names
        return self

    def build(self) -> bytes:
        entries = dict(self._entries)
        if self._modules:
            if not self._tree:
                raise Error("modules were asked for without saying of which kernel (--modules-dir)")
            try:
                order = self._tree.load_order(self._modules)
                for name in order:
                    entries[f"usr/lib/modules/{name}.ko"] = newc.file(self._tree.contents(name))
            except kmods.UnknownModule as e:
                raise Error(str(e)) from None
            entries["usr/lib/modules/order"] = newc.file("".join(f"{n}\n" for n in order).encode())
        return newc.archive(entries)

    def write(self, path: Path) -> Path:
        return _write_whole(Path(path), self.build())

    def cached(self, cache: Path) -> Path:
        """Write to a file named after its contents, so that equal images are one file and can be shared."""
        image = self.build()
        path = Path(cache) / "initramfs" / f"{hashlib.sha256(image).hexdigest()[:32]}.cpio"
        return path if path.exists() else _write_whole(path, image)


def _write_whole(path: Path, contents: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(contents)
            os.chmod(temporary, 0o644)
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as e:
        raise Error(f"cannot write {path}: {e.strerror}") from None
    return path
