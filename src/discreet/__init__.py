"""Discreet: differentially private top-k and counts over items that need not be listed in advance.

    import discreet

    table = discreet.scan("reads.parquet", user="reader")
    print(table.top("article", k=10, epsilon=1.0, delta=1e-8))

Importing this package is fast: each public name is loaded at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from discreet._version import __version__

if TYPE_CHECKING:
    from discreet.budget import Budget
    from discreet.catalog.loader import CatalogError
    from discreet.client import Client
    from discreet.errors import (
        BudgetExceeded,
        DiscreetError,
        EngineBusy,
        EngineError,
        EngineTimeout,
        EngineUnreachable,
        InexactHead,
        InputError,
        InvariantViolated,
        SQLError,
        UnfitData,
        UnknownColumn,
        WhereError,
    )
    from discreet.noise import KeyedBits, SystemBits
    from discreet.query.query import Measure, Select
    from discreet.release import NoiseKey, Release
    from discreet.table import Table, scan
    from discreet.values import Cost
    from discreet.warehouse import Warehouse, connect

_MODULES = {
    "scan": "table",
    "Table": "table",
    "connect": "warehouse",
    "Warehouse": "warehouse",
    "Select": "query.query",
    "Measure": "query.query",
    "Release": "release",
    "NoiseKey": "release",
    "Client": "client",
    "Budget": "budget",
    "Cost": "values",
    "KeyedBits": "noise",
    "SystemBits": "noise",
    "CatalogError": "catalog.loader",
}
"""The modules that define the names of `__all__`, except those in `errors`."""

__all__ = [
    "Budget",
    "BudgetExceeded",
    "CatalogError",
    "Client",
    "Cost",
    "DiscreetError",
    "EngineBusy",
    "EngineError",
    "EngineTimeout",
    "EngineUnreachable",
    "InexactHead",
    "InputError",
    "InvariantViolated",
    "KeyedBits",
    "Measure",
    "NoiseKey",
    "Release",
    "SQLError",
    "Select",
    "SystemBits",
    "Table",
    "UnfitData",
    "UnknownColumn",
    "Warehouse",
    "WhereError",
    "__version__",
    "connect",
    "scan",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name not in __all__:
        raise AttributeError(f"module 'discreet' has no attribute {name!r}")
    return getattr(importlib.import_module(f"discreet.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
