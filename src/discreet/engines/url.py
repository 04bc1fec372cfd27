"""Where a table is, as a URL: postgresql://reader@db:5432/warehouse?table=public.reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL, unquoted.

    Args:
        scheme: before the colon, in lower case.
        host: empty if there is none.
        port: None for the engine's own.
        user: or None.
        password: or None. Shown nowhere.
        path: without the slash before it.
        options: behind the question mark.
    """

    scheme: str
    host: str
    port: int | None
    user: str | None
    password: str | None = field(repr=False)
    path: str
    options: Mapping[str, str]

    def check_options(self, allowed: Iterable[str]) -> None:
        """Refuse options that the engine does not know.

        Raises:
            InputError: there is one.
        """
        known = sorted(allowed)
        for name in self.options:
            if name not in known:
                raise InputError(
                    f"a {self.scheme} URL takes no option {name!r}; the options are {', '.join(known) or 'none'}"
                )

    def __str__(self) -> str:
        """The URL without its password and options."""
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port is not None else ""
        path = f"/{self.path}" if self.path else ""
        return f"{self.scheme}://{user}{self.host}{port}{path}"


def parse_url(text: str) -> Url:
    """The parts of *text*.

    Raises:
        InputError: it is no URL, has a fragment, or names an option twice.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InputError("the source is not a URL that can be read; it looks like engine://host:port/name") from None
    options = parse_qsl(parts.query, keep_blank_values=True)
    if not parts.scheme or parts.fragment or len(dict(options)) < len(options):
        raise InputError("the source is not a URL that can be read; it looks like engine://host:port/name?table=name")
    return Url(
        parts.scheme.lower(),
        unquote(parts.hostname or ""),
        port,
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
        unquote(parts.path.removeprefix("/")),
        dict(options),
    )
