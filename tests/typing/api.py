"""User code with its expected types: `make check` reads it with mypy, and nothing runs it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import assert_type

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

import discreet
from discreet.engines.base import Engine
from discreet.engines.duckdb import DuckDBEngine
from discreet.head_request import Kind
from discreet.release import Release
from discreet.table import Table

table = discreet.scan(Path("reads.parquet"), user="reader").where("day >= '2025-01-01'")
assert_type(table, Table)

budget = discreet.Budget(epsilon=2.0, delta=1e-8)
top = table.top("article", k=5, epsilon=0.5, delta="1e-9", noise="laplace", budget=budget)
assert_type(top, Release)
assert_type(top.counts, NDArray[np.int64] | None)
assert_type(top.charged, discreet.Cost)
assert_type(top.to_json(), str)

frame: pd.DataFrame = table.release(["article", "day"], relative_error=Fraction(1, 5), domain=pa.table({})).to_pandas()
key = discreet.NoiseKey(bytes(32), "reads, ingest 17")
table.release("article", bits=key, mechanism="pcr", progress=print)
table.top("article", bits=discreet.KeyedBits(key.secret, ("my own context", 1)), mechanism="stable", counts=False)

engine: Engine = DuckDBEngine("reads.csv")
assert_type(engine.columns(), Mapping[str, Kind])

table.top("article", noise="uniform")  # type: ignore[arg-type] # there is no such noise
discreet.scan("reads.parquet")  # type: ignore[call-arg] # whose a row is must be said
