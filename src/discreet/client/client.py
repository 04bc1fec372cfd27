"""The client of a budget service."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from discreet.client.errors import ServiceError
from discreet.client.key import find_key
from discreet.client.messages import Request, Surroundings
from discreet.client.question import body_of
from discreet.errors import InputError
from discreet.values import Cost, exact
from discreet.wire.document import decode
from discreet.wire.questions import (
    BudgetReport,
    DatasetDetail,
    DatasetList,
    DatasetSummary,
    Estimate,
    HistoryEntry,
    HistoryPage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    import httpx

    from discreet.client.messages import Reply
    from discreet.client.question import Options
    from discreet.query.query import Select
    from discreet.release import Release

_Shape = TypeVar("_Shape", bound=BaseModel)

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a service.

    Args:
        release: what was asked for.
        id: its name, for `Client.release`.
        charged: what the account paid for it this time; nothing if it had paid before.
        replayed: True if it was there already.
        mode: "observe" if the account is only watched: then nothing is guaranteed.
    """

    release: Release
    id: str
    charged: Cost
    replayed: bool
    mode: Literal["observe", "enforce"]


class Client:
    """Asks a budget service. Usable from several threads, and as a context manager.

        with discreet.Client("https://discreet.example.org") as client:
            client.query("SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 10")

    Whatever fails on the way is asked again, with the same idempotency key, so that it is answered once and charged
    once; what is short of budget is not.

    Args:
        url: of the service.
        key: an API key or a token of the identity provider; by default what is in the environment variable
            DISCREET_KEY.
        key_file: or a file that holds it.
        timeout: seconds that a call may take with all attempts and pauses, up to 86,400.
        retries: how many failures of a call are forgiven, from 0 to 100. Waiting for a question that is still under
            way is no failure.
        surroundings: clock, sleep and random numbers; by default those of the system.
        transport: how to get there; by default over the network, with certificates verified.

    Raises:
        InputError: the URL is none, there is no key, or a number is out of range.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        key_file: str | Path | None = None,
        timeout: float = 300.0,
        retries: int = 3,
        surroundings: Surroundings | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            from discreet.client.exchange import Exchange, check_url
        except ImportError:
            raise InputError("the client needs httpx; install it with: pip install 'discreet[client]'") from None
        check_url(url)
        self._surroundings = surroundings or Surroundings()
        self._exchange = Exchange(
            url,
            find_key(key, key_file, os.environ),
            timeout=timeout,
            retries=retries,
            surroundings=self._surroundings,
            transport=transport,
        )

    def query(self, question: str | Mapping[str, Any] | Select, **options: Unpack[Options]) -> Release:
        """Private counts, sums or averages; what is not said, the service chooses.

        Args:
            question: a SELECT, its JSON form as a dictionary, or `discreet.Select`.
            **options: epsilon and delta, or epsilon_per and information; relative_error, counts, mechanism, noise,
                head_limit: as in `discreet.Warehouse.query`, within what the service allows.

        Raises:
            InputError: something in the question is not allowed, or nobody known is asking.
            BudgetShort: the budget cannot cover the worst case; nothing was read.
            EngineError: the engine behind the service failed.
            ServiceError: the service cannot be reached, or failed.
        """
        return self.ask(question, **options).release

    def ask(self, question: str | Mapping[str, Any] | Select, **options: Unpack[Options]) -> Answer:
        """The same as `query`, with what it cost this time."""
        began = time.perf_counter()
        reply = self._post("/v1/query", question, options, {"Idempotency-Key": self._surroundings.ids()})
        return Answer(
            self._release(reply).timed(time.perf_counter() - began),
            reply.headers.get("discreet-release", ""),
            _charged(reply.headers.get("discreet-charged", "")),
            reply.headers.get("discreet-replayed") == "?1",
            "observe" if reply.headers.get("discreet-mode") == "observe" else "enforce",
        )

    def estimate(self, question: str | Mapping[str, Any] | Select, **options: Unpack[Options]) -> Estimate:
        """How a question would be answered, what it could cost and whether that fits. No data is touched.

        Args:
            question: as in `query`.
            **options: likewise.

        Raises:
            InputError: as in `query`.
            ServiceError: likewise.
        """
        return self._read(Estimate, self._post("/v1/estimate", question, options, {}))

    def budget(self) -> BudgetReport:
        """How the account stands, and its parents, which are charged too."""
        return self._read(BudgetReport, self._get("/v1/budget"))

    def datasets(self) -> list[DatasetSummary]:
        """What may be asked about."""
        return self._read(DatasetList, self._get("/v1/datasets")).datasets

    def dataset(self, name: str) -> DatasetDetail:
        """What may be asked about one dataset.

        Raises:
            NotFound: there is none of that name, or it is not for this account.
        """
        return self._read(DatasetDetail, self._get(f"/v1/datasets/{_segment(name, 'a dataset')}"))

    def history(self, limit: int = 100) -> list[HistoryEntry]:
        """What the account has paid for, newest first.

        Args:
            limit: how many at most.

        Raises:
            InputError: *limit* is below 1.
        """
        if limit < 1:
            raise InputError(f"the limit must be at least 1, not {limit}")
        found: list[HistoryEntry] = []
        before: int | None = None
        while len(found) < limit:
            parameters = {"limit": str(min(limit - len(found), _PAGE))}
            if before is not None:
                parameters["before"] = str(before)
            page = self._read(HistoryPage, self._get("/v1/releases", parameters))
            found += page.releases
            before = page.next
            if before is None or not page.releases:
                break
        return found

    def release(self, id: str) -> Release:  # noqa: A002 - as the service calls it
        """An answer that the account has paid for, again and for free.

        Args:
            id: of the answer, as `Answer.id` and `history` give it.

        Raises:
            NotFound: there is none that this account has paid for.
        """
        return self._release(self._get(f"/v1/releases/{_segment(id, 'an answer')}"))

    def close(self) -> None:
        """Close the connections."""
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._exchange.url!r})"

    def _get(self, path: str, parameters: Mapping[str, str] | None = None) -> Reply:
        return self._exchange.send(Request("GET", path, headers=_ACCEPT, parameters=parameters or {}))

    def _post(
        self,
        path: str,
        question: str | Mapping[str, Any] | Select,
        options: Options,
        headers: Mapping[str, str],
    ) -> Reply:
        sent = {**_ACCEPT, "Content-Type": "application/json", **headers}
        return self._exchange.send(Request("POST", path, body_of(question, options), sent))

    def _release(self, reply: Reply) -> Release:
        try:
            return decode(reply.body)
        except InputError:
            raise self._strange(reply) from None

    def _read(self, shape: type[_Shape], reply: Reply) -> _Shape:
        try:
            return shape.model_validate_json(reply.body)
        except ValidationError:
            raise self._strange(reply) from None

    def _strange(self, reply: Reply) -> ServiceError:
        url = self._exchange.url
        return ServiceError(f"what answers at {url} is no service of Discreet, or one of another version", reply.status)


_ACCEPT = {"Accept": "application/json"}


def _segment(name: str, what: str) -> str:
    if not name or not name.strip("."):
        raise InputError(f"say the name of {what}")
    return quote(name, safe="")


def _charged(text: str) -> Cost:
    """What the header Discreet-Charged says: "rho=0.0125, delta=5e-09"; nothing if it says nothing."""
    parts = dict(part.strip().partition("=")[::2] for part in text.split(",") if "=" in part)
    try:
        return Cost(exact(parts["rho"], "rho"), exact(parts["delta"], "delta"))
    except (KeyError, InputError):
        return Cost()
