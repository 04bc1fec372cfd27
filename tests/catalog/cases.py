"""Catalogs in text files, with the messages that refuse them."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def read_cases(name: str, short: dict[str, str] | None = None) -> list[tuple[str, list[str]]]:
    """Return the catalogs of a file, each with its sentences.

    Args:
        name: of the file. Lines that begin with "# " are notes, with "=> " sentences; ---- ends a catalog.
        short: lines that stand for others.
    """
    lines = (_HERE / name).read_text("utf-8").splitlines()
    text = "\n".join((short or {}).get(line, line) for line in lines if not line.startswith("# "))
    found = []
    for part in text.split("\n----\n"):
        expected = [line.removeprefix("=> ") for line in part.splitlines() if line.startswith("=> ")]
        found.append(("\n".join(line for line in part.splitlines() if not line.startswith("=> ")), expected))
    return found
