"""Runs the guest suites for scripts/test and counts their checks.

On a true KVM all suites run at once, and what fails has failed. Where QEMU emulates the processor, guests die and the
machine itself ends or hangs now and then ("Guests in emulated SVM" in guest-tests/README.md). There each suite gets a
machine of its own and may run a second time, which is printed; only the last run counts. The two are not treated alike:
the machine is lost without Spindle too, so a suite that lost it each time is skipped, with the reason; a guest that dies
may have died of a fault of ours, so what failed with it has failed. A failed check is never skipped.

Two emulated machines run side by side where the host has two processors: each has one, and keeps it busy.
"""

import dataclasses
import os
import subprocess
from pathlib import Path

from children import Children

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


def run(root: Path, environment: dict, emulated: bool, left, say) -> Outcome:
    """All suites. `left(limit)` is how many seconds there are, at most `limit`."""
    children = Children()

    def run_once(only: str, limit: float) -> Outcome:
        granted = left(limit)
        command = [root / "guest-tests/with-kvm", "--scratch", "4G", "--timeout", f"{granted:.0f}",
                   root / "guest-tests/run", "--only", only]

        def shown(lines):
            for line in lines:
                name = f"{only}: " if emulated and line.startswith("guests:") else ""
                say(f"   {name}{line.rstrip()}")
                yield line
        with children.start(command, env=environment, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            outcome = read(shown(process.stdout), process.wait)
        if outcome.lost and granted < limit:  # no hanging machine: all tests together took too long; or a true KVM
            outcome.wrong = f"it was not done when its {granted:.0f} s were up"
        return outcome

    def emulated_suite(suite: str) -> Outcome:
        return settle(suite, lambda: run_once(suite, SUITE_LIMIT), say)

    total = Outcome()

    def add(_suite: str, outcome: Outcome) -> None:
        if outcome.wrong:
            say(f"FAIL guests: {outcome.wrong}")
        total.passed += outcome.passed
        total.failed += outcome.failed + bool(outcome.wrong)
        total.skips += outcome.skips

    if emulated:
        suites = subprocess.run([root / "guest-tests/run", "--list"], capture_output=True, text=True, check=True).stdout.split()
        children.run(suites, min(SIDE_BY_SIDE, len(os.sched_getaffinity(0))), emulated_suite, add)
    else:
        children.run(["*"], 1, lambda everything: run_once(everything, float("inf")), add)
    return total
