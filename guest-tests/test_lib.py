#!/usr/bin/env python3
"""Tests of the guest-test library that need no machine: archives, modules, ELF, console and statistics parsing."""

import io
import lzma
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
import debkernel
import elf
import guestimage
import guestrun
import initramfs
import kmods
import kvmprobe
import l1
import newc


def modinfo_object(depends: str) -> bytes:
    """The least ELF file with a .modinfo section."""
    info, names = b"license=GPL\0depends=" + depends.encode() + b"\0", b"\0.modinfo\0.shstrtab\0"
    body = info + names
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 3, 2)
    section = lambda name, offset, size: struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)
    return header + body + bytes(64) + section(1, 64, len(info)) + section(10, 64 + len(info), len(names))


class Newc(unittest.TestCase):
    def test_parents_are_added_and_bytes_do_not_depend_on_order(self):
        a = newc.archive({"b/c/d": newc.file(b"1"), "a": newc.symlink("b")})
        b = newc.archive({"a": newc.symlink("b"), "b/c/d": newc.file(b"1")})
        self.assertEqual(a, b)
        self.assertEqual(len(a) % 512, 0)
        self.assertLess(a.index(b"b/c\0"), a.index(b"b/c/d\0"))

    def test_cpio_reads_it(self):
        image = newc.archive({"d/f": newc.file(b"hello", 0o600), "n": newc.character_device(1, 3), "l": newc.symlink("d/f")})
        listed = subprocess.run(["cpio", "-itv", "--quiet"], input=image, capture_output=True)
        lines = [line.split() for line in listed.stdout.decode().splitlines()]
        self.assertEqual([(line[0], line[-1]) for line in lines],
                         [("drwxr-xr-x", "d"), ("-rw-------", "d/f"), ("lrwxrwxrwx", "d/f"), ("crw-------", "n")])
        self.assertTrue(all(line[2:4] == ["root", "root"] for line in lines))


class Modules(unittest.TestCase):
    def tree(self, modules: dict[str, str], builtin=()) -> kmods.ModuleTree:
        directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path, depends in modules.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(modinfo_object(depends))
        (directory / "modules.order").write_text("".join(f"{p}\n" for p in modules))
        (directory / "modules.builtin").write_text("".join(f"{p}\n" for p in builtin))
        return kmods.ModuleTree(directory)

    def test_dependencies_come_first_and_once(self):
        tree = self.tree({"k/top-one.ko": "mid_a,mid_b", "k/mid_a.ko": "low", "k/mid-b.ko": "low,crc", "k/low.ko": ""}, ["k/crc.ko"])
        self.assertEqual(tree.load_order(["top_one", "low", "crc"]), ["low", "mid_a", "mid_b", "top_one"])

    def test_unknown_module_is_one_line(self):
        with self.assertRaisesRegex(kmods.UnknownModule, "^kernel .* has no module nonsense, [^\n]*$"):
            self.tree({}).load_order(["nonsense"])

    def test_compressed(self):
        tree = self.tree({"a.ko": "b", "b.ko": ""})
        path = tree.directory / "a.ko"
        (tree.directory / "a.ko.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
        self.assertEqual(tree.load_order(["a"]), ["b", "a"])


class Programs(unittest.TestCase):
    def test_libraries_are_those_that_ldd_finds(self):
        program = Path(sys.executable).resolve()
        ldd = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
        wanted = {os.path.realpath(word) for word in ldd.split() if word.startswith("/")}
        self.assertEqual({os.path.realpath(p) for p in elf.shared_objects(program).values()}, wanted)

    def test_no_elf_is_an_error(self):
        with self.assertRaisesRegex(initramfs.Error, "no ELF program"):
            initramfs.Initramfs().program(__file__)


class Image(unittest.TestCase):
    def build(self) -> bytes:
        return initramfs.Initramfs().base().applets("mount").program("hdparm").data("/bin/x", "y").build()

    def test_reproducible_and_merged(self):
        image = self.build()
        self.assertEqual(image, self.build())
        names = subprocess.run(["cpio", "-it", "--quiet"], input=image, capture_output=True, text=False).stdout.decode().split()
        self.assertTrue({"bin", "usr/bin/x", "usr/bin/busybox", "dev/console", "dev/null", "dev/kmsg",
                         "usr/lib64/ld-linux-x86-64.so.2"} <= set(names))
        self.assertFalse([n for n in names if n.startswith("bin/")])

    def test_unknown_applet(self):
        with self.assertRaisesRegex(initramfs.Error, "no applet nonsense"):
            initramfs.Initramfs().base().applets("nonsense")


class Download(unittest.TestCase):
    """prepare-kernel with an empty cache and an apt that fails, in its own words."""

    def prepare(self, apt_says: str, program: str = "prepare-kernel") -> tuple[int, str]:
        directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, script in (("apt-cache", "echo '  Depends: linux-image-6.1.0-1-amd64'"),
                             ("apt-get", f"echo 'E: {apt_says}' >&2; exit 100")):
            (directory / name).write_text(f"#!/bin/sh\n{script}\n")
            (directory / name).chmod(0o755)
        environment = dict(os.environ, PATH=f"{directory}:{os.environ['PATH']}", SPINDLE_CACHE=str(directory / "cache"))
        done = subprocess.run([Path(__file__).parent / program], env=environment, capture_output=True, text=True)
        return done.returncode, done.stderr.splitlines()[-1]

    def test_no_network_has_a_status_of_its_own(self):
        for program in ("prepare-kernel", "prepare-guest"):
            for says in ("Failed to fetch http://deb.debian.org/x.deb Temporary failure resolving deb.debian.org", "404 Not Found"):
                status, line = self.prepare(says, program)
                self.assertEqual(status, os.EX_TEMPFAIL, line)
                self.assertRegex(line, f"^{program}: cannot download the (cloud|full) kernel: E: {says}")

    def test_a_fault_here_is_one(self):
        for says in ("Failed to fetch x.deb Hash Sum mismatch", "You do not have enough space: No space left on device"):
            self.assertEqual(self.prepare(says)[0], 1)


class Kernel(unittest.TestCase):
    def bzimage(self, payload: bytes) -> bytes:
        head = bytearray(1024)
        head[0x1F1], head[0x202:0x206] = 1, b"HdrS"
        struct.pack_into("<H", head, 0x206, 0x20F)
        struct.pack_into("<II", head, 0x248, 16, len(payload))
        return bytes(head) + bytes(16) + payload

    def test_xz(self):
        image = b"\x7fELF" + os.urandom(5000)
        self.assertEqual(debkernel.extract_vmlinux(self.bzimage(lzma.compress(image) + struct.pack("<I", len(image)))), image)

    def test_lz4_of_several_blocks(self):
        image = b"\x7fELF" + b"spindle " * (3 << 20)
        packed = subprocess.run(["lz4", "-l", "-c"], input=image, capture_output=True, check=True).stdout
        self.assertEqual(debkernel.extract_vmlinux(self.bzimage(packed + struct.pack("<I", len(image)))), image)

    def test_damage_is_noticed(self):
        for bad in (b"", bytes(2048), self.bzimage(b"junkjunk"), self.bzimage(b"\x02\x21\x4c\x18\xff\xff\0\0\0\0\0\0")):
            with self.assertRaises(debkernel.Error):
                debkernel.extract_vmlinux(bad)


class Console(unittest.TestCase):
    def test_lines(self):
        event = guestrun.parse_line("@@ sync dev=sda phase=ready now")
        self.assertEqual((event.kind, event["dev"], event.words), ("sync", "sda", ("now",)))
        self.assertEqual(guestrun.parse_line("[ 1.0] noise @@ end status=0").number("status"), 0)
        self.assertEqual(guestrun.parse_line("ACK 17").words, ("17",))
        for nothing in ("", "ACK", "ACK 1x", "@@ ", "text"):
            self.assertIsNone(guestrun.parse_line(nothing))

    def test_statistics(self):
        before = guestrun.parse_stats('{"disks":[{"id":"ide0","counters":{"write_ops":1,"flushes_issued":0}}]}')["ide0"]
        self.assertEqual(guestrun.difference({"write_ops": 9, "flushes_issued": 0, "errors": 1}, before), {"write_ops": 8, "errors": 1})


class Streams(unittest.TestCase):
    def test_token_is_found_however_it_is_cut(self):
        token, data = b"end-abc", b"output end-ab end-end-"
        for size in range(1, 12):
            reader, writer = os.pipe()
            stream = l1._Stream(writer, token)
            whole = data + token + b"late"
            for at in range(0, len(whole), size):
                stream.feed(whole[at:at + size])
            self.assertTrue(stream.ended)
            stream.flush()
            os.close(writer)
            with io.FileIO(reader) as received:
                self.assertEqual(received.readall(), data)

    def test_end_without_token_loses_nothing(self):
        reader, writer = os.pipe()
        stream = l1._Stream(writer, b"end-abc")
        stream.feed(b"text end-")
        stream.flush()
        os.close(writer)
        with io.FileIO(reader) as received:
            self.assertEqual(received.readall(), b"text end-")


FAKE_SPINDLE = r"""#!/usr/bin/env python3
import json, os, signal, sys, time
arguments = dict(zip(sys.argv[2::2], sys.argv[3::2]))
writes = 0
def rewrite(*_):
    with open(arguments["--stats-json"] + ".new", "w") as f:
        json.dump({"disks": [{"id": "ide0", "counters": {"write_ops": writes}}]}, f)
    os.rename(f.name, arguments["--stats-json"])
signal.signal(signal.SIGUSR1, rewrite)
image = os.open(arguments["--disk"].split(",")[0].partition("=")[2], os.O_RDWR)
print("noise @@ sync phase=one\r", flush=True)
sys.stdin.readline()
writes = 8
print("ACK 1\nACK 2\n@@ sync phase=two", flush=True)
sys.stdin.readline()
sys.stdout.write("ACK 3\n@@ end status=0\nACK 4")
sys.stdout.flush()
rewrite()
if "linger" in arguments["--append"]: time.sleep(1000)
"""


class Machine(unittest.TestCase):
    def machine(self, **options) -> guestrun.Machine:
        directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        fake = directory / "spindle"
        fake.write_text(FAKE_SPINDLE)
        fake.chmod(0o755)
        (directory / "disk").write_bytes(b"")
        images = guestimage.Images(*[directory / "disk"] * 4)
        with mock.patch.dict(os.environ, SPINDLE_BINARY=str(fake)):
            return self.enterContext(guestrun.Machine(images, [guestrun.Disk(directory / "disk", bus="ide")], directory=directory,
                                                      timeout=20, **options))

    def test_console_counters_and_end(self):
        machine = self.machine(scenario="x", parameters={"a": 1})
        self.assertIn("scenario=x a=1", machine.command[machine.command.index("--append") + 1])
        machine.expect("sync", phase="one")
        before = machine.stats()["ide0"]
        (flags,) = machine.open_flags(machine.directory / "disk")
        self.assertFalse(flags & (os.O_SYNC | os.O_DSYNC))
        machine.resume()
        machine.expect("sync", phase="two")
        self.assertEqual(guestrun.difference(machine.stats()["ide0"], before), {"write_ops": 8})
        machine.resume()
        self.assertEqual(machine.expect("end").number("status"), 0)
        self.assertEqual((machine.wait(), machine.final_stats()), (0, {"ide0": {"write_ops": 8}}))
        self.assertEqual(machine.last("ACK"), 3)  # the torn "ACK 4" does not count
        self.assertIsNone(machine.next_event())

    def test_power_cut(self):
        machine = self.machine(append="linger")
        for phase in ("one", "two"):
            machine.expect("sync", phase=phase)
            machine.resume()
        machine.expect("end")
        machine.kill()
        self.assertEqual((machine.wait(), machine.last("ACK")), (-9, 3))

    def test_silence_is_an_error_that_shows_the_console(self):
        machine = self.machine()
        with self.assertRaisesRegex(guestrun.Error, "no end in time; the console says: noise"):
            machine.next_event("end", timeout=1)


class Blkload(unittest.TestCase):
    def setUp(self):
        self.blkload = str(guestimage.blkload())
        self.file = str(Path(self.enterContext(tempfile.TemporaryDirectory(dir="/var/tmp"))) / "disk")
        with open(self.file, "wb") as f:
            f.truncate(1 << 20)

    def run_it(self, *arguments) -> tuple[int, list[str]]:
        done = subprocess.run([self.blkload, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    def test_system_calls_are_exact(self):
        for options, fsyncs in ((["--fsync-every", "3"], 3), (["--fsync-every", "3", "--fsync"], 4), (["--fsync-every", "5", "--fsync"], 2), ([], 0)):
            status, lines = self.run_it("write", self.file, "--count", "10", *options)
            event = guestrun.parse_line(lines[0])
            self.assertEqual((status, event.number("writes"), event.number("fsyncs"), event.number("errors")), (0, 10, fsyncs, 0))

    def test_verify_tells_what_is_wrong(self):
        self.run_it("write", self.file, "--count", "4", "--seq", "2")
        self.assertEqual(self.run_it("verify", self.file, "--count", "4", "--seq", "2")[0], 0)
        status, lines = self.run_it("verify", self.file, "--count", "5", "--seq", "2")
        self.assertEqual((status, guestrun.parse_line(lines[0])["why"], guestrun.parse_line(lines[0]).number("first")), (1, "never-written", 16384))
        self.assertEqual(guestrun.parse_line(self.run_it("verify", self.file, "--seq", "1")[1][0])["why"], "stale")
        with open(self.file, "r+b") as f:
            f.seek(600)
            f.write(b"x")
        self.assertEqual(guestrun.parse_line(self.run_it("verify", self.file, "--seq", "2")[1][0])["why"], "torn")

    def test_records_finds_holes(self):
        status, lines = self.run_it("ack", self.file, "--count", "6", "--fsync-every", "4")
        self.assertEqual((status, lines[:7]), (0, ["ACK 1", "ACK 2", "ACK 3", "ACK 4", "SYNC 4", "ACK 5", "ACK 6"]))
        with open(self.file, "r+b") as f:
            f.seek(2 * 4096)
            f.write(bytes(4096))
        event = guestrun.records(mock.Mock(blkload=self.blkload), self.file, count=20)
        self.assertEqual((event["ranges"], event.number("whole"), event.number("last"), event.number("holes")), ("1-2,4-6", 5, 6, 1))


class Probe(unittest.TestCase):
    def test_absent_device_is_told(self):
        self.assertEqual(kvmprobe.why_unusable("/dev/no-kvm"), "/dev/no-kvm: No such file or directory")
        self.assertIn("cannot run a guest", kvmprobe.why_unusable("/dev/null"))


if __name__ == "__main__":
    unittest.main()
