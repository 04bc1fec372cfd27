"""Talking to a Pinot cluster: reading settings from the controller and the broker, and asking the broker questions."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import uuid
from typing import TYPE_CHECKING, Any

import httpx

from discreet.engines.running import run
from discreet.errors import EngineError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = {
    "useMultistageEngine": "false",  # it keeps 100,000 groups and says that all servers answered, whether they did
    "numGroupsLimit": "20000000",  # of a segment; what there is above is left out, and a sign set
    "minSegmentGroupTrimSize": "0",  # 0 is off
    "minServerGroupTrimSize": "0",
    "minBrokerGroupTrimSize": "0",
    "groupTrimThreshold": "0",
    "useStarTree": "false",
    "enableNullHandling": "false",
    "skipUpsert": "false",
    "skipUnavailableServers": "false",
    "ignoreMissingSegments": "false",
    "serverReturnFinalResult": "false",
    "serverReturnFinalResultKeyUnpartitioned": "false",
    "optimizeMaxInitialResultHolderCapacity": "false",
}
"""Sent with every question. Versions that do not know one take no notice; see `Generation` for what then holds."""

_SETTINGS_SECONDS = 30.0
_CANCEL_SECONDS = 2.0
_DAY_MILLISECONDS = 86_400_000


class Asker:
    """The controller and one broker of a cluster. It asks one question at a time.

    Args:
        broker: its URL.
        controller: its URL.
        account: user and password, for both.
        seconds: how long a question may take, or None.
    """

    def __init__(self, broker: str, controller: str, account: tuple[str, str] | None, seconds: float | None) -> None:
        self._broker = broker
        self._controller = controller
        self._seconds = seconds
        # Reading what is trusted takes long; without TLS, nobody is.
        secure = "https://" in f"{broker} {controller}"
        tls = ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

        def client(limits: httpx.Limits) -> httpx.Client:
            # Nothing of the environment decides where a question goes.
            return httpx.Client(auth=account, verify=tls, trust_env=False, timeout=_SETTINGS_SECONDS, limits=limits)

        self._settings = client(httpx.Limits())
        self._questions = client(httpx.Limits(max_connections=1))
        self._stream: Any = None  # of the one connection for questions
        self._cut = False

    def controller(self, path: str) -> Any:  # noqa: ANN401 - whatever JSON has
        """What the controller answers; an empty mapping if it has nothing there.

        Raises:
            EngineError: it cannot be reached, or refuses.
        """
        return self._read(self._controller, path)

    def broker(self, path: str) -> Any:  # noqa: ANN401 - whatever JSON has
        """What the broker answers, likewise."""
        return self._read(self._broker, path)

    def ask(self, statement: str, progress: Callable[[float], None] | None = None) -> dict[str, Any]:
        """The broker's answer to a statement. It is believed by nobody yet.

        Raises:
            EngineError: it cannot be reached, refused the account, failed, or took too long.
        """
        mark = f"discreet-{uuid.uuid4().hex}"
        milliseconds = _DAY_MILLISECONDS if self._seconds is None else max(int(self._seconds * 1000), 1)
        options = OPTIONS | {"timeoutMs": str(milliseconds), "clientQueryId": f"'{mark}'"}
        text = "".join(f"SET {name}={value}; " for name, value in options.items()) + statement
        self._cut = False
        return run(lambda: self._post(text), lambda: self._cancel(mark), seconds=self._seconds, progress=progress)

    def close(self) -> None:
        """Close the sockets."""
        self._settings.close()
        self._questions.close()

    def _read(self, url: str, path: str) -> Any:  # noqa: ANN401 - whatever JSON has
        return self._json(lambda: self._settings.get(url + path), url, {404: {}})

    def _post(self, text: str) -> dict[str, Any]:
        answer = self._json(
            lambda: self._questions.post(
                f"{self._broker}/query/sql",
                content=json.dumps({"sql": text}).encode(),
                headers={"Content-Type": "application/json"},
                timeout=httpx.Timeout(_SETTINGS_SECONDS, read=None),
                extensions={"trace": self._watch},
            ),
            self._broker,
        )
        if not isinstance(answer, dict):
            raise EngineError(f"what answers at {self._broker} is no broker of Pinot")
        return answer

    def _json(
        self,
        send: Callable[[], httpx.Response],
        url: str,
        instead: dict[int, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever JSON has
        try:
            answer = send()
        except httpx.HTTPError:
            raise EngineError(f"Pinot cannot be reached at {url}") from None
        if instead and answer.status_code in instead:
            return instead[answer.status_code]
        if answer.status_code in {401, 403}:
            raise EngineError(f"Pinot at {url} does not accept the user and the password")
        if answer.status_code != 200:
            raise EngineError(f"Pinot at {url} failed, with HTTP status {answer.status_code}")
        try:
            return answer.json()
        except ValueError:
            raise EngineError(f"what answers at {url} is not Pinot") from None

    def _watch(self, event: str, info: dict[str, Any]) -> None:
        """Remember the connection, so that it can be cut off."""
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self._stream = info["return_value"]
            if self._cut:
                self._cut_off()

    def _cut_off(self) -> None:
        self._cut = True
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _cancel(self, mark: str) -> None:
        """Stop waiting for the question of that mark, and tell the broker to, if it lets itself be told."""
        self._cut_off()
        with contextlib.suppress(httpx.HTTPError, ValueError, AttributeError, TypeError):
            running = self._settings.get(f"{self._broker}/queries", timeout=_CANCEL_SECONDS).json()
            for number, text in running.items():
                if mark in text:
                    self._settings.delete(f"{self._broker}/query/{int(number)}", timeout=_CANCEL_SECONDS)


def check_url(url: str) -> str:
    """The URL of a controller, without a slash at its end.

    Raises:
        InputError: it is none.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL("")
    if parts.scheme not in {"http", "https"} or not parts.host or parts.userinfo or parts.query:
        raise InputError("the controller of Pinot is named by a URL such as http://host:9000")
    return url.rstrip("/")
