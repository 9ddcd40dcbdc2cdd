"""The monitor's own vCPU tests, which need a real KVM: pause, park, reset, spin, triple fault."""

import os
import re
import subprocess

import guestrun


def run(context):
    program = guestrun.REPOSITORY / "build/vmm/vmm_test"
    if not program.exists():
        context.check("vmm_test", f"{program} is not there: build it")
        return
    done = subprocess.run([program, "-tc=vcpu*"], env=os.environ | {"SPINDLE_KVM_TESTS": "1"}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    found = re.search(r"test cases: *(\d+) \| *(\d+) passed \| *(\d+) failed", done.stdout)
    ran = int(found[2]) if found else 0
    context.check(f"{ran} test cases of vmm_test", (done.returncode or ran == 0 or "skipped:" in done.stdout) and
                  f"exit status {done.returncode}: {' | '.join(done.stdout.splitlines()[-25:])}")
