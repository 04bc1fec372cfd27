"""Pruning: old lines of the ledger are written to an archive, and replaced by a base, the state after them.

One transaction writes the base (`ledger_replay.chunks_of`) and its digest in a ledger line, and removes the lines.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from discreet.budget.ledger import Head, Line, canonical
from discreet.budget.ledger_replay import LedgerReader, chunks_of, reader_of
from discreet.budget.model import AdminAction
from discreet.budget.rules import DAY_US
from discreet.budget.stores import statements
from discreet.budget.stores.transaction import StoreConnection, Transaction
from discreet.budget.stores.verify import verify
from discreet.errors import InputError

KEPT_US = DAY_US
"""Lines and idempotency keys younger than this are kept, so that a request can be repeated."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Lines that can be removed.

    Args:
        before_us: the lines are older than this timestamp.
        reader: the reader after these lines and those removed earlier.
        replaces: the first chunk of the previous base; None if there is none.
    """

    before_us: int
    reader: LedgerReader
    replaces: str | None

    @property
    def lines(self) -> int:
        """The number of lines that can be removed."""
        return self.reader.totals.lines


def check_old(db: StoreConnection, before_us: int) -> None:
    """Raise `InputError` unless *before_us* is at least `KEPT_US` ago by the clock of the database."""
    ((now,),) = db.query((statements.NOW, ()))
    if before_us > now[0] - KEPT_US:
        raise InputError("lines of the last 24 hours cannot be removed from the ledger; give an earlier date")


def cut(db: StoreConnection, before_us: int, heads: Sequence[Head], archive: Callable[[Iterable[Line]], object]) -> Cut:
    """Verify the ledger, pass its lines before *before_us* to *archive*, and return them as a cut.

    Args:
        db: a connection that sees one snapshot of all tables.
        before_us: at least `KEPT_US` ago.
        heads: the lines of a checkpoint, which are kept. The line of chain 0 is not older than *before_us*, because
            lines of chain 0 about transfers come before those of other chains.
        archive: writes the lines durably before it returns.

    Raises:
        InputError: *before_us* is later.
        LedgerBroken: `verify` failed.
    """
    check_old(db, before_us)
    verify(db)
    chunks = [chunk for (chunk,) in db.stream(statements.BASE)]
    reader = reader_of(chunks)

    def read() -> Iterator[Line]:
        kept_from = {head.chain: head.seq for head in heads}
        lines = itertools.starmap(Line, db.stream(statements.ALL_LINES))
        for chain, group in itertools.groupby(lines, lambda line: line.chain):
            for line in group:
                _, _, time_us, _ = line.body.split("\t", 3)
                if line.seq >= kept_from.get(chain, 0) or int(time_us) >= before_us:
                    break  # the first line of the chain that is kept
                reader.read(chain, (line,))
                yield line

    archive(read())
    return Cut(before_us, reader, chunks[0] if chunks else None)


def prune(transaction: Transaction, removed: Cut, action: AdminAction) -> None:
    """Remove the lines of a cut, and the idempotency keys and ended reservations older than its timestamp.

    The rows may be many, so they are written before `flush`. Two transactions cannot both add the first chunk: the
    second one fails, is repeated, and finds another base than that of its cut.

    Raises:
        InputError: lines were removed since the cut.
    """
    transaction.repeatable = False
    db = transaction.db
    digest = hashlib.sha256()
    base, _ = db.query((statements.BASE_BEGIN, ()), (statements.WITHOUT_TIMEOUT, ()))
    if (base[0][0] if base else None) != removed.replaces:
        raise InputError("other lines were removed from the ledger at the same time; try again")
    # The base is the state after the removed lines, from which verification continues.
    db.write([(statements.DROP_BASE, ())])
    for place, chunk in enumerate(chunks_of(removed.reader)):
        digest.update(f"{chunk}\n".encode())
        db.write([(statements.ADD_BASE, (place, chunk))])
    for head in removed.reader.heads.values():
        db.write([(statements.DROP_LINES, (head.chain, head.seq))])
    db.write([(statements.DROP_KEYS, (removed.before_us,)), (statements.DROP_ENDED, (removed.before_us,))])
    day = removed.before_us // DAY_US
    dropped = ((statements.DROP_SPENDING, (day,)), (statements.DROP_TOTALS, (day,)))
    db.write([(statements.DROP_EVENTS, (removed.before_us,)), *dropped])
    db.write([(statements.ADD_TOTALS, (day,))])  # later: PostgreSQL runs the statements of one call on one snapshot
    transaction.begin_store()
    detail = {"actor": action.actor, "reason": action.reason, "base": digest.hexdigest()}
    transaction.append(None, "prune", detail=canonical(detail))
