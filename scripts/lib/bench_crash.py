"""The part of scripts/bench that says how many crash states are judged a second, on one core (bench/crash_bench.cc).

The bars are for vdi, over each workload by itself; the toy format beside it is a driver that costs next to nothing, so it shows
how much of a state's time is the explorer's own.
"""

import sys

BARS = {"metadata": 20_000, "full": 2_000}  # states a second
MEANING = {"metadata": "checked, opened and closed", "full": "and read back"}


def report(results: dict[str, dict], say) -> bool:
    """Prints the figures of crash_bench. Whether all bars were met."""
    ok = True
    for depth, bar in BARS.items():
        say(f"\nCrash states on one core, {depth}: {MEANING[depth]}")
        names = [name for name in results if name.startswith(f"{depth}/vdi/")]
        if not names:
            sys.exit(f"bench: no result whose name begins with {depth}/vdi/")
        for name in names:
            toy = results[name.replace("/vdi/", "/toy/")]
            rates = sorted(1 / seconds for seconds in results[name]["rounds"])
            rate = 1 / results[name]["seconds"]
            met = rate >= bar
            ok &= met
            say(f"  {name:32} {rate:12,.0f}/s   ({rates[0]:,.0f}-{rates[-1]:,.0f})   toy {1 / toy['seconds']:10,.0f}/s"
                f"  {'ok' if met else 'MISSED'}: the bar is {bar:,}")
    return ok
