"""Five cache modes x (as configured, off, on again) x every way to toggle, on both buses, with exact counters (D2, D3, D9)."""

import togglecheck


def run(context):
    for cache in togglecheck.MODES:
        for row in togglecheck.rows(context.images, context.directory, cache):
            context.check(f"{cache} {row.device} {row.command}", "; ".join(row.problems))
