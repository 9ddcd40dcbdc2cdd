"""The console on a terminal, and what must not hang or harm the end of a run: a guest that reads no input, a terminal
that takes no output, a standard error that nobody reads."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import guestimage
import guestrun

QUICK = 60  # seconds to end in, on an emulated and busy machine; a hang is for ever
QUIT, HELP = b"\x01x", b"\x01h"


def run(context):
    _shell(context)
    _deaf_guest(context)
    _broken_pipes(context)


class _Terminal:
    """`spindle run` with a shell on a terminal, of which we hold the other end."""

    def __init__(self, context, name):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        command = [guestrun.spindle_binary(), "run", "--kernel", context.images.vmlinux, "--initrd", context.images.initrd,
                   "--append", guestrun.COMMAND_LINE + " scenario=shell"]
        self.stderr = context.directory / f"{name}.stderr"
        with self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen([str(word) for word in command], stdin=self.slave, stdout=self.slave, stderr=stderr,
                                            start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def expect(self, text, timeout=60):
        """A problem if `text` does not come; what came before it is forgotten."""
        deadline = time.monotonic() + timeout
        while text not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                return f"no {text!r} in: {self.seen[-300:]!r}; stderr: {self.stderr.read_text()}"
            self.seen += os.read(self.master, 4096)
        self.seen = self.seen.partition(text)[2]
        return None

    def type(self, data):
        os.write(self.master, data)

    def raw(self):
        """Waits until the monitor has taken the terminal over."""
        deadline = time.monotonic() + 60
        while termios.tcgetattr(self.slave)[3] & termios.ICANON:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise guestrun.Error(f"the terminal did not become raw; stderr: {self.stderr.read_text()}")
            time.sleep(0.01)

    def stalled(self):
        """Waits until no more output arrives in a terminal that nobody reads."""
        count, since, deadline = -1, time.monotonic(), time.monotonic() + 60
        while count <= 0 or time.monotonic() - since < 1:
            now = struct.unpack("i", fcntl.ioctl(self.master, termios.FIONREAD, b"\0\0\0\0"))[0]
            if now != count:
                count, since = now, time.monotonic()
            if time.monotonic() > deadline:
                raise guestrun.Error("the guest's output does not fill the terminal")
            time.sleep(0.05)

    def ended(self):
        """A problem if it does not end soon, with 0, and leave the terminal as it was."""
        try:
            status = self.process.wait(QUICK)
        except subprocess.TimeoutExpired:
            return f"still there after {QUICK} s"
        if status:
            return f"exit status {status}: {self.stderr.read_text()}"
        return termios.tcgetattr(self.slave) != self.before and "the terminal was not restored"


def _shell(context):
    with _Terminal(context, "console-shell") as terminal:
        context.check("a guest's shell comes up on a terminal", terminal.expect(b"# "))
        terminal.type(b"echo answer$((40+2))\r")
        context.check("input reaches it, output comes back", terminal.expect(b"answer42"))
        terminal.type(HELP)
        context.check("Ctrl-A h helps", terminal.expect(b"Ctrl-A x"))
        terminal.type(b"yes\r")
        terminal.stalled()
        terminal.process.send_signal(signal.SIGTERM)
        context.check("SIGTERM ends it and restores a terminal that takes no output", terminal.ended())


def _deaf_guest(context):
    with _Terminal(context, "console-deaf") as terminal:
        terminal.raw()
        terminal.type(b"a" * 2000)  # no kernel is there yet that would read it
        terminal.type(QUIT)
        context.check("Ctrl-A x ends it, whatever input the guest has not read", terminal.ended())


def _broken_pipes(context):
    image, count = context.image("console-pipes.img"), 64
    initrd = guestimage.with_more(context.images.initrd, context.directory / "console-pipes.initrd",
                                  script=f"wait_disks vda; emit ready; read -r _; blkload ack vda --count {count}")
    command = [guestrun.spindle_binary(), "run", "--kernel", context.images.vmlinux, "--initrd", initrd, "--append",
               guestrun.COMMAND_LINE, "--disk", f"file={image},cache=writeback"]
    with subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        try:
            said = b""
            while b"@@ ready" not in said and (more := os.read(process.stdout.fileno(), 4096)):
                said += more
            process.stderr.close()
            process.stdout.close()
            os.write(process.stdin.fileno(), b"\n")
            status = process.wait(60)
        except subprocess.TimeoutExpired:
            status = "none: it does not end"
        finally:
            process.kill()
    context.check("a run whose output and errors nobody takes ends as if somebody did", status and f"exit status {status}; {said[-300:]!r}")
    left = guestrun.records(context.images, image, count=count)
    context.check("and loses no data", left.number("whole") != count and left.text)
