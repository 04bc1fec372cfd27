"""Processes that start at once: they are forked from one that has imported what they need."""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("pandas", "pyarrow.csv", "pyarrow.parquet"),
        *("uvicorn.protocols.http.httptools_impl", "uvicorn.lifespan.on", "uvicorn.loops.uvloop"),
        *("discreet.engines.duckdb", "discreet.query.sql", "discreet.service.server"),
        *("tests.service.faults.processes", "tests.budget.crash_child"),
    ]
)
