"""Run the benchmarks named on the command line, or all of them."""

from __future__ import annotations

import argparse
import os
import platform

from benchmarks import (
    accounting,
    accuracy,
    budget,
    budget_postgres,
    contract,
    data_centres,
    each,
    engines,
    ledger,
    mechanisms,
    noise,
    ordinary,
    outcomes,
    pairs,
    parquet,
    processes,
    running,
    scale,
    service,
    statements,
    sums,
)

BENCHMARKS = {
    "noise": noise.run,
    "mechanisms": mechanisms.run,
    "scale": scale.run,
    "ordinary": ordinary.run,
    "sums": sums.run,
    "averages": sums.averages,
    "processes": processes.run,
    "release": processes.release_cost,
    "top": processes.top_cost,
    "accounting": accounting.run,
    "accuracy": accuracy.quick,
    "budget": budget.run,
    "budget-postgres": budget_postgres.run,
    "data-centres": data_centres.run,
    "each": each.run,
    "running": running.run,
    "running-scale": running.scale,
    "each-servers": each.servers,
    "service": service.run,
    "ledger": ledger.run,
    "parquet": parquet.run,
    "memory": service.memory,
    "analysts": service.analysts,
    "soak": service.soak,
    "statements": statements.run,
    "engines": engines.run,
    "pairs-servers": pairs.run,
    "growth": engines.growth,
    "fuzz": outcomes.run,
    "contract": contract.run,
}
WHEN_NAMED = {
    "analysts",
    "budget-postgres",
    "contract",
    "each-servers",
    "engines",
    "fuzz",
    "growth",
    "ledger",
    "memory",
    "ordinary",
    "pairs-servers",
    "parquet",
    "release",
    "running-scale",
    "scale",
    "soak",
}
"""Benchmarks that take long, or start servers that `make test-engines` installs."""


QUIET_LOAD = 0.3
"""The largest load, in processes that run or wait, at which seconds of wall time are worth reading."""


def main() -> None:
    """Run benchmarks and print a table for each, headed by the first line of the benchmark's docstring."""
    summaries = (
        f"  {name:<16}{benchmark.__doc__.splitlines()[0]}{' (when named)' if name in WHEN_NAMED else ''}"
        for name, benchmark in BENCHMARKS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run benchmarks, by default all that are not marked.",
        epilog="\n".join(summaries),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="one of those below")
    wanted = parser.parse_args().names or [name for name in BENCHMARKS if name not in WHEN_NAMED]
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}")
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    load = os.getloadavg()[0]  # of the last minute, before anything is measured
    if load > QUIET_LOAD:
        print(f"warning: the machine is not quiet, with a load of {load:.1f}: read ratios and CPU, not seconds")
    for name in wanted:
        print(f"\n{name}: {BENCHMARKS[name].__doc__.splitlines()[0]}\n", flush=True)
        print("\n".join(BENCHMARKS[name]()), flush=True)


if __name__ == "__main__":
    main()
