"""Runs the guest suites for scripts/test and counts their checks.

On a true KVM all suites run at once, and what fails has failed. Where QEMU emulates the processor, that emulation
itself sometimes loses a guest or its whole machine ("Guests in emulated SVM" in guest-tests/README.md). There each
suite gets a machine of its own, and one in which that happened runs again. Each time this is printed, and only the last
attempt counts. A suite that is lost every time counts as skipped, with the reason, and nothing of it as passed.
"""

import dataclasses
import subprocess
from pathlib import Path

ATTEMPTS = 2
SUITE_LIMIT = 200  # seconds for a suite in its emulated machine; the longest usually takes half of it


@dataclasses.dataclass
class Outcome:
    passed: int = 0
    failed: int = 0
    skips: list[str] = dataclasses.field(default_factory=list)
    lost: str = ""    # why the emulation, not a check, spoilt the run
    wrong: str = ""   # why the run as a whole cannot be believed
    lines: list[str] = dataclasses.field(default_factory=list)


def read(lines, status_of) -> Outcome:
    """The outcome of guest-tests/run from what it prints, as it comes; `status_of()` waits for its exit status."""
    outcome, said = Outcome(), ""
    for line in lines:
        line = line.strip()
        outcome.lines.append(line)
        kind, _, text = line.partition(" ")
        if kind == "PASS":
            outcome.passed += 1
        elif kind == "FAIL":
            outcome.failed += 1
        elif kind == "SKIP":
            outcome.skips.append(text)
        elif kind == "LOST":
            outcome.lost = text
        elif kind == "guests:":
            said = text
    status = status_of()
    counted = f"{outcome.passed} passed, {outcome.failed} failed, {len(outcome.skips)} skipped"
    if said != counted or (status != 0) != (outcome.failed > 0):
        outcome.wrong = f"the run did not come to a good end: it says {said or 'nothing'!r}, {counted} were seen, exit status {status}"
    return outcome


def _run(root: Path, environment: dict, limit: float, only: str, show) -> Outcome:
    command = [root / "guest-tests/with-kvm", "--scratch", "4G", "--timeout", f"{limit:.0f}", root / "guest-tests/run", "--only", only]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors="replace") as process:
        def lines():
            for line in process.stdout:
                show(line)
                yield line
        return read(lines(), process.wait)


def run(root: Path, environment: dict, emulated: bool, left, say) -> Outcome:
    """All suites. `left(limit)` is how many seconds there are, at most `limit`."""
    if not emulated:
        return _judged(_run(root, environment, left(float("inf")), "*", lambda line: say("   " + line.rstrip())), say)
    suites = subprocess.run([root / "guest-tests/run", "--list"], capture_output=True, text=True, check=True).stdout.split()
    total = Outcome()
    for suite in suites:
        outcome = _run_emulated(root, environment, suite, left, say)
        total.passed += outcome.passed
        total.failed += outcome.failed
        total.skips += outcome.skips
    return total


def _run_emulated(root: Path, environment: dict, suite: str, left, say) -> Outcome:
    for attempt in range(1, ATTEMPTS + 1):
        outcome = _run(root, environment, left(SUITE_LIMIT), suite, lambda _: None)
        lost = outcome.lost or outcome.wrong
        if not lost:
            for line in outcome.lines:
                if not line.startswith("guests: "):
                    say("   " + line)
            return outcome
        say(f"   NOTE {suite}: run {attempt} of at most {ATTEMPTS} was lost: {lost}; it said:")
        for line in outcome.lines:
            say("        " + line)
    return Outcome(skips=[f"guests/{suite}: QEMU's emulation of SVM lost it {ATTEMPTS} times of {ATTEMPTS}: {lost}"])


def _judged(outcome: Outcome, say) -> Outcome:
    if outcome.wrong:
        say(f"FAIL guests: {outcome.wrong}")
        outcome.failed += 1
    return outcome
