"""Tables of users and items: real ones if their files are present, made-up ones always.

A real table is a Parquet file with the columns user_id and item in the folder `shared/data` beside the repository, or
an official file of a paper's own table, given by its path. It is read, never copied. A made-up table is generated to
match the published statistics of a table that is not available.

The papers' own tables are called ts-gowalla, ts-brightkite, ts-foursquare (Carvalho et al. 2020, Table 1) and
pcr-finance, pcr-reddit-small, pcr-reddit, pcr-wikipedia, pcr-movielens (Rogers 2024, Table 1). Each can be made up, and
is available as a real table too if its official file is given (`papers.official`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from papers.generators import make_table
from papers.official import load
from papers.user_items import numbered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from papers.user_items import UserItems

REAL = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


class Tables:
    """Real and made-up tables by name, loaded once.

    Args:
        real: the folder of the real tables, which need not exist.
        official: paths of official files, by the name of the paper's table.
    """

    def __init__(self, real: Path = REAL, official: Mapping[str, Path] | None = None) -> None:
        self._real = real
        self._official = dict(official or {})
        self._kept: dict[tuple[str, str], UserItems] = {}

    def has(self, name: str) -> bool:
        """Return True if the real table *name* is present, or an official file of it was given."""
        return name in self._official or (self._real / f"{name}.parquet").exists()

    def real(self, name: str) -> UserItems:
        """Return the real table *name*."""
        if ("real", name) not in self._kept:
            if name in self._official:
                table = load(name, self._official[name])
            else:
                with duckdb.connect() as connection:
                    table = numbered(name, connection.read_parquet(str(self._real / f"{name}.parquet")))
            self._kept["real", name] = table
        return self._kept["real", name]

    def made_up(self, name: str) -> UserItems:
        """Return the made-up table *name* (a key of `papers.generators.GENERATORS`).

        "NAME/N" is one N-th of the users of "NAME": "pcr-reddit/10" is a tenth of those of "pcr-reddit".
        """
        if ("made up", name) not in self._kept:
            self._kept["made up", name] = make_table(name)
        return self._kept["made up", name]
