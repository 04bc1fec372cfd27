"""What names, keys and reasons may look like."""

from __future__ import annotations

from discreet.errors import InputError

NAME_LONGEST = 200
"""Characters of an account's name, an actor or a key."""

REASON_LONGEST = 2_000
"""Characters of a reason."""

RECORD_NAME_LONGEST = 2_000
"""Characters of a record's name."""

RECORD_LONGEST = 1_000_000
"""Characters of a record."""


def check_name(name: str, what: str) -> None:
    """Raise unless *name* can stand in the ledger.

    Raises:
        InputError: it is empty, too long, or has white space or characters that do not print.
    """
    if not 0 < len(name) <= NAME_LONGEST or not name.isprintable() or " " in name:
        raise InputError(f"{what} has up to {NAME_LONGEST} printable characters and no white space")


def check_digest(digest: bytes, what: str) -> None:
    """Raise unless it has 16 to 64 bytes.

    Raises:
        InputError: it has not.
    """
    if not 16 <= len(digest) <= 64:
        raise InputError(f"{what} has from 16 to 64 bytes")


def check_record(kind: str, name: str, text: str | None) -> None:
    """Raise unless a store can keep *text* under that name.

    Args:
        kind: as `check_name`.
        name: up to 2,000 characters that print, or tabs.
        text: up to 1,000,000 characters, without the character 0; None for a record that goes.

    Raises:
        InputError: it cannot.
    """
    check_name(kind, "the kind of a record")
    if not 0 < len(name) <= RECORD_NAME_LONGEST or not name.replace("\t", "").isprintable():
        raise InputError(f"the name of a record has up to {RECORD_NAME_LONGEST:,} printable characters")
    if text is not None and (len(text) > RECORD_LONGEST or "\0" in text or not _is_unicode(text)):
        raise InputError(f"a record has up to {RECORD_LONGEST:,} characters and not the character 0")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
