#!/usr/bin/env python3
"""Tests of what counts when a guest suite is run: no failure may become a skip, nothing lost may become a pass."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import guesttests

GOOD = (["PASS a/b (1 s)", "SKIP a/c: why", "guests: 1 passed, 0 failed, 1 skipped"], 0)
FAILED = (["PASS a/b (1 s)", "FAIL a/c: why", "guests: 1 passed, 1 failed, 0 skipped"], 1)
DIED = (["FAIL a/c: why", "DIED a: triple fault", "guests: 0 passed, 1 failed, 0 skipped"], 1)
HUNG = (["PASS a/b (1 s)"], 124)
ENDED = ([], 123)
FAILED_AND_HUNG = (["FAIL a/c: why"], 124)
BROKEN = ([], 125)  # with-kvm itself could not do it
MISCOUNTED = (["PASS a/b (1 s)", "guests: 2 passed, 0 failed, 0 skipped"], 0)
DIED_MISCOUNTED = (["DIED a: triple fault", "guests: 0 passed, 1 failed, 0 skipped"], 1)
UNADMITTED = (FAILED[0], 0)


def settle(*runs):
    """(passed, failed, skipped, wrong) of a suite whose runs go like that, and how many were needed."""
    waiting, said = list(runs), []

    def run_once():
        lines, status = waiting.pop(0)
        return guesttests.read(lines, lambda: status)
    outcome = guesttests.settle("suite", run_once, said.append)
    return (outcome.passed, outcome.failed, len(outcome.skips), bool(outcome.wrong)), len(runs) - len(waiting), said


class Settle(unittest.TestCase):
    def expect(self, runs, counts, needed):
        found, took, said = settle(*runs)
        self.assertEqual((found, took), (counts, needed))
        notes = sum(line.strip().startswith("NOTE ") for line in said)
        self.assertEqual(notes, sum(run in (DIED, HUNG, ENDED, FAILED_AND_HUNG) for run in runs[:took]))

    def test_what_ends_well_or_fails_runs_once(self):
        self.expect([GOOD, BROKEN], (1, 0, 1, False), 1)
        self.expect([FAILED, GOOD], (1, 1, 0, False), 1)

    def test_a_lost_machine_or_guest_is_tried_again_and_only_the_last_run_counts(self):
        for spoilt in (DIED, HUNG, ENDED, FAILED_AND_HUNG):
            self.expect([spoilt, GOOD], (1, 0, 1, False), 2)
            self.expect([spoilt, FAILED], (1, 1, 0, False), 2)

    def test_a_machine_lost_each_time_is_one_skip_and_nothing_passed(self):
        self.expect([HUNG, HUNG], (0, 0, 1, False), 2)
        self.expect([DIED, ENDED], (0, 0, 1, False), 2)

    def test_no_failure_becomes_a_skip(self):
        self.expect([DIED, DIED], (0, 1, 0, False), 2)
        self.expect([HUNG, DIED], (0, 1, 0, False), 2)
        self.expect([HUNG, FAILED_AND_HUNG], (0, 1, 0, False), 2)

    def test_what_is_no_loss_of_the_machine_is_never_repeated(self):
        self.expect([BROKEN, GOOD], (0, 0, 0, True), 1)
        self.expect([MISCOUNTED, GOOD], (1, 0, 0, True), 1)
        self.expect([UNADMITTED, GOOD], (1, 1, 0, True), 1)
        self.expect([DIED_MISCOUNTED, GOOD], (0, 0, 0, True), 1)


# Stands for with-kvm. Each suite waits until `wanted` have begun, then passes one check; `hang` says which does not end.
WITH_KVM = """#!/bin/sh
for suite; do :; done
: > "$HERE/begun-$suite"
until [ $(ls "$HERE" | grep -c ^begun-) -ge $wanted ]; do :; done
echo "PASS $suite/check (0.0 s)"
[ "$suite" != "$hang" ] || exec sleep 1000
echo "guests: 1 passed, 0 failed, 0 skipped"
"""


class Run(unittest.TestCase):
    def run_suites(self, say, **environment):
        with tempfile.TemporaryDirectory() as here:
            room = Path(here) / "guest-tests"
            room.mkdir()
            for name, text in (("run", "#!/bin/sh\necho a b c\n"), ("with-kvm", WITH_KVM)):
                (room / name).write_text(text)
                (room / name).chmod(0o755)
            return guesttests.run(Path(here), os.environ | environment | {"HERE": here}, True, lambda limit: limit, say)

    def test_two_emulated_machines_run_side_by_side(self):
        if len(os.sched_getaffinity(0)) < 2:
            print("skipped: there is one processor")
            self.skipTest("one processor")
        said = []
        outcome = self.run_suites(said.append, wanted="2", hang="")
        self.assertEqual((outcome.passed, outcome.failed, outcome.skips), (3, 0, []))
        self.assertEqual(sorted(line.split(":")[0].strip() for line in said if "guests:" in line), ["a", "b", "c"])

    def test_what_runs_is_ended_with_us(self):
        def ended(*_):
            raise SystemExit
        before = signal.signal(signal.SIGTERM, ended)  # as scripts/test does
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        with self.assertRaises(SystemExit):
            self.run_suites(lambda line: "PASS a/" in line and os.kill(os.getpid(), signal.SIGTERM), wanted="1", hang="a")
        self.assertEqual(subprocess.run(["pgrep", "-P", str(os.getpid()), "with-kvm|sleep"], capture_output=True).stdout, b"")


if __name__ == "__main__":
    unittest.main()
