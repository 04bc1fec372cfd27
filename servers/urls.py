"""The URLs of started servers, as `discreet` takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.engines.opening import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping


def url_of(started: str | Mapping[str, str]) -> str:
    """What a server's `start` returned, as a URL: Pinot's says where each role listens."""
    if isinstance(started, str):
        return started
    return f"pinot://{started['broker'].removeprefix('http://')}?controller={started['controller']}"


def without_password(url: str) -> tuple[str, str | None]:
    """A URL as a catalog may hold it, and its password."""
    password = parse_url(url).password
    if password is None:
        return url, None
    return url.replace(f":{password}@", "@" if parse_url(url).user else ""), password
