"""What every guest that ran the scenario `stress` must show: suites differ in the machine, not in this."""


def check(context, machine, devices, seconds, label="") -> None:
    """Waits for the end of `machine`, then checks what it said of `devices`. `label` tells one machine of a suite from the others."""
    status = machine.wait()
    by_kind = {(e.kind, e.values.get("dev", "")): e for e in machine.events}
    context.check(f"{label}the scenario ends well", (status or not _ended_well(machine)) and
                  f"exit status {status}; stderr: {machine.stderr()}; console: {machine.tail()}")
    for device in devices:
        load, toggles = by_kind.get(("stress", device)), by_kind.get(("toggles", device))
        context.check(f"{label}{device}: {load['writes'] if load else 0} writes in {seconds} s, every read as written",
                      not load and "no result" or (load["bad"] != "0" or load["errors"] != "0" or load["writes"] == "0") and load.text)
        context.check(f"{label}{device}: {toggles['count'] if toggles else 0} toggles",
                      not toggles and "no result" or (toggles["failed"] != "0" or toggles.number("count") < 2) and toggles.text)
        # A lost interrupt shows as a request that libata's or blk-mq's timeout of 30 s had to rescue.
        context.check(f"{label}{device}: no request waited for a timeout", not load and "no result" or
                      load.number("slowest_us") > 25_000_000 and f"slowest request {load['slowest_us']} us")
    complaints = [e.text for e in machine.events if e.kind == "complaint"]
    context.check(f"{label}the kernel has nothing to complain about", complaints and "; ".join(complaints[:5]))
    for device, counters in machine.final_stats().items():
        reasons = sum(counters[k] for k in ("flush_requests", "flushes_writethrough", "flushes_toggle", "flushes_background"))
        outcomes = sum(counters[k] for k in ("flushes_issued", "flushes_elided", "flushes_coalesced", "flushes_failed"))
        context.check(f"{label}{device}: {reasons} reasons to flush sum to the outcomes",
                      reasons != outcomes and f"{reasons} reasons, {outcomes} outcomes: {counters}")


def _ended_well(machine) -> bool:
    return any(e.kind == "end" and e["status"] == "0" for e in machine.events)
