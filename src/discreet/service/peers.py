"""Exchange budget shares with other data centres by the protocol of `discreet.budget.sharing.escrow`.

No query waits for the exchange: it runs in its own thread every few seconds, and a data centre that reaches no other
continues to spend its own shares.

    peers.requests(...)   POST /v1/peer/requests    grant shares to another data centre
    peers.transfers(...)  POST /v1/peer/transfers   receive shares and receipts, and return receipts
    peers.exchange()      exchange requests, shares and new accounts with each data centre once
    peers.refused(...)    record the worst-case cost of a refused query
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from discreet.budget.errors import ClockError, StoreBehind, UnknownAccount
from discreet.budget.model import NOTHING, AdminAction, Amount, Refusal
from discreet.budget.sharing.escrow import Receipt, ShareRequest, Transfer, is_short
from discreet.budget.sharing.transfers import ShareStore
from discreet.budget.stores.store import BudgetStore
from discreet.errors import DiscreetError, InputError
from discreet.secrets import read_secret, read_variable
from discreet.service.maintenance import repeating
from discreet.service.middleware import context_of, read_bytes, run_in_thread
from discreet.service.observability import Failed, Log, ShareMoved
from discreet.service.problems import KeyRefused
from discreet.service.settings import DataCentre
from discreet.wire.peers import (
    MAX_BODY_BYTES,
    MAX_ENTRIES,
    PendingTransfers,
    ReceiptSent,
    Requests,
    RequestSent,
    Transferred,
    Transfers,
    TransferSent,
)
from discreet.wire.queries import read_body

Answer = TypeVar("Answer", PendingTransfers, Transferred)


class PeerUnreachable(DiscreetError):
    """Another data centre cannot be reached, or its response is not valid."""

    def __init__(self) -> None:
        super().__init__("another data centre cannot be reached, or does not answer as one")


MIN_KEY = 32
"""The minimum length of a key, in characters."""


class PeerKeys:
    """The shared keys of all data centres: the first is sent and all are accepted, so that keys can be rotated.

    Args:
        keys: at least one key, of 32 or more printable ASCII characters without white space.

    Raises:
        InputError: there is no key, or a key is too short or not printable.
    """

    def __init__(self, keys: list[str]) -> None:
        if not keys or any(len(key) < MIN_KEY or not key.isascii() or not key.isprintable() for key in keys):
            raise InputError(
                f"the key of the data centres needs {MIN_KEY} or more printable characters, such as openssl rand "
                "-hex 32 prints; an older key may follow in a second line"
            )
        self._sent_key = keys[0]
        self._digests = [_digest(key) for key in keys]

    def __repr__(self) -> str:
        return "PeerKeys(...)"

    @property
    def header(self) -> str:
        """Return the header Authorization of requests to other data centres."""
        return f"Bearer {self._sent_key}"

    def check(self, header: str | None) -> None:
        """Raise `KeyRefused` unless *header* holds one of the keys."""
        kind, _, key = (header or "").partition(" ")
        digest = _digest(key.strip())
        # All are compared, in constant time, so that the time tells nothing about any key.
        matches = [hmac.compare_digest(digest, own_digest) for own_digest in self._digests]
        if kind.lower() != "bearer" or not any(matches):
            raise KeyRefused("unknown")


def peer_keys(centre: DataCentre, environment: Mapping[str, str]) -> PeerKeys:
    """Read the keys from the file or the environment variable in the settings.

    Raises:
        InputError: the keys are missing or too short, or other users can read the file.
    """
    if centre.key_file is not None:
        text = read_secret(centre.key_file, "key of the data centres").decode("utf-8", "replace")
    else:
        text = read_variable(centre.key_env, environment, "key of the data centres") or ""
    return PeerKeys(text.split())


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


EVERY_SECONDS = 10.0
"""Seconds between two rounds of messages."""

TIMEOUT_SECONDS = 5.0
"""Timeout of each phase of a request (connect, read, write), in seconds."""

MAX_ROUNDS = 32
"""The maximum of messages to a data centre in a round: each new account is a transfer, and there may be thousands."""

_PASSING = (ClockError, InputError, UnknownAccount)
"""Errors of one transfer, after which the next transfer is processed."""


class Peers:
    """Exchanges budget shares with the other data centres.

    Args:
        name: the name of this data centre.
        urls: the URLs of the other data centres, by name.
    """

    def __init__(
        self, name: str, store: BudgetStore, urls: Mapping[str, str], keys: PeerKeys, client: httpx.Client, log: Log
    ) -> None:
        self._name = name
        self._urls = dict(urls)
        self.keys = keys
        self._log = log
        self._client = client
        self._shares: ShareStore = store.shares
        self._requests = ShareRequests(store)
        self._unreachable: set[str] = set()
        self._behind: StoreBehind | None = None

    @property
    def behind(self) -> bool:
        """Return True if this store lacks transfers of another data centre: it was restored from an old backup."""
        return self._behind is not None

    def refused(self, refusal: Refusal) -> None:
        """Record the worst-case cost of a refused query, to request it from the other data centres."""
        self._requests.refused(refusal)

    # ---------------------------------------------------------------------------------------------- incoming messages

    def requests(self, message: Requests) -> PendingTransfers:
        """Answer a request for shares.

        Raises:
            InputError: the sender has a copy of this store.
            StoreUnavailable: this store cannot grant shares now.
        """
        self._check_store(message.store)
        # An account with a pending transfer gets no second one: its first answer may have been lost on the way.
        again = {transfer.terms.id for transfer in self._shares.pending(message.store, MAX_ENTRIES)}
        for sent in message.requests:
            if sent.account not in again:
                with contextlib.suppress(*_PASSING):
                    request = ShareRequest(**dict(sent))
                    granted = self._shares.grant(message.store, request, self._requests.need(sent.account))
                    self._log_move("sent", message.centre, granted)
        pending = self._shares.pending(message.store, MAX_ENTRIES)
        return PendingTransfers(store=self._shares.id, transfers=[TransferSent.of(transfer) for transfer in pending])

    def transfers(self, message: Transfers) -> Transferred:
        """Answer a message with shares, and receipts of shares.

        Raises:
            InputError: the sender has a copy of this store.
            StoreBehind: this store lacks transfers that the sender has recorded.
            StoreUnavailable: this store cannot accept shares now.
        """
        self._check_store(message.store)
        self._acknowledge(message.centre, message.store, _receipts(message.receipts))
        receipts = self._receive(message.centre, message.store, _transfers(message.transfers))
        return Transferred(store=self._shares.id, receipts=[ReceiptSent.of(receipt) for receipt in receipts])

    # ---------------------------------------------------------------------------------------------- outgoing messages

    def exchange(self) -> None:
        """Exchange messages with each data centre once; the next round retries unreachable ones.

        Raises:
            StoreBehind: see `behind`.
            StoreUnavailable: this store cannot be read or written.
        """
        if self._behind is not None:
            raise self._behind
        with self._requests.round() as round_:
            for name, url in self._urls.items():
                try:
                    self._exchange_with(name, url, round_)
                except (PeerUnreachable, InputError):
                    if name not in self._unreachable:
                        self._log.event(ShareMoved("-", name, "-", "unreachable"))
                    self._unreachable.add(name)
                else:
                    self._unreachable.discard(name)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Exchange messages in a thread until the context ends; failures are logged, and the next round retries."""

        def exchange() -> None:
            try:
                self.exchange()
            except Exception as error:  # noqa: BLE001 - the thread must not end
                self._log.event(Failed.of(error, "peers"))

        with repeating(exchange, EVERY_SECONDS, "peers"):
            yield

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    # ---------------------------------------------------------------------------------------------- inside

    def _post(self, url: str, message: BaseModel, kind: type[Answer]) -> Answer:
        """Send a message and return the response.

        Raises:
            PeerUnreachable: there was no response, or it is not a valid response of status 200.
        """
        headers = {"Authorization": self.keys.header, "Content-Type": "application/json"}
        try:
            with self._client.stream("POST", url, content=message.model_dump_json(), headers=headers) as response:
                body = b""
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MAX_BODY_BYTES:
                        raise PeerUnreachable
            if response.status_code != httpx.codes.OK:  # after the body, so that the connection can be used again
                raise PeerUnreachable
            return read_body(kind, body)
        except (httpx.HTTPError, httpx.InvalidURL, InputError):
            raise PeerUnreachable from None  # their texts may hold parts of the message

    def _exchange_with(self, name: str, url: str, round_: Round) -> None:
        """Request shares of one data centre, and send it pending shares and receipts."""
        requests = [RequestSent.of(request) for request in round_.requests.values()]
        answer = self._post(
            f"{url}/v1/peer/requests",
            Requests(centre=self._name, store=self._shares.id, requests=requests),
            PendingTransfers,
        )
        store = answer.store
        arrived = _transfers(answer.transfers)
        receipts = self._receive(name, store, arrived)
        round_.add(receipts, arrived)
        for _ in range(MAX_ROUNDS):
            for account in self._shares.unannounced(store, MAX_ENTRIES):  # new and changed accounts
                with contextlib.suppress(*_PASSING):
                    self._log_move("sent", name, self._shares.announce(store, account, 1 + len(self._urls)))
            pending = self._shares.pending(store, MAX_ENTRIES)
            if not pending and not receipts:
                break
            message = Transfers(
                centre=self._name,
                store=self._shares.id,
                transfers=[TransferSent.of(transfer) for transfer in pending],
                receipts=[ReceiptSent.of(receipt) for receipt in receipts],
            )
            reply = self._post(f"{url}/v1/peer/transfers", message, Transferred)
            receipts = []
            if not self._acknowledge(name, store, _receipts(reply.receipts)):
                break  # no transfer was decided, so further messages would not help

    def _receive(self, name: str, store: str, transfers: Iterable[Transfer]) -> list[Receipt]:
        """Accept or decline the transfers of another data centre, and return the receipts."""
        receipts = []
        for transfer in transfers:
            receipt = None
            if transfer.donor == store:  # a data centre sends only transfers of its own
                with contextlib.suppress(*_PASSING), self._record_behind():
                    receipt = self._shares.receive(transfer)
            if receipt is not None:
                self._log_move("received" if receipt.taken else "refused", name, transfer)
                receipts.append(receipt)
        return receipts

    def _acknowledge(self, name: str, store: str, receipts: Iterable[Receipt]) -> int:
        """Record the receipts of another data centre, and return their number."""
        number = 0
        for receipt in receipts:
            if receipt.recipient == store:
                with contextlib.suppress(*_PASSING), self._record_behind():
                    self._shares.acknowledge(receipt)
                    number += 1
                    if not receipt.taken:
                        self._log.event(ShareMoved(f"{store}/{receipt.number}", name, receipt.account, "refused"))
        return number

    @contextlib.contextmanager
    def _record_behind(self) -> Iterator[None]:
        """Record a `StoreBehind`, after which `exchange` always raises it."""
        try:
            yield
        except StoreBehind as error:
            self._behind = error
            raise

    def _check_store(self, store: str) -> None:
        """Raise `InputError` if *store*, the id of another data centre's store, is the id of this store."""
        if store == self._shares.id:
            raise InputError("two data centres have the same store; each needs one of its own, made new")

    def _log_move(self, step: str, name: str, transfer: Transfer | None) -> None:
        if transfer is not None:
            label = f"{transfer.recipient if step == 'sent' else transfer.donor}/{transfer.number}"
            self._log.event(ShareMoved(label, name, transfer.terms.id, step))  # type: ignore[arg-type]  # a Literal


def _transfers(entries: Iterable[TransferSent]) -> list[Transfer]:
    return [Transfer(**dict(entry)) for entry in entries]


def _receipts(entries: Iterable[ReceiptSent]) -> list[Receipt]:
    return [Receipt(**dict(entry)) for entry in entries]


def open_peers(centre: DataCentre, store: BudgetStore, environment: Mapping[str, str], log: Log) -> Peers:
    """Open the exchange of shares with the other data centres.

    Args:
        environment: environment variables, which may hold the keys.

    Raises:
        InputError: the keys or certificates are missing, or the store belongs to another data centre.
    """
    keys = peer_keys(centre, environment)
    recorded = store.record("datacentre", "name")
    if recorded is None:
        action = AdminAction("discreet", "the store is that of this data centre from now on")
        store.put_record("datacentre", "name", json.dumps(centre.name), action)
    elif json.loads(recorded) != centre.name:
        raise InputError(
            f"the store is that of the data centre {json.loads(recorded)!r}, not of {centre.name!r}; each needs one of "
            "its own, made new"
        )
    try:
        verify = True if centre.ca_file is None else ssl.create_default_context(cafile=centre.ca_file)
    except (OSError, ssl.SSLError):
        raise InputError("the file with the certificates of the other data centres cannot be read") from None
    return Peers(centre.name, store, centre.peers, keys, httpx.Client(verify=verify, timeout=TIMEOUT_SECONDS), log)


ACCOUNTS_AT_ONCE = 1_000
"""Accounts that a round checks; the next round checks the following ones."""

MAX_BACKOFF = 64
"""The maximum of rounds that an account waits before it requests a share again."""


@dataclass(slots=True)
class Round:
    """The share requests of a round, sent to one data centre after the other.

    Args:
        gained: accounts that received a share in this round.
    """

    requests: dict[str, ShareRequest]
    gained: set[str] = field(default_factory=set)

    def add(self, receipts: Iterable[Receipt], transfers: Iterable[Transfer]) -> None:
        """Add accepted shares to the balances in the requests, which go to the next data centre."""
        accounts = {receipt.account for receipt in receipts if receipt.taken}
        for transfer in transfers:
            request = self.requests.get(transfer.terms.id)
            if request is not None and request.account in accounts:
                remaining = request.left + transfer.amount
                self.requests[request.account] = ShareRequest(request.account, remaining, request.need)
                self.gained.add(request.account)


@dataclass(slots=True)
class _Backoff:
    """The rounds that an account still waits, and will wait after its next request without success."""

    left: int = 0
    next: int = 1


class ShareRequests:
    """Decide which accounts request shares, and how much."""

    def __init__(self, store: BudgetStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._needs: dict[str, Amount] = {}  # refused since the last round
        self._requested: dict[str, Amount] = {}  # requested in the last round
        self._backoff: dict[str, _Backoff] = {}
        self._after = ""

    def refused(self, refusal: Refusal) -> None:
        """Record the worst-case cost of a refused query."""
        needed = Amount.of(refusal.needed)
        with self._lock:
            # The largest of each part, not the sum: a share is for one such query.
            self._needs[refusal.account] = self._needs.get(refusal.account, NOTHING).most(needed)

    def need(self, account: str) -> Amount:
        """Return the largest worst-case cost refused since the round before the last, for rho and delta each."""
        with self._lock:
            return self._needs.get(account, NOTHING).most(self._requested.get(account, NOTHING))

    @contextlib.contextmanager
    def round(self) -> Iterator[Round]:
        """Return the requests of a round; an account that receives no share waits twice as many rounds each time."""
        with self._lock:
            needs = self._needs
            self._needs = {}
            self._requested = needs
        requests = Round({request.account: request for request in self._short(needs)})
        yield requests
        for account in requests.requests:
            if account in requests.gained:
                self._backoff.pop(account, None)
            else:
                backoff = self._backoff.setdefault(account, _Backoff())
                backoff.left = backoff.next
                backoff.next = min(2 * backoff.next, MAX_BACKOFF)

    def _short(self, needs: dict[str, Amount]) -> Iterator[ShareRequest]:
        """Yield requests of accounts that are short: first after refused queries, then if nearly spent."""
        names = [*list(needs)[:MAX_ENTRIES], *(name for name in self._nearly_spent() if name not in needs)]
        for name in names[:MAX_ENTRIES]:
            with contextlib.suppress(UnknownAccount):
                balance = self._store.balance(name)  # at the current time, as for the next query
                account = balance.account
                need = needs.get(name, NOTHING)
                limit = Amount.of(account.limit)
                left = limit - Amount.of(balance.spent)
                if account.share is not None and is_short(left, limit, Amount.of(account.total_limit), need):
                    yield ShareRequest(name, left, need)

    def _nearly_spent(self) -> Iterator[str]:
        """Yield the nearly spent accounts among the next `ACCOUNTS_AT_ONCE` accounts."""
        holdings = self._store.shares.holdings(self._after, ACCOUNTS_AT_ONCE)
        self._after = holdings[-1].account.id if len(holdings) == ACCOUNTS_AT_ONCE else ""
        number = 0
        before = ""
        for holding in holdings:
            name = holding.account.id
            backoff = self._backoff.get(holding.account.id)
            if backoff is not None and backoff.left:
                backoff.left -= 1
            elif holding.account.share is not None and is_short(holding.left, holding.limit, holding.total):
                if number == MAX_ENTRIES:
                    self._after = before  # the next round begins with this account
                    return
                number += 1
                yield name
            before = name


def peer_routes(peers: Peers) -> list[Route]:
    """Return the routes for messages of other data centres; they are not part of the documented API."""

    def route(path: str, kind: type[Any], handle: Callable[[Any], Any]) -> Route:
        async def answer(request: Request) -> Response:
            peers.keys.check(request.headers.get("authorization"))
            context_of(request.scope).actor = "peer"
            if request.scope["query_string"]:
                raise InputError("there are no parameters here")
            message = read_body(kind, await read_bytes(request, "application/json", MAX_BODY_BYTES))
            reply = await run_in_thread(handle, message)
            return Response(reply.model_dump_json(), media_type="application/json")

        return Route(path, answer, methods=["POST"])

    return [
        route("/v1/peer/requests", Requests, peers.requests),
        route("/v1/peer/transfers", Transfers, peers.transfers),
    ]
