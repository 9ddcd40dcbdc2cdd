"""Builds and runs the tests for scripts/test, shows progress, and counts.

Counted are single checks: doctest test cases, unittest tests, fuzzers, guest checks. A check that could not be made prints
"skipped: reason" on a line of its own; it counts as skipped, not as passed, and the reason is repeated at the end.
"""

import argparse
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import fuzzing
import guesttests

ROOT = Path(__file__).resolve().parent.parent.parent
GROUPS = ("unit", "asan", "tsan", "crash", "fuzz", "guests")
TIME_LIMIT = 55 * 60     # seconds for everything (under 25 minutes are usual); what runs longer is ended and has failed
CANNOT_DOWNLOAD = 75     # prepare-kernel's and prepare-guest's exit status: packages cannot be had now
BUILDS = {
    "unit": ("build", ["-DCMAKE_BUILD_TYPE=Release"]),
    "asan": ("build-asan", ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSPINDLE_SANITIZE=address,undefined", "-DSPINDLE_BENCH=OFF"]),
    "tsan": ("build-tsan", ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSPINDLE_SANITIZE=thread", "-DSPINDLE_BENCH=OFF"]),
}
FUZZ_SECONDS = 60        # for each target
CRASH_STATES = 2_400_000  # distinct ones, in the table of all formats and orders
SOAK_STATES = 100_000     # in each of a round's eight runs
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
    deadline: float = dataclasses.field(default_factory=lambda: time.monotonic() + TIME_LIMIT)

    def left(self, limit: float) -> float:
        return max(1, min(limit, self.deadline - time.monotonic()))


def run_limited(command: list, limit: float, **options) -> tuple[str, int | str]:
    """(output, exit status) of a program; past the limit all that it started is killed and the status says so."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True, **options) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            return output.decode(errors="replace"), process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return output.decode(errors="replace"), f"more than {limit:.0f} s"
        except BaseException:  # we are being ended; nothing we started may outlive us
            os.killpg(process.pid, signal.SIGTERM)
            raise


SKIP_LINE = re.compile(r"^skipped: (.*)$", re.M)


def say(text: str) -> None:
    print(text, flush=True)


def build(group: str, totals: Totals) -> Path | None:
    """The build directory, or None if the build failed (which counts as a failure)."""
    name, options = BUILDS[group]
    directory = ROOT / name
    start = time.monotonic()
    say(f"== {group}: building in {name}/")
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(directory), *options]
    for command in (configure, ["cmake", "--build", str(directory)]):
        if command != configure and group != "unit":  # nothing but what will run; a test's target has its name
            label = TSAN_LABEL if group == "tsan" else None
            command += ["--target", *(name for name, *_ in tests_of(directory, label))]
        log, status = run_limited(command, totals.left(TIME_LIMIT))
        if status != 0:
            say(log)
            say(f"FAIL {group}: the build failed: exit status {status}")
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
        # Before the build there is no command yet.
        found.append((test["name"], test.get("command", []), properties.get("WORKING_DIRECTORY", str(directory)),
                      float(properties.get("TIMEOUT", 600))))
    return found


def count(output: str) -> tuple[int, int] | None:
    """(passed, failed) from a test program's closing lines; None if it closed without any. unittest's skips are not passed."""
    if m := re.search(r"^\[doctest\] test cases: *\d+ \| *(\d+) passed \| *(\d+) failed", output, re.M):
        return int(m[1]), int(m[2])
    if m := re.search(r"^Ran (\d+) tests? in", output, re.M):
        bad = sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", output))
        unittest_skips = sum(int(n) for n in re.findall(r"\bskipped=(\d+)", output))
        # Those that printed "skipped: reason" are taken off by the caller.
        return int(m[1]) - bad - max(0, unittest_skips - len(SKIP_LINE.findall(output))), bad
    return None


def run_programs(group: str, directory: Path, totals: Totals, label: str | None = None) -> None:
    tests = tests_of(directory, label)
    environment = ENVIRONMENT | ({"SPINDLE_STRESS_SECONDS": TSAN_SECONDS} if group == "tsan" else {})
    if not tests:
        say(f"FAIL {group}: no test program was found in {directory.name}/")
        totals.failed += 1
    for number, (name, command, where, limit) in enumerate(tests, 1):
        start = time.monotonic()
        output, status = run_limited(command, totals.left(limit), cwd=where, env=environment)
        skips = SKIP_LINE.findall(output)
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
        else:
            for note in re.findall(r"^NOTE .*$", output, re.M):
                say("   " + note)
        say(f"   [{number}/{len(tests)}] {group}/{name}: {passed} passed, {failed} failed"
            + (f", {len(skips)} skipped" if skips else "") + f" ({time.monotonic() - start:.1f} s"
            + (f", exit status {status})" if status != 0 else ")"))


def run_crash(totals: Totals) -> None:
    """What power cuts may leave: all formats and orders, then a round of the soak, whose seeds are others."""
    say("== crash: exploring")
    for name, command in (("table", [ROOT / "build/spindle", "crash", "table", "--states", str(CRASH_STATES)]),
                          ("soak", [ROOT / "scripts/crash-soak", "--rounds", "1", "--seed", "100001", "--states", str(SOAK_STATES)])):
        start = time.monotonic()
        output, status = run_limited(command, totals.left(TIME_LIMIT), cwd=ROOT)
        totals.passed += status == 0
        totals.failed += status != 0
        totals.skips += [f"crash/{name}: {reason}" for reason in SKIP_LINE.findall(output)]
        say(output.rstrip() if name == "table" or status != 0 else output.rstrip().splitlines()[-1])
        say(f"   crash/{name}: {'passed' if status == 0 else f'FAILED, exit status {status}'} ({time.monotonic() - start:.1f} s)")


def run_fuzzers(totals: Totals) -> None:
    if reason := fuzzing.missing():
        totals.skips.append(f"fuzz: {reason}")
        return
    names = fuzzing.targets()
    start = time.monotonic()
    say("== fuzz: building in build-fuzz/")
    for command in fuzzing.build_commands(names):
        log, status = run_limited(command, totals.left(TIME_LIMIT))
        if status != 0:
            say(f"{log}\nFAIL fuzz: the build failed: exit status {status}")
            totals.failed += 1
            return
    say(f"   built in {time.monotonic() - start:.0f} s")
    good = fuzzing.run(names, FUZZ_SECONDS, say).values()
    totals.passed += sum(good)
    totals.failed += len(names) - sum(good)


def run_guests(totals: Totals) -> None:
    say("== guests: preparing kernel and initramfs")
    made = subprocess.run([ROOT / "guest-tests/prepare-guest"], stdout=subprocess.PIPE, text=True)
    if made.returncode == CANNOT_DOWNLOAD:
        totals.skips.append("guests: the guest kernel cannot be downloaded (see above); Debian's packages are needed once")
        return
    if made.returncode != 0:
        say("FAIL guests: kernel or initramfs could not be made; the reason stands above")
        totals.failed += 1
        return
    environment = os.environ | dict(word.split("=", 1) for word in shlex.split(made.stdout))
    way = subprocess.run([ROOT / "guest-tests/with-kvm", "--probe"], capture_output=True, text=True).stdout.strip()
    emulated = way != "native"
    say(f"== guests: running, {'each suite in a machine with emulated SVM: ' + way if emulated else 'on /dev/kvm'}")
    outcome = guesttests.run(ROOT, environment, emulated, totals.left, say)
    totals.passed += outcome.passed
    totals.failed += outcome.failed
    totals.skips += outcome.skips


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test")
    parser.add_argument("--only", action="append", choices=GROUPS, help="this group alone (repeatable)")
    groups = parser.parse_args().only or GROUPS
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # by an exception, so that children are ended
    totals, start = Totals(), time.monotonic()
    if "unit" in groups or "guests" in groups:
        say("== kernels for the guest tests")  # before any test needs them and has to wait for a mirror
        subprocess.run([ROOT / "guest-tests/prepare-kernel", "--flavour", "both"], stdout=subprocess.DEVNULL)
    built = {}
    for group in GROUPS:
        if group not in groups:
            continue
        if group in ("guests", "crash"):
            if "unit" not in built:
                built["unit"] = build("unit", totals)
            if built["unit"]:
                (run_guests if group == "guests" else run_crash)(totals)
        elif group == "fuzz":
            run_fuzzers(totals)
        else:
            built[group] = build(group, totals)
            if built[group]:
                run_programs(group, built[group], totals, TSAN_LABEL if group == "tsan" else None)
    for skip in totals.skips:
        say(f"skipped: {skip}")
    say(f"took {time.monotonic() - start:.0f} s")
    say(f"{totals.passed} passed, {totals.failed} failed" + (f", {len(totals.skips)} skipped" if totals.skips else ""))
    return 1 if totals.failed or totals.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
