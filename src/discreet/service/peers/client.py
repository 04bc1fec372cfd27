"""The HTTP client of other data centres, and the key that all of them share."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, TypeVar

import httpx

from discreet.errors import DiscreetError, InputError
from discreet.service.auth.identity import Unauthorized
from discreet.service.secrets import read_secret
from discreet.wire.peers import BODY_MOST_BYTES, Requested, Transferred
from discreet.wire.problems import read_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from discreet.service.settings import DataCentre
    from discreet.wire.peers import Requests, Transfers


Answer = TypeVar("Answer", Requested, Transferred)


class PeerUnreachable(DiscreetError):
    """Another data centre cannot be reached, or its response cannot be read."""

    def __init__(self) -> None:
        super().__init__("another data centre cannot be reached, or does not answer as one")


class PeerClient:
    """Send messages and read the responses.

    Args:
        keys: that data centres know each other by.
        client: sends them; closed with this.
    """

    def __init__(self, keys: PeerKeys, client: httpx.Client) -> None:
        self._keys, self._client = keys, client

    def ask(self, url: str, message: Requests) -> Requested:
        """Ask for shares.

        Raises:
            PeerUnreachable: nothing came back, or nothing that can be read.
        """
        return self._post(f"{url}/v1/peer/requests", message, Requested)

    def send(self, url: str, message: Transfers) -> Transferred:
        """Send shares and receipts.

        Raises:
            PeerUnreachable: as `ask`.
        """
        return self._post(f"{url}/v1/peer/transfers", message, Transferred)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def _post(self, url: str, message: BaseModel, kind: type[Answer]) -> Answer:
        headers = {"Authorization": self._keys.header, "Content-Type": "application/json"}
        try:
            with self._client.stream("POST", url, content=message.model_dump_json(), headers=headers) as response:
                body = b""
                for part in response.iter_bytes():
                    body += part
                    if len(body) > BODY_MOST_BYTES:
                        raise PeerUnreachable
            if response.status_code != httpx.codes.OK:
                raise PeerUnreachable
            return read_body(kind, body)
        except (httpx.HTTPError, httpx.InvalidURL, InputError):
            raise PeerUnreachable from None


KEY_LEAST = 32
"""The fewest characters of a key."""


class PeerKeys:
    """The keys of all data centres: the first is sent, all are accepted, so that they can be replaced one by one.

    Args:
        keys: at least one, of 32 or more printable characters without white space.

    Raises:
        InputError: there is none, or one is too short.
    """

    def __init__(self, keys: list[str]) -> None:
        if not keys or any(len(key) < KEY_LEAST or not key.isascii() or not key.isprintable() for key in keys):
            raise InputError(
                f"the key of the data centres needs {KEY_LEAST} or more printable characters, such as openssl rand "
                "-hex 32 prints; an older key may follow in a second line"
            )
        self._said = keys[0]
        self._digests = [_digest(key) for key in keys]

    def __repr__(self) -> str:
        return "PeerKeys(...)"

    @property
    def header(self) -> str:
        """Return the header Authorization of requests to other data centres."""
        return f"Bearer {self._said}"

    def check(self, header: str | None) -> None:
        """Raise unless *header* holds one of the keys.

        Raises:
            Unauthorized: it does not.
        """
        kind, _, key = (header or "").partition(" ")
        digest = _digest(key.strip())
        known = [hmac.compare_digest(digest, each) for each in self._digests]
        if kind.lower() != "bearer" or not any(known):
            raise Unauthorized("unknown")


def peer_keys(centre: DataCentre, environment: Mapping[str, str]) -> PeerKeys:
    """Return the keys that the settings name.

    Raises:
        InputError: they are not there, too short, or others can read the file.
    """
    if centre.key_file is not None:
        text = read_secret(centre.key_file, "key of the data centres").decode("utf-8", "replace")
    else:
        text = environment.get(centre.key_env or "", "")
    return PeerKeys(text.split())


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
