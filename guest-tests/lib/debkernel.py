"""Debian's kernel packages, downloaded and unpacked but never installed.

Two flavours are used:

  cloud   linux-image-cloud-amd64: small, ext4 built in; boots as the guest of `spindle run`
  full    linux-image-amd64: has 9p and kvm-amd; runs the machine that with-kvm starts

What lands in the cache (one directory per package version, plus one link per flavour):

  CACHE/kernels/cloud -> linux-image-6.1.0-57-cloud-amd64_6.1.192-3
  CACHE/kernels/<package>_<version>/
      vmlinuz         the bzImage as shipped
      vmlinux         the ELF kernel cut out of it
      lib/modules/RELEASE/...

A directory is complete or absent: everything is made in a temporary directory and renamed.
One flock serialises everybody who prepares kernels in the same cache.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import lzma
import os
import re
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

METAPACKAGES = {"cloud": "linux-image-cloud-amd64", "full": "linux-image-amd64"}


class Error(Exception):
    """One line that says what went wrong and what to do."""


class Unavailable(Error):
    """No network or no mirror that has the kernel: no fault of this host or of ours. Programs exit with EX_TEMPFAIL."""


# What apt says when a download fails for a reason of this host's own; all else is the network's or the mirror's.
_OWN_FAULT = re.compile(r"No space left|Read-only file system|Permission denied|Hash Sum mismatch|is not signed|GPG error|"
                        r"could not be authenticated|The list of sources could not be read|Malformed entry", re.I)


@dataclasses.dataclass(frozen=True)
class Kernel:
    flavour: str
    release: str       # uname -r, e.g. 6.1.0-57-cloud-amd64
    vmlinux: Path
    bzimage: Path
    modules: Path      # .../lib/modules/RELEASE


def cache_dir() -> Path:
    if os.environ.get("SPINDLE_CACHE"):
        return Path(os.environ["SPINDLE_CACHE"]).absolute()
    return Path(os.path.expanduser("~/.cache/spindle"))


# --- cutting vmlinux out of a bzImage ---------------------------------------------------------

def _lz4_legacy(data: bytes) -> bytes:
    """The legacy LZ4 frame the kernel uses: magic, then (u32 size, block) up to 8 MiB each."""
    try:
        lz4 = ctypes.CDLL("liblz4.so.1")
    except OSError:
        raise Error("liblz4.so.1 is missing, cannot unpack the kernel: install liblz4-1") from None
    block_max = 8 << 20
    out, buffer, pos = bytearray(), ctypes.create_string_buffer(block_max), 4
    while pos + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, pos)
        pos += 4
        if size == 0x184C2102:  # frames may be concatenated
            continue
        block = data[pos:pos + size]
        got = lz4.LZ4_decompress_safe(block, buffer, len(block), block_max) if len(block) == size else -1
        if got < 0:
            raise Error("the kernel's LZ4 payload is damaged: delete the cache directory and prepare it again")
        out += buffer.raw[:got]
        pos += size
    return bytes(out)


def _zstd(data: bytes) -> bytes:
    try:
        return subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as e:
        raise Error(f"cannot unpack a zstd kernel ({e}): install zstd") from None


def extract_vmlinux(bzimage: bytes) -> bytes:
    """The ELF file inside a bzImage (boot protocol 2.08 or later says where the payload is)."""
    if bzimage[0x202:0x206] != b"HdrS" or struct.unpack_from("<H", bzimage, 0x206)[0] < 0x208:
        raise Error("this kernel is no bzImage with boot protocol 2.08 or later")
    setup_sectors = bzimage[0x1F1] or 4
    offset, length = struct.unpack_from("<II", bzimage, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = bzimage[start:start + length]
    # All but gzip have the unpacked size appended as a u32 (gzip's own trailer is the same thing).
    (size,) = struct.unpack_from("<I", payload, len(payload) - 4)
    body = payload[:-4]
    if payload.startswith(b"\x02\x21\x4c\x18"):
        image = _lz4_legacy(body)
    elif payload.startswith(b"\xfd7zXZ\0"):
        image = lzma.decompress(body, format=lzma.FORMAT_XZ)
    elif payload.startswith(b"\x1f\x8b"):
        image = zlib.decompressobj(wbits=31).decompress(payload)
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        image = _zstd(body)
    elif payload.startswith(b"\x7fELF"):
        return payload
    else:
        raise Error(f"unknown kernel compression (magic {payload[:4].hex()})")
    if len(image) != size or not image.startswith(b"\x7fELF"):
        raise Error(f"unpacked kernel is {len(image)} bytes, {size} expected, or no ELF: the package is damaged")
    return image


# --- getting the package ----------------------------------------------------------------------

def _run(*command, cwd=None) -> subprocess.CompletedProcess:
    env = dict(os.environ, LC_ALL="C")
    try:
        return subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as e:
        raise Error(f"cannot run {command[0]}: {e.strerror}") from None


def _image_package(meta: str) -> str | None:
    found = re.search(r"^\s+Depends: (linux-image-\S+)", _run("apt-cache", "depends", meta).stdout, re.M)
    return found.group(1) if found else None


def _update_lists() -> str:
    """Empty if that went well, else why not."""
    if os.geteuid() != 0:
        return "only root may refresh apt's lists"
    result = _run("apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update")
    return "" if result.returncode == 0 else " ".join(result.stderr.split()) or "apt-get update failed"


def _download(flavour: str, into: Path) -> Path:
    """Download the package the flavour's metapackage depends on now; stale or missing lists are refreshed once."""
    meta, said = METAPACKAGES[flavour], ""
    for refreshed in (False, True):
        if refreshed and (why := _update_lists()):
            said = said if why == said else f"{said}; {why}"
            break
        package = _image_package(meta)
        if package is None:
            said = f"apt knows no package {meta}"
            continue
        options = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
        result = _run("apt-get", "-q", *options, "download", package, cwd=into)
        debs = list(into.glob("*.deb"))
        if result.returncode == 0 and debs:
            return debs[0]
        said = " ".join((result.stderr or result.stdout).split()) or f"apt-get download {package} failed"
    kind = Error if _OWN_FAULT.search(said) else Unavailable
    raise kind(f"cannot download the {flavour} kernel: {said}; check the network, run `apt-get update` as root and try again")


def _local_deb(flavour: str, directory: Path) -> Path:
    wanted = re.compile(r"linux-image-[0-9.]+-\d+-(cloud-)?amd64_.*\.deb$")
    debs = [d for d in sorted(directory.glob("linux-image-*.deb"))
            if (m := wanted.match(d.name)) and bool(m.group(1)) == (flavour == "cloud")]
    if not debs:
        raise Error(f"no {flavour} kernel package in {directory}: put a linux-image-*.deb there or leave --debs away")
    return debs[-1]


# --- the cache --------------------------------------------------------------------------------

def _describe(flavour: str, where: Path) -> Kernel:
    releases = sorted((where / "lib/modules").iterdir())
    return Kernel(flavour, releases[0].name, where / "vmlinux", where / "vmlinuz", releases[0])


def find(flavour: str, cache: Path | None = None) -> Kernel | None:
    """The prepared kernel of this flavour, or None. Never touches the network."""
    link = (cache or cache_dir()) / "kernels" / flavour
    return _describe(flavour, link.resolve()) if link.exists() else None


def _install(deb: Path, kernels: Path, work: Path) -> Path:
    info = _run("dpkg-deb", "-f", str(deb), "Package", "Version")
    fields = dict(re.findall(r"^(Package|Version): (\S+)$", info.stdout, re.M))
    if len(fields) != 2:
        raise Error(f"{deb} is no Debian package: delete it and try again")
    target = kernels / f"{fields['Package']}_{fields['Version'].replace(':', '%3a')}"
    if target.exists():
        return target
    unpacked, ready = work / "unpacked", work / "ready"
    result = _run("dpkg-deb", "-x", str(deb), str(unpacked))
    if result.returncode != 0:
        raise Error(f"cannot unpack {deb}: {' '.join(result.stderr.split())}")
    ready.mkdir()
    (image,) = (unpacked / "boot").glob("vmlinuz-*")
    tree = unpacked / "lib" if (unpacked / "lib/modules").is_dir() else unpacked / "usr/lib"
    os.rename(image, ready / "vmlinuz")
    (ready / "lib").mkdir()
    os.rename(tree / "modules", ready / "lib/modules")
    (ready / "vmlinux").write_bytes(extract_vmlinux((ready / "vmlinuz").read_bytes()))
    os.rename(ready, target)
    return target


@contextlib.contextmanager
def locked(path: Path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare(flavour: str, cache: Path | None = None, debs: Path | None = None, update: bool = False) -> Kernel:
    """Make sure the kernel is in the cache. What is there is used as it is, without asking apt, unless `update`."""
    if flavour not in METAPACKAGES:
        raise Error(f"unknown kernel flavour {flavour!r}: use {' or '.join(METAPACKAGES)}")
    kernels = (cache or cache_dir()) / "kernels"
    present = find(flavour, cache)
    if present and not update:  # complete, so no lock is needed, and the cache may be read-only
        return present
    try:
        with locked(kernels / ".lock"):
            present = find(flavour, cache)  # somebody may have been faster
            if present and not update:
                return present
            with tempfile.TemporaryDirectory(prefix=".preparing-", dir=kernels) as work:
                work = Path(work)
                deb = _local_deb(flavour, debs) if debs else _download(flavour, work)
                target = _install(deb, kernels, work)
                os.symlink(target.name, work / "link")
                os.rename(work / "link", kernels / flavour)
            return _describe(flavour, target)
    except OSError as e:
        raise Error(f"cannot prepare the {flavour} kernel in {kernels}: {e.strerror} ({e.filename}); "
                    "set SPINDLE_CACHE to a directory with 1 GB free") from None
