"""TOML: reading files, and writing keys and text."""

from __future__ import annotations

import json
import re
import tomllib
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from discreet.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_text(text: str) -> str:
    """Return *text* as a TOML string on one line."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes what JSON does, and DEL


def write_key(*names: str) -> str:
    """Return names as a dotted TOML key: datasets.engagements."member id"."""
    return ".".join(name if _BARE.fullmatch(name) else write_text(name) for name in names)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a file, with decimal numbers exact.

    Raises:
        InputError: there is no such file, or it is not TOML; the message does not name the file.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        wrong = "there is no such file"
    except OSError as error:
        wrong = f"it cannot be read: {(error.strerror or 'no access').lower()}"
    except UnicodeDecodeError:
        wrong = "it is not UTF-8 text"
    else:
        return _parse(text)
    raise InputError(wrong)


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text, parse_float=Decimal)  # 0.1 is a tenth
    except tomllib.TOMLDecodeError as error:
        wrong = f"it is not TOML: {str(error)[:1].lower()}{str(error)[1:]}"
    except (ValueError, ArithmeticError, RecursionError):  # numbers of thousands of digits, lists in lists in lists
        wrong = "it is not TOML that can be read: a number is too long, or lists are nested too deep"
    raise InputError(wrong)
