"""Just enough ELF (64-bit, little-endian): what a program needs to run, and what a kernel module says of itself."""

import functools
import glob
import os
import struct
from pathlib import Path

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 1, 5, 15, 29

# Where Debian's ld.so looks without any ld.so.cache.
BUILTIN_DIRECTORIES = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib", "/lib64", "/usr/lib64")


class NotElf(Exception):
    pass


def _string(data: bytes, at: int) -> str:
    return data[at:data.index(b"\0", at)].decode()


def _check(data: bytes) -> None:
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        raise NotElf


def sections(data: bytes) -> dict[str, bytes]:
    _check(data)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    return {_string(data, strings + h[0]): data[h[4]:h[4] + h[5]] for h in headers}


class Program:
    """The dynamic linker's view of an executable or shared library."""

    def __init__(self, path: Path):
        data = path.read_bytes()
        _check(data)
        self.path, self.machine = path, struct.unpack_from("<H", data, 18)[0]
        self.interpreter, self.needed, self.search = None, [], []
        (table,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        loads, dynamic = [], []
        for i in range(count):
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, table + i * size)
            if kind == PT_LOAD:
                loads.append((address, length, offset))
            elif kind == PT_INTERP:
                self.interpreter = _string(data, offset)
            elif kind == PT_DYNAMIC:
                dynamic = list(struct.iter_unpack("<qQ", data[offset:offset + length - length % 16]))
        strings = next((v for tag, v in dynamic if tag == DT_STRTAB), None)
        if strings is None:
            return
        base = next(o + strings - a for a, n, o in loads if a <= strings < a + n)
        for tag, value in dynamic:
            if tag == DT_NEEDED:
                self.needed.append(_string(data, base + value))
            elif tag in (DT_RPATH, DT_RUNPATH):
                origin = str(path.resolve().parent)
                self.search += [d.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
                                for d in _string(data, base + value).split(":") if d]


@functools.cache
def _configured_directories(conf: str = "/etc/ld.so.conf") -> tuple[str, ...]:
    found = []
    try:
        lines = Path(conf).read_text().splitlines()
    except OSError:
        return ()
    for line in lines:
        words = line.split("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                for name in sorted(glob.glob(os.path.join(os.path.dirname(conf), pattern))):
                    found += _configured_directories(name)
        else:
            found += words
    return tuple(found)


def shared_objects(program: Path) -> dict[str, Path]:
    """Everything `program` needs besides itself: {path the guest must have it at: file on this host}.

    Libraries that ld.so would find only through its cache are given a place in /usr/lib.
    Raises NotElf if it is no ELF program, FileNotFoundError naming a library that is not there.
    """
    result, queue, seen = {}, [Program(program)], set()
    while queue:
        user = queue.pop()
        if user.interpreter:
            result[user.interpreter] = Path(user.interpreter)
        for name in user.needed:
            if name in seen:
                continue
            seen.add(name)
            for directory in (*user.search, *BUILTIN_DIRECTORIES, *_configured_directories()):
                candidate = Path(directory, name)
                try:
                    library = Program(candidate)
                except (OSError, NotElf):
                    continue
                if library.machine == user.machine:
                    break
            else:
                raise FileNotFoundError(f"{user.path} needs {name}, which is nowhere on this machine")
            known = directory in user.search or directory in BUILTIN_DIRECTORIES
            result[str(candidate) if known else f"/usr/lib/{name}"] = candidate
            queue.append(library)
    return result
