"""What stands for lines that were removed from the ledger: the state of its reader after them, as text. Pure.

A base is text in one form only: lines of canonical JSON, each a list that begins with its kind, in chunks. The ledger's
line of kind "prune" holds the SHA-256 of all chunks, so that a base is as hard to change as a line. The lines that
follow are checked from the heads in the base, and added to its sums.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from discreet.budget.errors import LedgerBroken
from discreet.budget.escrow import Incoming, Outgoing
from discreet.budget.fixed_point import Amount
from discreet.budget.ledger import Head
from discreet.budget.ledger_replay import LedgerReader, ReplayedAccount, ReplayedRelease
from discreet.budget.model import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TOGETHER = 1_000
"""Lines of a chunk."""


def chunks_of(reader: LedgerReader) -> Iterator[str]:
    """Yield the base of the lines that *reader* has read."""
    rows = map(json.dumps, _rows(reader))
    while chunk := "\n".join(itertools.islice(rows, _TOGETHER)):
        yield chunk


def digest_of(chunks: Iterable[str]) -> str | None:
    """Return the SHA-256 of a base in hexadecimal; None if there is no base."""
    found, digest = False, hashlib.sha256()
    for chunk in chunks:
        found = True
        digest.update(f"{chunk}\n".encode())
    return digest.hexdigest() if found else None


def reader_of(chunks: Iterable[str]) -> LedgerReader:
    """Return the reader that `chunks_of` wrote.

    Raises:
        LedgerBroken: it cannot be parsed.
    """
    reader = LedgerReader()
    try:
        for chunk in chunks:
            for line in chunk.split("\n"):
                _read(reader, json.loads(line))
    except (ValueError, KeyError, TypeError):
        raise LedgerBroken("what stands for removed lines cannot be read") from None
    return reader


def _rows(reader: LedgerReader) -> Iterator[list[Any]]:  # noqa: C901 - a loop for each kind
    totals = reader.totals
    for _, head in sorted(reader.heads.items()):
        yield ["head", head.chain, head.seq, head.hash.hex()]
    for name, account in sorted(totals.accounts.items()):
        yield ["account", name, account.settings, account.bucket, account.end_us, account.closed]
        yield ["closed", name, reader.every_closed[name]]
    for where, (rho, delta) in sorted(reader.sums.items()):
        if rho or delta:
            yield ["sum", *where, rho, delta]
    for name, state in sorted(totals.open.items()):
        yield ["open", name, state.value]
    for key, release in sorted(totals.releases.items()):
        yield ["release", key, release.result, *_pair(release.cost), sorted(release.by)]
    for owed, amounts in sorted(totals.forfeits.items()):
        yield ["forfeits", *owed, sorted((*_pair(amount), times) for amount, times in amounts.items())]
    for name, times in sorted(totals.failures.items()):
        yield ["failures", name, times]
    for action, digest in sorted(totals.actions.items()):
        yield ["action", action, digest]
    for record, digest in sorted(totals.records.items()):
        yield ["record", *record, digest]
    yield ["records", totals.records_version]
    for share, out in sorted(totals.transfers.outgoing.items()):
        pending = None if out.pending is None else _pair(out.pending)
        yield ["outgoing", *share, out.number, *_pair(out.given), pending, out.sent_us]
    for share, into in sorted(totals.transfers.incoming.items()):
        yield ["incoming", *share, into.number, into.taken, *_pair(into.received)]


def _read(reader: LedgerReader, row: list[Any]) -> None:  # noqa: C901, PLR0912 - a case for each kind
    totals = reader.totals
    match row:
        case ["head", chain, seq, digest]:
            reader.heads[chain] = Head(chain, seq, bytes.fromhex(digest))
        case ["account", name, settings, bucket, end_us, closed]:
            totals.accounts[name] = ReplayedAccount(settings, bucket, end_us, [(number, end) for number, end in closed])
        case ["closed", name, closed]:
            reader.every_closed[name] = [(number, end) for number, end in closed]
        case ["sum", account, bucket, part, rho, delta]:
            reader.sums[account, bucket, part] = [rho, delta]
        case ["open", name, state]:
            totals.open[name] = State(state)
        case ["release", key, result, rho, delta, by]:
            totals.releases[key] = ReplayedRelease(result, Amount(rho, delta), _accounts(tuple(by)))
        case ["forfeits", account, bucket, key, amounts]:
            owed = {Amount(rho, delta): times for rho, delta, times in amounts}
            totals.forfeits[account, bucket, key] = Counter(owed)
        case ["failures", name, times]:
            totals.failures[name] = tuple(times)
        case ["action", action, digest]:
            totals.actions[action] = digest
        case ["record", kind, name, digest]:
            totals.records[kind, name] = digest
        case ["records", version]:
            totals.records_version = version
        case ["outgoing", account, peer, number, rho, delta, pending, sent_us]:
            out = Outgoing(number, Amount(rho, delta), None if pending is None else Amount(*pending), sent_us)
            totals.transfers.outgoing[account, peer] = out
        case ["incoming", account, peer, number, taken, rho, delta]:
            totals.transfers.incoming[account, peer] = Incoming(number, taken, Amount(rho, delta))
        case _:
            raise ValueError(row)


def _pair(amount: Amount) -> tuple[int, int]:
    return amount.rho, amount.delta


@functools.lru_cache(maxsize=4096)  # most releases were paid for by one of few sets of accounts
def _accounts(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)
