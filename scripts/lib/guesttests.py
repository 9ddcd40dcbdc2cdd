"""Runs the guest suites for scripts/test and counts their checks.

On a true KVM all suites run at once, and what fails has failed. Where QEMU emulates the processor, guests die and the
machine itself ends or hangs now and then ("Guests in emulated SVM" in guest-tests/README.md). There each suite gets a
machine of its own and may run a second time, which is printed; only the last run counts. The two are not treated alike:
the machine is lost without Spindle too, so a suite that lost it each time is skipped, with the reason; a guest that dies
may have died of a fault of ours, so what failed with it has failed. A failed check is never skipped.

Emulated machines have one processor each, and two run side by side where the host has two: a suite keeps hardly more than
one busy, and hanging machines were seen to wait for an interrupt between two.
"""

import concurrent.futures
import dataclasses
import os
import subprocess
import threading
from pathlib import Path

ATTEMPTS = 2
SIDE_BY_SIDE = 2
# Seconds for a suite in its emulated machine. More than any suite needs on a busy host (450) and its longest wait for a guest (150)
# together: so a monitor that hangs is the suite's failure, and only a machine that hangs gets this far.
SUITE_LIMIT = 600
MACHINE_ENDED, TIME_IS_UP = 123, 124  # exit statuses of with-kvm


@dataclasses.dataclass
class Outcome:
    passed: int = 0
    failed: int = 0
    skips: list[str] = dataclasses.field(default_factory=list)
    died: str = ""  # last words of a guest that was not meant to die
    lost: str = ""  # how the machine was lost before the suite had ended
    wrong: str = ""  # why the run as a whole cannot be believed


def read(lines, status_of) -> Outcome:
    """The outcome of guest-tests/run from what it prints, as it comes; `status_of()` waits for its exit status."""
    outcome, said = Outcome(), ""
    for line in lines:
        kind, _, text = line.strip().partition(" ")
        if kind == "PASS":
            outcome.passed += 1
        elif kind == "FAIL":
            outcome.failed += 1
        elif kind == "SKIP":
            outcome.skips.append(text)
        elif kind == "DIED":
            outcome.died = text
        elif kind == "guests:":
            said = text
    status = status_of()
    counted = f"{outcome.passed} passed, {outcome.failed} failed, {len(outcome.skips)} skipped"
    if not said and status in (MACHINE_ENDED, TIME_IS_UP):
        outcome.lost = "the machine ended" if status == MACHINE_ENDED else "the machine hung"
    elif said != counted or (status != 0) != (outcome.failed > 0):
        outcome.wrong = f"the run did not come to a good end: it says {said or 'nothing'!r}, {counted} were seen, exit status {status}"
    return outcome


def settle(suite: str, run_once, say) -> Outcome:
    """The outcome of a suite under emulation; `run_once()` gives that of one run."""
    for attempt in range(1, ATTEMPTS + 1):
        outcome = run_once()
        spoilt = outcome.lost or outcome.died
        if not spoilt or outcome.wrong:
            return outcome
        last = attempt == ATTEMPTS
        say(f"   NOTE {suite}: {spoilt} in run {attempt} of at most {ATTEMPTS}"
            + ("" if last else "; what it has said so far does not count, it runs again"))
    if outcome.lost and not outcome.failed:
        return Outcome(skips=[f"guests/{suite}: {outcome.lost} in each of {ATTEMPTS} runs (emulated SVM)"])
    return outcome


class _Running:
    """The programs that run now. They have to end when we are ended, whichever thread started them."""

    def __init__(self):
        self._lock, self._processes, self._ended = threading.Lock(), set(), False

    def start(self, command, environment) -> subprocess.Popen:
        with self._lock:
            if self._ended:
                raise InterruptedError
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                       errors="replace")
            self._processes.add(process)
            return process

    def done(self, process: subprocess.Popen) -> None:
        with self._lock:
            self._processes.discard(process)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.terminate()  # with-kvm takes all that it started with it


def run(root: Path, environment: dict, emulated: bool, left, say) -> Outcome:
    """All suites. `left(limit)` is how many seconds there are, at most `limit`."""
    running = _Running()

    def run_once(only: str, limit: float) -> Outcome:
        granted = left(limit)
        machine = ["--smp", "1"] if emulated else []
        process = running.start([root / "guest-tests/with-kvm", *machine, "--scratch", "4G", "--timeout", f"{granted:.0f}",
                                 root / "guest-tests/run", "--only", only], environment)

        def shown():
            for line in process.stdout:
                name = f"{only}: " if emulated and line.startswith("guests:") else ""
                say(f"   {name}{line.rstrip()}")
                yield line
        with process:
            outcome = read(shown(), process.wait)
        running.done(process)
        if outcome.lost and granted < limit:  # no hanging machine: all tests together took too long; or a true KVM
            outcome.wrong = f"it was not done when its {granted:.0f} s were up"
        return outcome

    if emulated:
        suites = subprocess.run([root / "guest-tests/run", "--list"], capture_output=True, text=True, check=True).stdout.split()
        width = min(SIDE_BY_SIDE, len(os.sched_getaffinity(0)))
        with concurrent.futures.ThreadPoolExecutor(width) as pool:
            waiting = [pool.submit(settle, suite, lambda suite=suite: run_once(suite, SUITE_LIMIT), say) for suite in suites]
            try:
                outcomes = [future.result() for future in waiting]
            except BaseException:  # we are being ended
                running.end()
                pool.shutdown(cancel_futures=True)
                raise
    else:
        try:
            outcomes = [run_once("*", float("inf"))]
        except BaseException:
            running.end()
            raise
    total = Outcome()
    for outcome in outcomes:
        if outcome.wrong:
            say(f"FAIL guests: {outcome.wrong}")
        total.passed += outcome.passed
        total.failed += outcome.failed + bool(outcome.wrong)
        total.skips += outcome.skips
    return total
