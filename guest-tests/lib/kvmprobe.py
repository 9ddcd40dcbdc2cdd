"""Is /dev/kvm of any use here?

That it opens and makes a virtual machine is not enough: there are hosts (paravirtual KVM inside a
virtual machine without nesting, for one) whose KVM emulates an unmodified guest instruction by
instruction, a thousand times too slow to boot a kernel. So a guest of three instructions runs a
counting loop against the clock: microseconds on real hardware.
"""

import ctypes
import fcntl
import mmap
import os
import signal
import struct
import time

KVM_GET_API_VERSION = 0xAE00
KVM_CREATE_VM = 0xAE01
KVM_GET_VCPU_MMAP_SIZE = 0xAE04
KVM_CREATE_VCPU = 0xAE41
KVM_SET_USER_MEMORY_REGION = 0x4020AE46
KVM_RUN = 0xAE80
KVM_SET_REGS = 0x4090AE82
KVM_GET_SREGS = 0x8138AE83
KVM_SET_SREGS = 0x4138AE84
KVM_EXIT_HLT = 5

LOOP = b"\x66\x49\x75\xfc\xf4"  # real mode: again: dec ecx; jnz again; hlt
LOAD_ADDRESS = 0x1000
ROUNDS = 1_000_000
CPU_LIMIT = 0.25  # seconds of CPU time, so that a busy machine does not fail; hardware needs about 0.001
WALL_LIMIT = 10


def _run_loop(kvm: int, vm: int) -> float | None:
    """Seconds the guest needed, None if it was not done within the limits. OSError if KVM refuses something."""
    memory = mmap.mmap(-1, 4096)
    memory[:len(LOOP)] = LOOP
    anchor = ctypes.c_char.from_buffer(memory)
    fcntl.ioctl(vm, KVM_SET_USER_MEMORY_REGION,
                struct.pack("<IIQQQ", 0, 0, LOAD_ADDRESS, 4096, ctypes.addressof(anchor)))
    vcpu = fcntl.ioctl(vm, KVM_CREATE_VCPU, 0)
    try:
        with mmap.mmap(vcpu, fcntl.ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0)) as run:
            sregs = bytearray(0x138)
            fcntl.ioctl(vcpu, KVM_GET_SREGS, sregs)
            struct.pack_into("<Q", sregs, 0, 0)   # cs.base
            struct.pack_into("<H", sregs, 12, 0)  # cs.selector
            fcntl.ioctl(vcpu, KVM_SET_SREGS, bytes(sregs))
            regs = [0] * 18
            regs[2], regs[16], regs[17] = ROUNDS, LOAD_ADDRESS, 2  # rcx, rip, rflags
            fcntl.ioctl(vcpu, KVM_SET_REGS, struct.pack("<18Q", *regs))
            timers = ((signal.SIGPROF, signal.ITIMER_PROF, CPU_LIMIT), (signal.SIGALRM, signal.ITIMER_REAL, WALL_LIMIT))
            previous = [signal.signal(number, lambda *_: None) for number, _, _ in timers]
            for _, timer, limit in timers:  # repeating: one that hits just before KVM_RUN must not be the last
                signal.setitimer(timer, limit, 0.05)
            start = time.monotonic()
            try:
                fcntl.ioctl(vcpu, KVM_RUN, 0)
            except InterruptedError:
                return None
            finally:
                for (number, timer, _), handler in zip(timers, previous):
                    signal.setitimer(timer, 0)
                    signal.signal(number, handler)
            (reason,) = struct.unpack_from("<I", run, 8)
            if reason != KVM_EXIT_HLT:
                raise OSError(0, f"a trivial guest ended with exit reason {reason}")
            return time.monotonic() - start
    finally:
        os.close(vcpu)


def why_unusable(device: str = "/dev/kvm") -> str | None:
    """None if KVM can run guests at full speed, else the reason in a few words. Call it from the main thread."""
    try:
        kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as e:
        return f"{device}: {e.strerror}"
    try:
        if fcntl.ioctl(kvm, KVM_GET_API_VERSION, 0) != 12:
            return f"{device} speaks another API version than 12"
        vm = fcntl.ioctl(kvm, KVM_CREATE_VM, 0)
        try:
            if _run_loop(kvm, vm) is None:
                return f"{device} emulates guest code instead of running it (too slow to boot a kernel)"
            return None
        finally:
            os.close(vm)
    except OSError as e:
        return f"{device} cannot run a guest: {e.strerror}"
    finally:
        os.close(kvm)


if __name__ == "__main__":
    print(why_unusable() or "usable")
