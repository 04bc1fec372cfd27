"""How another data centre is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import httpx

from discreet.errors import DiscreetError, InputError
from discreet.wire.malformed import read_body
from discreet.wire.peers import BODY_MOST_BYTES, Requested, Transferred

if TYPE_CHECKING:
    from pydantic import BaseModel

    from discreet.service.peer_keys import PeerKeys
    from discreet.wire.peers import Requests, Transfers

Answer = TypeVar("Answer", Requested, Transferred)


class Misunderstood(DiscreetError):
    """Another data centre cannot be reached, or answers what is no answer."""

    def __init__(self) -> None:
        super().__init__("another data centre cannot be reached, or does not answer as one")


class PeerClient:
    """Sends messages and reads the answers.

    Args:
        keys: that data centres know each other by.
        client: sends them; closed with this.
    """

    def __init__(self, keys: PeerKeys, client: httpx.Client) -> None:
        self._keys, self._client = keys, client

    def ask(self, url: str, message: Requests) -> Requested:
        """Ask for shares.

        Raises:
            Misunderstood: nothing came back, or nothing that can be read.
        """
        return self._post(f"{url}/v1/peer/requests", message, Requested)

    def send(self, url: str, message: Transfers) -> Transferred:
        """Send shares and receipts.

        Raises:
            Misunderstood: as `ask`.
        """
        return self._post(f"{url}/v1/peer/transfers", message, Transferred)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _post(self, url: str, message: BaseModel, kind: type[Answer]) -> Answer:
        headers = {"Authorization": self._keys.header, "Content-Type": "application/json"}
        try:
            with self._client.stream("POST", url, content=message.model_dump_json(), headers=headers) as response:
                body = b""
                for part in response.iter_bytes():
                    body += part
                    if len(body) > BODY_MOST_BYTES:
                        raise Misunderstood
            if response.status_code != httpx.codes.OK:
                raise Misunderstood
            return read_body(kind, body)
        except (httpx.HTTPError, httpx.InvalidURL, InputError):
            raise Misunderstood from None
