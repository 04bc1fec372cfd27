"""Source URLs such as postgresql://reader@db:5432/warehouse?table=public.reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlsplit

from discreet.errors import InputError


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL, unquoted.

    Args:
        scheme: in lower case, without the colon.
        host: empty if the URL names none.
        port: None for the engine's default port.
        user: or None.
        password: or None; never shown.
        path: without its leading slash.
    """

    scheme: str
    host: str
    port: int | None
    user: str | None
    password: str | None = field(repr=False)
    path: str
    options: Mapping[str, str]

    def check_options(self, allowed: Iterable[str]) -> None:
        """Refuse options that the engine does not support.

        Raises:
            InputError: the URL has such an option.
        """
        names = sorted(allowed)
        for name in self.options:
            if name not in names:
                raise InputError(
                    f"a {self.scheme} URL takes no option {name!r}; the options are {', '.join(names) or 'none'}"
                )

    def table(self, name: str | None, view: str | None) -> str | None:
        """Return *name* or else the table name in the URL; None if neither is set.

        Raises:
            InputError: both a table and a view were named.
        """
        table = name or self.options.get("table") or None
        if table is not None and view is not None:
            raise InputError("name a table or a view, not both")
        return table

    def with_password(self, password: str | None) -> Url:
        """Return the URL with the password *password*, or unchanged if it is None."""
        return self if password is None else replace(self, password=password)

    def check_tls(self, engine: str) -> None:
        """Refuse a password that would be sent without TLS, for engines whose URLs take https=true.

        Raises:
            InputError: the password would be sent without TLS.
        """
        if self.password is not None and self.options.get("https") != "true":
            raise InputError(f"a password is sent to {engine} over TLS only; add https=true to the URL")

    def __str__(self) -> str:
        """Return the URL without its password and options."""
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port is not None else ""
        path = f"/{self.path}" if self.path else ""
        return f"{self.scheme}://{user}{self.host}{port}{path}"


def parse_url(text: str) -> Url:
    """Return the parts of *text*.

    Raises:
        InputError: *text* is not a URL, has a fragment, or names an option twice.
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
