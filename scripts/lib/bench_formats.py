"""The part of scripts/bench that measures images: spindle img beside qemu-img, one after the other in every round.

A contender is a command that is timed, by what it prints ("Run completed in X seconds.") or by the clock; what prepares it is
not. Where qemu-img bench takes an engine it runs with each, and the best one counts. Ratios are of the rounds' figures.

A virtual machine whose host takes back free memory (free page reporting of virtio-balloon) makes whoever next fills the page
cache wait for the host: of conversions of the same kind every tenth may take two to four times as long, at random. So the two
orders of metadata, which are compared with a narrow bar, meet in many pairs, and the spread is printed.
"""

import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

SOURCE_BYTES = 400 << 20
BLOCKS = 400  # of 1 MiB, each written into once
PAIRS = 8  # of conversions with ordered and none, in each round
ENGINES = ("threads", "native", "io_uring")


class Contest:
    def __init__(self, spindle: Path, directory: Path):
        self.spindle, self.directory = shlex.quote(str(spindle)), directory
        self.seconds: dict[str, list[float]] = {}
        # Of the device under the directory while a contender ran: (writes, bytes written, flushes).
        self.device: dict[str, list[tuple[int, int, int]]] = {}

    def device_counts(self) -> tuple[int, int, int] | None:
        """What the device has done since it is there; None if the file system does not lie on one."""
        number = os.stat(self.directory).st_dev
        path = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
        fields = [int(field) for field in path.read_text().split()] if path.exists() else []
        return (fields[4], fields[6] * 512, fields[15]) if len(fields) > 15 else None

    def run(self, command: str) -> str:
        command = command.replace("SPINDLE", self.spindle)
        done = subprocess.run(command, shell=True, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{done.stdout}\nbench: this ended with {done.returncode}: {command}")
        return done.stdout

    def time(self, name: str, prepare: str, command: str) -> None:
        self.run(f"rm -f target; {prepare}")
        os.sync()  # what others left to be written is not this one's to wait for
        before = self.device_counts()
        start = time.monotonic()
        output = self.run(command)
        seconds = time.monotonic() - start
        if before and (after := self.device_counts()):
            self.device.setdefault(name, []).append(tuple(b - a for a, b in zip(before, after)))
        if found := re.search(r"Run completed in ([\d.]+) seconds", output):
            seconds = float(found[1])
        self.seconds.setdefault(name, []).append(max(seconds, 0.0005))

    def best(self, prefix: str) -> str:
        """Of those whose names begin so, the one with the smallest median."""
        return min((n for n in self.seconds if n.startswith(prefix)), key=lambda n: statistics.median(self.seconds[n]))

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])


def vdi_target(policy: str) -> str:
    return f"driver=vdi,file.filename=target,metadata-flush={policy}"


def spread(values: list[float]) -> str:
    """Quartiles, and how many took more than 1.7 times the median."""
    ordered, middle = sorted(values), statistics.median(values)
    slow = sum(value > 1.7 * middle for value in values)
    return (f"{ordered[0]:.3f} to {ordered[-1]:.3f} s, quartiles {ordered[len(ordered) // 4]:.3f} and "
            f"{ordered[-1 - len(ordered) // 4]:.3f}, {slow} of {len(ordered)} slow (over 1.7 times the median)")


def device_table(contest: Contest, say) -> None:
    """What reaches the device for each of the guest's writes, and how long that takes."""
    say("\nWhat reaches the device for each write of the guest's (other programs' writes are counted, too; medians)")
    if not contest.device:
        say("  skipped: the file system does not lie on a block device that counts")
        return
    say(f"  {'':12} {'':22} {'writes':>8} {'KiB':>9} {'flushes':>8} {'microseconds':>13}")
    for shape in ("64k", "512k", "4k-flush"):
        for title, name in (("qemu vdi", contest.best(f"{shape}/qemu-vdi/")), ("our vdi, ordered", f"{shape}/vdi/ordered"),
                            ("our raw", f"{shape}/raw")):
            writes, written, flushes = (statistics.median(column) / BLOCKS for column in zip(*contest.device[name]))
            say(f"  {shape:12} {title:22} {writes:8.2f} {written / 1024:9.1f} {flushes:8.2f} {contest.median(name) / BLOCKS * 1e6:13.0f}")
    for shape in ("64k", "512k"):
        limit = statistics.median(q / r for q, r in zip(contest.seconds[contest.best(f"{shape}/qemu-vdi/")], contest.seconds[f"{shape}/raw"]))
        say(f"  {shape}: a file without metadata, our raw, is {limit:.1f} times faster than qemu-img on vdi: about what any format can reach")


def one_round(contest: Contest, number: int) -> None:
    jobs = []

    def job(*arguments: str) -> None:
        jobs.append(arguments)

    for cache in ("unsafe", "writeback"):
        job(f"convert/{cache}/spindle", "", f"SPINDLE img convert -q -f raw -O vdi -t {cache} source target")
        job(f"convert/{cache}/qemu", "", f"qemu-img convert -f raw -O vdi -t {cache} source target")
    job("convert/dd", "", "dd if=source of=target bs=1M conv=fdatasync status=none")
    for pair in range(PAIRS):
        for name in (("none", "ordered") if pair % 2 else ("ordered", "none")):
            job(f"convert/policy/{name}", f"SPINDLE img create -q -f vdi target {SOURCE_BYTES}",
                f"SPINDLE img convert -n --target-is-zero -f raw --target-image-opts source {vdi_target(name)}")
    shapes = {"64k": "-s 64k", "512k": "-s 512k", "4k-flush": "-s 4k --flush-interval=16"}
    for shape, options in shapes.items():
        bench = f"bench -w -d 1 -c {BLOCKS} -S 1M -t none {options}"
        for name in ("none", "eager", "ordered"):
            job(f"{shape}/vdi/{name}", f"SPINDLE img create -q -f vdi target {BLOCKS}M", f"SPINDLE img {bench} --image-opts {vdi_target(name)}")
        job(f"{shape}/raw", f"SPINDLE img create -q target {BLOCKS}M", f"SPINDLE img {bench} -f raw target")
        for engine in ENGINES:
            for kind in ("vdi", "vpc"):
                job(f"{shape}/qemu-{kind}/{engine}", f"qemu-img create -q -f {kind} target {BLOCKS}M",
                    f"qemu-img {bench} -i {engine} -f {kind} target")
    # Who comes first may find another machine: the order turns with every round.
    for arguments in (jobs if number % 2 else reversed(jobs)):
        contest.time(*arguments)


def measure(spindle: Path, directory: Path, rounds: int, say, say_over) -> tuple[dict, bool]:
    """Prints the figures. ({name: {"seconds": median, "rounds": [...]}}, whether all bars were met)."""
    with (directory / "source").open("wb") as source:
        for _ in range(SOURCE_BYTES >> 20):
            source.write(os.urandom(1 << 20))
    contest = Contest(spindle, directory)
    contest.run("SPINDLE img convert -q -f raw -O vdi source target")  # whoever is first fills memory that nobody has used yet
    for number in range(1, rounds + 1):
        say_over(f"bench: images, round {number} of {rounds}")
        one_round(contest, number)
    say_over("")
    ok = True

    def ratio(title: str, over: str, under: str, bar: float, at_least: bool) -> None:
        """The ratio of two contenders' times, round by round, against its bar."""
        nonlocal ok
        rounds_ratios = sorted(a / b for a, b in zip(contest.seconds[over], contest.seconds[under]))
        middle = statistics.median(rounds_ratios)
        met = middle >= bar if at_least else middle <= bar
        ok &= met
        quartiles = f"({rounds_ratios[len(rounds_ratios) // 4]:.2f}-{rounds_ratios[-1 - len(rounds_ratios) // 4]:.2f})"
        say(f"  {title:50} {contest.median(over):8.3f} s / {contest.median(under):8.3f} s = {middle:7.2f} {quartiles}"
            f"  {'ok' if met else 'MISSED'}: the bar is {'>=' if at_least else '<='} {bar}")

    say(f"\nImages: 400 MB of random data, raw to vdi; medians of {rounds}")
    ratio("convert -t unsafe, qemu-img / ours", "convert/unsafe/qemu", "convert/unsafe/spindle", 1.2, True)
    ratio("convert -t writeback, qemu-img / ours", "convert/writeback/qemu", "convert/writeback/spindle", 1.0, True)
    ratio("convert -t writeback, ours / dd conv=fdatasync", "convert/writeback/spindle", "convert/dd", 1.1, False)
    ratio("convert, metadata-flush ordered / none", "convert/policy/ordered", "convert/policy/none", 1.1, False)
    for name in ("none", "ordered"):
        say(f"    {name + ':':10} {spread(contest.seconds[f'convert/policy/{name}'])}")
    say(f"\nImages: {BLOCKS} writes, one into each fresh MiB, cache=none, one at a time")
    for shape in ("64k", "512k"):
        best = contest.best(f"{shape}/qemu-vdi/")
        ratio(f"{shape}, qemu-img (best: {best.rsplit('/', 1)[1]}) / ours", best, f"{shape}/vdi/ordered", 20, True)
        ratio(f"{shape}, our vdi / our raw", f"{shape}/vdi/ordered", f"{shape}/raw", 1.5, False)
    best = contest.best("4k-flush/qemu-vdi/")
    ratio(f"4k, flush every 16, qemu-img (best: {best.rsplit('/', 1)[1]}) / ours", best, "4k-flush/vdi/ordered", 2, True)
    say("\nWhat an order of metadata costs (seconds; each into a fresh MiB)")
    say(f"  {'':12} {'qemu vdi':>10} {'none':>10} {'eager':>10} {'ordered':>10} {'qemu vpc':>10} {'raw':>10}")
    for shape in ("64k", "512k", "4k-flush"):
        columns = [contest.best(f"{shape}/qemu-vdi/"), *(f"{shape}/vdi/{name}" for name in ("none", "eager", "ordered")),
                   contest.best(f"{shape}/qemu-vpc/"), f"{shape}/raw"]
        say(f"  {shape:12} " + " ".join(f"{contest.median(name):10.3f}" for name in columns))
    device_table(contest, say)
    return {name: {"seconds": contest.median(name), "rounds": values, "device": contest.device.get(name)} for name, values in contest.seconds.items()}, ok
