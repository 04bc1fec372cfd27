"""Names and text as TOML has them."""

from __future__ import annotations

import json
import re

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_text(text: str) -> str:
    """*text* in quotes, on one line."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes what JSON does, and DEL


def write_key(*names: str) -> str:
    """The place of a table or setting: datasets.engagements."member id"."""
    return ".".join(name if _BARE.fullmatch(name) else write_text(name) for name in names)
