"""Pages, exports and commands on a ledger of a million lines: CPU seconds, and memory."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from benchmarks.budget import FOLDER
from benchmarks.timing import processes_in_turns, table
from discreet.budget.ledger import canonical
from discreet.budget.manager import BudgetManager
from discreet.budget.model import Account, AdminAction, Claim, Sliding
from discreet.budget.rules import clock_us, microseconds
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.service.auth.access import RecordCache
from discreet.service.init_project import create_project
from discreet.service.observability import StructuredLog
from discreet.service.officer.admin import AdminAPI
from discreet.service.settings import load_settings
from discreet.service.stores import utc_now
from discreet.values import Cost
from discreet.wire.administration import AccountChanges
from discreet.wire.document import ReleaseDocument

if TYPE_CHECKING:
    from collections.abc import Callable

QUERIES = int(os.environ.get("DISCREET_QUERIES", "333000"))
"""Each adds three lines."""

KEPT = os.environ.get("DISCREET_LEDGER")
"""A folder for the ledger, which is kept there for the next run; by default it is removed."""

ACCOUNTS, QUESTIONS, THREADS, DAYS = 50, 200, 32, 28
RESULT = canonical(ReleaseDocument.model_json_schema()["examples"][0]).encode()
QUESTION = {"measure": {"kind": "users", "column": "reader"}, "where": [], "k": 10}
COST = Cost(Fraction(1, 10**6), Fraction(1, 10**12))
PAGES: dict[str, dict[str, object]] = {
    "activity, a week": {},
    "activity, four weeks": {},
    "activity, four weeks, one account": {"account": "a7"},
    "activity, four weeks, one dataset, 1,000 entries": {"dataset": "d3", "limit": 1_000},
    "activity, four weeks, changes": {"kind": "changes"},
}


def run() -> list[str]:
    """Return a table of CPU seconds, with the median of five for pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(KEPT or stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER)))
        path = folder / "discreet.toml"
        if not path.exists():
            path = create_project(folder).settings
            _fill(folder / "budget.db")
        settings = load_settings(str(path))
        since = f"{utc_now() - timedelta(days=DAYS):%Y-%m-%d}"
        with contextlib.closing(SQLiteStore(folder / "budget.db", clock_us(utc_now))) as store:
            manager, log = BudgetManager(store, str), StructuredLog(io.StringIO(), "json", utc_now)
            api = AdminAPI(manager, RecordCache(store, utc_now), None, None, settings, log, utc_now, None)
            lines = sum(head.seq for head in store.heads())

            def seconds(handler: Callable[[Any], Any], **parameters: object) -> float:
                begin = time.process_time()
                handler(SimpleNamespace(parameters=parameters))
                return time.process_time() - begin

            gc.freeze()  # as a service does
            usual = dict.fromkeys(("account", "dataset", "kind", "since", "until", "after")) | {"limit": 100}
            rows.append(["the first page, which makes the index", seconds(api.activity, **usual)])
            for title, parameters in PAGES.items():
                asked = usual | parameters | ({"since": since} if "weeks" in title else {})
                rows.append([title, statistics.median(seconds(api.activity, **asked) for _ in range(5))])
            rows.append(["spending, four weeks", statistics.median(seconds(api.spending, days=28) for _ in range(5))])

            def preview(call: Any) -> None:
                api.preview(call, AccountChanges(mode="enforce"))

            tried = statistics.median(seconds(preview, account="a7", days=DAYS) for _ in range(5))
            rows.append(["a limit tried on four weeks", tried])
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for days in (2, 4, 8):
                start = f"{utc_now() - timedelta(days=days):%Y-%m-%d}"
                whole = usual | {"since": start}
                entries = [0]

                def export(call: Any, entries: list[int] = entries) -> None:
                    entries[0] = sum(1 for _ in api.export_activity(call)[1])

                taken = seconds(export, **whole)
                rows.append([f"export of {days} days, {entries[0]:,} entries", taken])
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            rows.append([f"(memory during exports: +{grown:.0f} MiB)", 0.0])
        for command in (["show"], ["export"], ["verify"]):
            words = [sys.executable, "-m", "discreet", "ledger", *command, "--config", str(path)]
            (done,) = processes_in_turns([words], 1)
            rows.append([f"discreet ledger {command[0]}, {done.mib:.0f} MiB", done.cpu])
    return [f"{lines:,} lines", *table(["what", "CPU seconds"], [[title, f"{seconds:.2f}"] for title, seconds in rows])]


def _fill(path: Path) -> None:
    """Add queries of all accounts, evenly over four weeks."""
    begin_us = microseconds(utc_now()) - DAYS * 86_400_000_000
    numbers = itertools.count()
    progress = [0]
    with contextlib.closing(
        SQLiteStore(path, lambda: begin_us + progress[0] * DAYS * 86_400_000_000 // QUERIES)
    ) as store:
        store.write(lambda t: t.db.write([("UPDATE budget_meta SET seen_us = ?", (begin_us,))]), "clock")
        act = AdminAction("benchmark", "a benchmark")
        for n in range(ACCOUNTS):
            store.create(
                Account(f"a{n}", Cost(Fraction(10), Fraction(1, 100)), Fraction(1, 50), None, Sliding(90)), act
            )

        def work() -> None:
            while (n := next(numbers)) < QUERIES:
                progress[0] = n
                question = canonical(
                    {"dataset": f"d{n % 5}", "items": [f"c{n % QUESTIONS}"], "measure": {}, "where": []}
                )
                key = n.to_bytes(32)
                store.reserve(Claim(f"{n:032x}", f"a{n % ACCOUNTS}", key, COST, lease_ms=86_400_000, question=question))
                store.start(f"{n:032x}")
                store.settle(f"{n:032x}", COST, RESULT)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
