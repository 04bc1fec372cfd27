"""The URLs of started servers in the form that `discreet` accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.engines.url import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping


def url_of(started: str | Mapping[str, str]) -> str:
    """Return the URL for the result of a server's `start`, which for Pinot is a mapping from roles to URLs."""
    if isinstance(started, str):
        return started
    return f"pinot://{started['broker'].removeprefix('http://')}?controller={started['controller']}"


def without_password(url: str) -> tuple[str, str | None]:
    """Return a URL without its password, as catalogs require, and the password."""
    password = parse_url(url).password
    if password is None:
        return url, None
    return url.replace(f":{password}@", "@" if parse_url(url).user else ""), password
