"""Processes that do not outlive the one they work for, not even its SIGKILL.

tied() makes a single child die with its parent. guarded() is for children who start others: a guard, which is told
by the kernel when its parent dies, adopts whatever is orphaned below it (PR_SET_CHILD_SUBREAPER) and ends it all.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_libc = ctypes.CDLL(None, use_errno=True)  # loaded now: little may happen between fork and exec


class _Ended(BaseException):
    """The guard was told to end."""


def _die_with(parent: int, number: int) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it was faster
        os.kill(os.getpid(), number)


def tied():
    """A preexec_fn for subprocess.Popen: the child is killed when the thread that starts it ends, however it does."""
    parent = os.getpid()
    return lambda: _die_with(parent, signal.SIGKILL)


def _children() -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(entry.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.parent.name))
        except OSError:  # ended meanwhile
            continue
    return found


def _end_descendants() -> None:
    """Kill and reap until there are none. Whoever is orphaned by that becomes our child before its parent is reaped."""
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def run_to_end(command: list[str], environment: dict[str, str]) -> int:
    """In a guard: the command's exit status as a shell tells it. When this returns or raises, nothing of it is left."""
    try:
        return _shell_status(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
                                              preexec_fn=tied()).wait())
    finally:
        _end_descendants()


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status


def _told_to_end(_number, _frame) -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise _Ended


def _guard(parent: int, work) -> None:
    """The life of the guard; does not return."""
    status = 125
    try:
        os.setsid()  # the terminal's Ctrl-C is the parent's to handle
        for number in ENDING:
            signal.signal(number, _told_to_end)
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        _die_with(parent, signal.SIGTERM)
        status = work()
    except _Ended:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def guarded(work, timeout: float | None) -> int:
    """What work() returns in the guard (an exit status). TimeoutError if it takes more seconds. See run_to_end()."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _guard(parent, work)
    try:
        guard = os.pidfd_open(pid)
        if not select.select([guard], [], [], timeout)[0]:
            raise TimeoutError
        os.close(guard)
    finally:
        os.kill(pid, signal.SIGTERM)  # of no effect if it has ended: it is not reaped yet
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _shell_status(status)
