"""From a TOML file to a `Catalog`, or every mistake in it at once."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from pydantic import ValidationError

from discreet.catalog.mistakes import Finding, mistakes_in
from discreet.catalog.model import Catalog
from discreet.catalog.settings import Surroundings
from discreet.catalog.toml import read_toml
from discreet.catalog.version import check_zone
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_DUCKDB = "duckdb:///"


class CatalogError(InputError):
    """A catalog file that cannot be used.

    Attributes:
        path: the file.
        mistakes: each with its place in the file; at least one.
    """

    def __init__(self, path: str | Path, mistakes: Sequence[Finding]) -> None:
        self.path = Path(path)
        self.mistakes = tuple(mistakes)
        lines = [f"the catalog {str(path)!r} cannot be used:", *map(str, self.mistakes)]
        super().__init__("\n  ".join(lines))


def load_catalog(path: str | Path) -> Catalog:
    """Read a catalog.

    Args:
        path: a TOML file. Paths in it are read from its folder.

    Raises:
        CatalogError: there is no such file, it is not TOML, or something in it is not allowed.
    """
    try:
        document = read_toml(Path(path))
    except InputError as error:
        raise CatalogError(path, [Finding("", str(error))]) from None
    engines = document.get("engines")
    folder = Path(path).absolute().parent
    surroundings = Surroundings(
        lambda text: place(text, folder), check_zone, frozenset(engines if isinstance(engines, dict) else ())
    )
    try:
        return Catalog.model_validate(document, context=surroundings)
    except ValidationError as error:
        mistakes = mistakes_in(error)
    raise CatalogError(path, mistakes)  # not from the error of pydantic, whose words are for programmers


def place(text: str, folder: Path) -> str:
    """A path, pattern or URL as it is for those who are elsewhere.

    Args:
        text: relative paths, also in duckdb:/// URLs, begin at *folder*.
        folder: absolute.
    """
    if text.startswith(_DUCKDB):
        path, mark, options = text.removeprefix(_DUCKDB).partition("?")
        return f"{_DUCKDB}{quote(str(folder / unquote(path)))}{mark}{options}"
    if _SCHEME.match(text):
        return text
    # Brackets in the folder's own name are no pattern.
    return str(Path(glob.escape(str(folder)), text) if glob.has_magic(text) else folder / text)
