"""Download server archives once from public registries and verify them by a known digest."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

_SILENCE_SECONDS = 60


def fetched(url: str, sha256: str) -> Path:
    """Return the file at *url*, from $DISCREET_CACHE (or ~/.cache/discreet-servers) if it is cached there.

    Args:
        url: https only.
        sha256: the file's digest in hexadecimal digits.

    Raises:
        ConnectionError: the registry cannot be reached, has no such file, or broke off the transfer.
        ValueError: the downloaded file has another digest.
    """
    cache = Path(os.environ.get("DISCREET_CACHE") or Path.home() / ".cache" / "discreet-servers")
    path = cache / sha256 / Path(urlsplit(url).path).name
    if path.is_file() and _digest(path) == sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        part = Path(folder) / path.name
        _download(url, part)
        if _digest(part) != sha256:
            raise ValueError(f"{url} is not the file with the SHA-256 digest {sha256}")
        part.replace(path)
    return path


def _download(url: str, path: Path) -> None:
    if not url.startswith("https://"):
        raise ValueError(f"{url} is not an https URL")
    try:
        with urlopen(url, timeout=_SILENCE_SECONDS) as answer, path.open("wb") as file:  # noqa: S310 - https only
            shutil.copyfileobj(answer, file, 1 << 20)
    except (OSError, HTTPException) as error:
        raise ConnectionError(f"{url} cannot be fetched: {error}") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
