"""Builds and runs the tests for scripts/test, shows progress, and counts.

Counted are single checks: doctest test cases, unittest tests, guest checks. A check that could not be made prints
"skipped: reason" on a line of its own; it counts as skipped, not as passed, and the reason is repeated at the end.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GROUPS = ("unit", "asan", "tsan", "guests")
BUILDS = {
    "unit": ("build", ["-DCMAKE_BUILD_TYPE=Release"]),
    "asan": ("build-asan", ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSPINDLE_SANITIZE=address,undefined", "-DSPINDLE_BENCH=OFF"]),
    "tsan": ("build-tsan", ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSPINDLE_SANITIZE=thread", "-DSPINDLE_BENCH=OFF"]),
}
TSAN_LABEL = "threads"  # tests in which threads meet
TSAN_SECONDS = "30"     # how long two vCPUs keep both disks busy under it
ENVIRONMENT = os.environ | {
    "ASAN_OPTIONS": "strict_string_checks=1:detect_stack_use_after_return=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1", "TSAN_OPTIONS": "second_deadlock_stack=1",
}


@dataclasses.dataclass
class Totals:
    passed: int = 0
    failed: int = 0
    skips: list[str] = dataclasses.field(default_factory=list)


def say(text: str) -> None:
    print(text, flush=True)


def build(group: str, totals: Totals) -> Path | None:
    """The build directory, or None if the build failed (which counts as a failure)."""
    name, options = BUILDS[group]
    directory = ROOT / name
    start = time.monotonic()
    say(f"== {group}: building in {name}/")
    log = ""
    for command in (["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(directory), *options], ["cmake", "--build", str(directory)]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        log = done.stdout
        if done.returncode != 0:
            say(log)
            say(f"FAIL {group}: the build failed")
            totals.failed += 1
            return None
    say(f"   built in {time.monotonic() - start:.0f} s")
    return directory


def tests_of(directory: Path, label: str | None) -> list[tuple[str, list[str], str, float]]:
    """(name, command, working directory, time limit) of every CTest test, or of those with a label."""
    shown = subprocess.run(["ctest", "--test-dir", str(directory), "--show-only=json-v1", *(["-L", label] if label else [])],
                           capture_output=True, text=True, check=True)
    found = []
    for test in json.loads(shown.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        found.append((test["name"], test["command"], properties.get("WORKING_DIRECTORY", str(directory)),
                      float(properties.get("TIMEOUT", 600))))
    return found


def count(output: str) -> tuple[int, int] | None:
    """(passed, failed) from a test program's closing lines; None if it closed without any."""
    if m := re.search(r"^\[doctest\] test cases: *\d+ \| *(\d+) passed \| *(\d+) failed", output, re.M):
        return int(m[1]), int(m[2])
    if m := re.search(r"^Ran (\d+) tests? in", output, re.M):
        bad = sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", output))
        return int(m[1]) - bad, bad
    return None


def run_programs(group: str, directory: Path, totals: Totals, label: str | None = None) -> None:
    tests = tests_of(directory, label)
    environment = ENVIRONMENT | ({"SPINDLE_STRESS_SECONDS": TSAN_SECONDS} if group == "tsan" else {})
    if not tests:
        say(f"FAIL {group}: no test program was found in {directory.name}/")
        totals.failed += 1
    for number, (name, command, where, limit) in enumerate(tests, 1):
        start = time.monotonic()
        try:
            done = subprocess.run(command, cwd=where, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=limit)
            output, status = done.stdout.decode(errors="replace"), done.returncode
        except subprocess.TimeoutExpired as e:
            output, status = (e.stdout or b"").decode(errors="replace"), f"more than {limit:g} s"
        skips = re.findall(r"^skipped: (.*)$", output, re.M)
        passed, failed = count(output) or (0, 0)
        if status != 0 and failed == 0:
            failed = 1  # it crashed, hung, or a sanitizer stopped it
        elif passed + failed == 0 and not skips:
            failed = 1
            output += "\nthis program ran no test\n"
        passed = max(0, passed - len(skips))
        totals.passed += passed
        totals.failed += failed
        totals.skips += [f"{group}/{name}: {reason}" for reason in skips]
        if failed:
            say(output)
        say(f"   [{number}/{len(tests)}] {group}/{name}: {passed} passed, {failed} failed"
            + (f", {len(skips)} skipped" if skips else "") + f" ({time.monotonic() - start:.1f} s"
            + (f", exit status {status})" if status != 0 else ")"))


def run_guests(totals: Totals) -> None:
    say("== guests: preparing kernel and initramfs")
    made = subprocess.run([ROOT / "guest-tests/prepare-guest"], stdout=subprocess.PIPE, text=True)
    if made.returncode != 0:
        totals.skips.append("guests: the guest kernel could not be prepared (see above); it needs Debian's packages once")
        return
    environment = dict(os.environ)
    for line in made.stdout.splitlines():
        name, _, value = line.partition("=")
        environment[name] = value.strip("'")
    way = subprocess.run([ROOT / "guest-tests/with-kvm", "--probe"], capture_output=True, text=True).stdout.strip()
    say(f"== guests: running, {'on /dev/kvm' if way == 'native' else 'in a machine with emulated SVM: ' + way}")
    ended = False
    with subprocess.Popen([ROOT / "guest-tests/with-kvm", "--scratch", "4G", "--timeout", "1500", ROOT / "guest-tests/run"],
                          env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout:
            say("   " + line.rstrip())
            kind, _, text = line.strip().partition(" ")
            if kind == "PASS":
                totals.passed += 1
            elif kind == "FAIL":
                totals.failed += 1
            elif kind == "SKIP":
                totals.skips.append(text)
            elif kind == "guests:":
                ended = True
    if not ended:
        say("FAIL guests: the run did not come to its end")
        totals.failed += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test")
    parser.add_argument("--only", action="append", choices=GROUPS, help="this group alone (repeatable)")
    groups = parser.parse_args().only or GROUPS
    totals, start = Totals(), time.monotonic()
    for group in GROUPS:
        if group not in groups:
            continue
        if group == "guests":
            if "unit" in groups or build("unit", totals):
                run_guests(totals)
        elif directory := build(group, totals):
            run_programs(group, directory, totals, TSAN_LABEL if group == "tsan" else None)
    for skip in totals.skips:
        say(f"skipped: {skip}")
    say(f"took {time.monotonic() - start:.0f} s")
    say(f"{totals.passed} passed, {totals.failed} failed" + (f", {len(totals.skips)} skipped" if totals.skips else ""))
    return 1 if totals.failed or totals.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
