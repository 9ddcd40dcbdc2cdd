"""Builds and runs the fuzzers of fuzz/, for scripts/fuzz and scripts/test.

A target is a name of fuzz/NAME_fuzz.cc. It starts from the inputs kept in fuzz/corpus/NAME and those that earlier runs found,
in build-fuzz/corpus/NAME, where what is new goes as well. fuzz/NAME.dict, if there is one, has words to make inputs of.
"""

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from children import Children

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build-fuzz"
COMPILER = "clang++-19"
LONGEST_INPUT = 4096          # bytes: short inputs are quick, and small enough to keep
SECONDS_PER_INPUT = 10        # longer is a hang
MEGABYTES = 2048              # more is a leak, or an allocation that a guest has asked for
GRACE = 240                   # seconds for start, corpus and end, beyond those asked for
FIND = re.compile(r"Test unit written to (\S*/\w+-(?:crash|leak|timeout|oom)-\w+)")


def targets() -> list[str]:
    return sorted(source.name.removesuffix("_fuzz.cc") for source in (ROOT / "fuzz").glob("*_fuzz.cc"))


def missing() -> str:
    """Why no fuzzer can be built here, or nothing."""
    if not shutil.which(COMPILER):
        return f"no {COMPILER} here; scripts/install-deps --fuzz brings it"
    return ""


def build_commands(names: list[str]) -> list[list]:
    return [["cmake", "-G", "Ninja", "-S", ROOT, "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_COMPILER=clang-19",
             f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DSPINDLE_FUZZ=ON", "-DSPINDLE_BENCH=OFF"],
            ["cmake", "--build", BUILD, "--target", *(f"{name}_fuzz" for name in names)]]


def program(name: str) -> Path:
    return BUILD / "fuzz" / f"{name}_fuzz"


def corpora(name: str) -> tuple[Path, Path]:
    """Where new inputs go, and those that are kept."""
    found = BUILD / "corpus" / name
    found.mkdir(parents=True, exist_ok=True)
    return found, ROOT / "fuzz/corpus" / name


@dataclasses.dataclass
class Outcome:
    good: bool
    text: str  # what to tell


def run(names: list[str], seconds: int, say) -> dict[str, bool]:
    """Runs each for so long, as many at once as there are cores. Says how each ended, as it ends; true: it found nothing."""
    children, good = Children(), {}

    def ended(name: str, outcome: Outcome) -> None:
        good[name] = outcome.good
        say(outcome.text)
    children.run(names, len(os.sched_getaffinity(0)), lambda name: _run_one(children, name, seconds), ended)
    return good


def _run_one(children: Children, name: str, seconds: int) -> Outcome:
    found, kept = corpora(name)
    before = len(list(found.iterdir()))
    artifacts, log = BUILD / "artifacts", BUILD / f"{name}.log"
    artifacts.mkdir(exist_ok=True)
    words = ROOT / "fuzz" / f"{name}.dict"
    command = [program(name), f"-max_total_time={seconds}", f"-max_len={LONGEST_INPUT}", f"-timeout={SECONDS_PER_INPUT}",
               f"-rss_limit_mb={MEGABYTES}", "-print_final_stats=1", f"-artifact_prefix={artifacts}/{name}-",
               *([f"-dict={words}"] if words.exists() else []), found, *([kept] if kept.is_dir() else [])]
    with log.open("wb") as output:
        process = children.start(command, stdout=output, stderr=output)
        try:
            status: int | str = process.wait(timeout=seconds + GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = "none, it did not end"
    text = log.read_text(errors="replace")
    counted = re.search(r"^stat::number_of_executed_units: *(\d+)", text, re.M)
    executed = int(counted[1]) if counted else 0
    if status == 0 and executed > 0:
        covered = re.findall(r"\bcov: (\d+)", text)
        return Outcome(True, f"   {name}: ok, {executed:,} inputs in {seconds} s, {covered[-1] if covered else 0} edges covered, "
                             f"{len(list(found.iterdir())) - before} new inputs in {found.relative_to(ROOT)}")
    said = [f"FAIL {name}: exit status {status}; the log is {log.relative_to(ROOT)}", *text.splitlines()[-60:]]
    if made := FIND.findall(text):
        said += [f"   found: {made[-1]}", f"   again: {shlex.join([str(program(name)), made[-1]])}"]
    return Outcome(False, "\n".join(said))


def keep(name: str) -> str:
    """Makes fuzz/corpus/NAME the smallest set of inputs that covers as much. What went wrong, or nothing."""
    found, kept = corpora(name)
    with tempfile.TemporaryDirectory(dir=BUILD) as smallest:
        done = subprocess.run([program(name), "-set_cover_merge=1", "-use_counters=0", f"-max_len={LONGEST_INPUT}", smallest, found,
                               *([kept] if kept.is_dir() else [])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace")
        if done.returncode != 0:
            return f"the corpus could not be merged\n{done.stdout[-2000:]}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(smallest, kept)
    return ""
