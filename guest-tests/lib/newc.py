"""Write cpio archives in the kernel's "newc" form, byte for byte reproducible.

Entries are sorted, owned by root, dated 1970; inode numbers count up. The kernel unpacks archives
that follow each other, so one can be appended to another: output is padded to 512 bytes.
"""

import dataclasses
import stat


@dataclasses.dataclass(frozen=True)
class Entry:
    mode: int                  # file type and permissions
    data: bytes = b""          # contents, or the target of a symbolic link
    device: tuple = (0, 0)     # major, minor of a device node


def directory() -> Entry:
    return Entry(stat.S_IFDIR | 0o755)


def file(data: bytes, mode: int = 0o644) -> Entry:
    return Entry(stat.S_IFREG | mode, data)


def symlink(target: str) -> Entry:
    return Entry(stat.S_IFLNK | 0o777, target.encode())


def character_device(major: int, minor: int, mode: int = 0o600) -> Entry:
    return Entry(stat.S_IFCHR | mode, b"", (major, minor))


def _record(name: str, entry: Entry, inode: int) -> bytes:
    path = name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(path), 0)
    header = b"070701" + b"".join(b"%08X" % f for f in fields) + path
    return header + bytes(-len(header) % 4) + entry.data + bytes(-len(entry.data) % 4)


def archive(entries: dict[str, Entry]) -> bytes:
    """Paths are relative, without a leading slash; missing parent directories are added."""
    everything = dict(entries)
    for path in entries:
        while "/" in path:
            path = path.rpartition("/")[0]
            everything.setdefault(path, directory())
    out = bytearray()
    for inode, (path, entry) in enumerate(sorted(everything.items()), 1):
        out += _record(path, entry, inode)
    out += _record("TRAILER!!!", Entry(0), 0)
    return bytes(out + bytes(-len(out) % 512))
