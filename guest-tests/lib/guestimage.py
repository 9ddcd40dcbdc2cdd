"""What a test guest boots: kernel, initramfs with the guest/ scripts, and the blkload helper.

images() prepares all of it in the cache and is meant for the host. It is slow inside with-kvm's machine, where
the cache cannot be written either; so prepare-guest runs it first and hands the result on in the environment
(SPINDLE_GUEST_*), which images() then believes.
"""

import dataclasses
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import debkernel
import initramfs

HERE = Path(__file__).resolve().parent.parent
MODULES = ("ata_piix", "sd_mod", "sg", "virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "pvpanic-mmio", "button", "evdev",
           "sr_mod", "isofs")
PROGRAMS = ("sg_sat_set_features", "sg_sat_identify", "hdparm", "mkfs.ext4", "blkdiscard")


@dataclasses.dataclass(frozen=True)
class Images:
    vmlinux: Path
    bzimage: Path
    initrd: Path       # without a scenario of its own; see with_more()
    blkload: Path      # also of use on the host: `blkload records IMAGE`

    def environment(self) -> dict[str, str]:
        return {f"SPINDLE_GUEST_{f.name.upper()}": str(getattr(self, f.name)) for f in dataclasses.fields(self)}


def blkload(cache: Path | None = None) -> Path:
    """The static helper: $SPINDLE_BLKLOAD (a build system's), else compiled into the cache once per version."""
    if os.environ.get("SPINDLE_BLKLOAD"):
        return Path(os.environ["SPINDLE_BLKLOAD"])
    source = HERE / "guest/blkload.c"
    flags = ["-static", "-O2", "-Wall", "-std=gnu11"]
    key = hashlib.sha256(source.read_bytes() + " ".join(flags).encode()).hexdigest()[:32]
    binary = (cache or debkernel.cache_dir()) / "blkload" / key
    if not binary.exists():
        compiler = shutil.which("gcc") or shutil.which("cc")
        if not compiler:
            raise initramfs.Error("no C compiler for blkload: run scripts/install-deps --build")
        binary.parent.mkdir(parents=True, exist_ok=True)
        temporary = binary.with_name(f".{key}.{os.getpid()}")
        made = subprocess.run([compiler, *flags, "-o", temporary, source], capture_output=True, text=True)
        if made.returncode != 0:
            raise initramfs.Error(f"cannot compile {source}: {' '.join(made.stderr.split())}")
        temporary.rename(binary)
    return binary


def images(flavour: str = "cloud", *, modules=(), programs=(), files=()) -> Images:
    """`modules`, `programs` and `files` (pairs SOURCE, DESTINATION) come on top of what every guest has."""
    if flavour == "cloud" and not (modules or programs or files) and os.environ.get("SPINDLE_GUEST_INITRD"):
        return Images(*(Path(os.environ[f"SPINDLE_GUEST_{f.name.upper()}"]) for f in dataclasses.fields(Images)))
    kernel = debkernel.prepare(flavour)
    helper = blkload()
    image = (initramfs.Initramfs(kernel.modules).base().applets("all").init(HERE / "guest/init")
             .file(HERE / "guest/lib.sh", "/lib.sh").file(helper, "/bin/blkload", executable=True)
             .modules(*MODULES, *modules))
    for script in sorted((HERE / "guest/scenarios").glob("*.sh")):
        image.file(script, f"/scenarios/{script.name}")
    for program in (*PROGRAMS, *programs):
        image.program(program)
    for source, destination in files:
        image.file(source, destination)
    return Images(kernel.vmlinux, kernel.bzimage, image.cached(debkernel.cache_dir()), helper)


def with_more(initrd: Path, output: Path, *, script: str = "", init: str = "", programs=()) -> Path:
    """A copy of the initramfs that runs `script` (shell text, lib.sh is sourced already), or has another `init`, and more host programs."""
    more = initramfs.Initramfs()
    if init:
        more.data("/init", init, 0o755)
    if script:
        more.data("/scenario", script)
    for program in programs:
        more.program(program)
    output.write_bytes(initrd.read_bytes() + more.build())
    return output
