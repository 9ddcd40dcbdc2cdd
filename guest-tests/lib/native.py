"""with-kvm where /dev/kvm works: the command runs right here, with a scratch directory fit for disk images."""

import mmap
import os
import shlex
import sys
import tempfile
from pathlib import Path

import debkernel
import processes


class Error(Exception):
    """One line that says what went wrong and what to do."""


def _takes_direct_io(directory: Path) -> bool:
    """Whether O_DIRECT works on files here. On tmpfs it does not before Linux 6.6."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".spindle-direct-") as file, mmap.mmap(-1, 4096) as page:
            fd = os.open(file.name, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            try:
                return os.pwrite(fd, page, 0) == len(page)
            finally:
                os.close(fd)
    except OSError:
        return False


def scratch_parent() -> Path:
    """Where to make the scratch directory: $TMPDIR, /var/tmp or the cache, the first where O_DIRECT works."""
    wanted = os.environ.get("TMPDIR")
    candidates = [*([Path(wanted)] if wanted else []), Path("/var/tmp"), debkernel.cache_dir()]
    for directory in candidates:
        if _takes_direct_io(directory):
            if wanted and directory != candidates[0]:
                print(f"with-kvm: O_DIRECT does not work in TMPDIR={wanted}: --scratch is in {directory}", file=sys.stderr)
            return directory
    raise Error(f"no place for --scratch: O_DIRECT works in none of {', '.join(map(str, candidates))}; "
                "set TMPDIR to a directory on ext4 or xfs")


def _run(command: list[str], environment: dict[str, str]) -> int:
    try:
        return processes.run_to_end(command, environment)
    except OSError as e:
        print(f"with-kvm: cannot run {command[0]}: {e.strerror}", file=sys.stderr)
        return 127 if isinstance(e, FileNotFoundError) else 126


def start(command: list[str], *, scratch: bool, timeout: float | None, verbose: bool) -> int:
    """Run `command`; its exit status. Raises Error, TimeoutError; whatever happens, nothing it started stays."""
    if not scratch:
        return processes.guarded(lambda: _run(command, dict(os.environ)), timeout)
    parent = scratch_parent()
    if verbose:
        print(f"with-kvm: --scratch is in {shlex.quote(str(parent))}", file=sys.stderr)

    def work() -> int:  # in the guard, which tidies up even if we are killed
        with tempfile.TemporaryDirectory(prefix="spindle-scratch-", dir=parent) as directory:
            return _run(command, dict(os.environ, SPINDLE_SCRATCH=directory))

    return processes.guarded(work, timeout)
