"""A witness outside the database: signed heads of the ledger, so that an older copy of it cannot pass for the ledger.

A backup that is restored and a replica that lags and is promoted are whole and consistent; only somebody who remembers
more can tell. So the heads of the ledger are signed now and then and kept elsewhere, and a store that does not hold the
lines that were witnessed refuses to serve. What happened after the last checkpoint is not covered: seal often.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from cryptography.exceptions import InvalidSignature

from discreet.budget.errors import LedgerBroken, StoreBehind, StoreUnavailable
from discreet.budget.ledger import Head, canonical

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from discreet.budget.ledger import Line
    from discreet.budget.stores.store import BudgetStore

_PURPOSE = b"discreet checkpoint 1\n"

_AT_ONCE = 65_536  # bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The heads of a store's chains.

    Args:
        store: the store's name.
        heads: by chain.
        signature: Ed25519, of everything else.
    """

    store: str
    heads: tuple[Head, ...]
    signature: bytes

    @classmethod
    def signed(cls, store: str, heads: Sequence[Head], key: Ed25519PrivateKey) -> Checkpoint:
        """A checkpoint signed with *key*."""
        return cls(store, tuple(heads), key.sign(_PURPOSE + _said(store, heads).encode()))

    def check(self, key: Ed25519PublicKey) -> None:
        """Raise unless it was signed with the private half of *key*.

        Raises:
            LedgerBroken: it was not.
        """
        try:
            key.verify(self.signature, _PURPOSE + _said(self.store, self.heads).encode())
        except InvalidSignature:
            raise LedgerBroken("a checkpoint is not signed by this service's key") from None

    @property
    def text(self) -> str:
        """One line of JSON."""
        return canonical({"said": _said(self.store, self.heads), "signature": self.signature.hex()})

    @classmethod
    def of_text(cls, text: str) -> Checkpoint:
        """Back from `text`.

        Raises:
            LedgerBroken: it is none.
        """
        try:
            outer = json.loads(text)
            said = json.loads(outer["said"])
            heads = tuple(Head(chain, seq, bytes.fromhex(digest)) for chain, seq, digest in said["heads"])
            return cls(said["store"], heads, bytes.fromhex(outer["signature"]))
        except (ValueError, KeyError, TypeError):
            raise LedgerBroken("a checkpoint of the witness cannot be read") from None


class Witness(Protocol):
    """Remembers checkpoints of one store, where whoever can restore the store's database cannot change them."""

    def append(self, checkpoint: Checkpoint) -> None:
        """Remember a checkpoint, durably.

        Raises:
            StoreUnavailable: it cannot.
        """
        ...

    def latest(self) -> Checkpoint | None:
        """The last checkpoint; None if there never was one."""
        ...


class CheckpointFile:
    """A `Witness` in a file that is only ever added to. Keep it on another disk than the database.

    Args:
        path: of the file; it is made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, checkpoint: Checkpoint) -> None:
        """See `Witness.append`."""
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                # a line that was cut off by a crash ends here, and this one begins on its own
                os.write(file, f"\n{checkpoint.text}\n".encode())
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreUnavailable("the witness cannot be written") from error

    def latest(self) -> Checkpoint | None:
        """See `Witness.latest`."""
        try:
            with self._path.open("rb") as file:
                line = _last_line(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable("the witness cannot be read") from error
        return None if line is None else Checkpoint.of_text(line)


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """Holds a store against its witness.

    Args:
        witness: of this store.
        key: that signs.
    """

    witness: Witness
    key: Ed25519PrivateKey

    def write(self, store: BudgetStore) -> None:
        """Have the heads of *store* witnessed, unless they have been.

        Raises:
            StoreUnavailable: the witness cannot write.
            StoreBehind: as `check`: what is missing must not be forgotten by the witness, too.
            LedgerBroken: likewise.
        """
        last = self.witness.latest()  # before the heads: what another process seals meanwhile is in neither
        now = Checkpoint.signed(store.id, store.heads(), self.key)
        if now == last:  # Ed25519 signs the same in the same way
            return
        if last is not None:
            self._hold(store, now.heads, last)
        self.witness.append(now)

    def check(self, store: BudgetStore) -> None:
        """Raise unless *store* holds every line that was witnessed last.

        Raises:
            StoreBehind: it is older than its witness, or another store.
            LedgerBroken: the checkpoint is not ours, or the line that was witnessed is another now.
        """
        last = self.witness.latest()
        if last is not None:
            self._hold(store, store.heads(), last)

    def _hold(self, store: BudgetStore, heads: Sequence[Head], checkpoint: Checkpoint) -> None:
        """Hold the *heads* of *store* against what was witnessed; lines are read of chains only that grew since."""
        checkpoint.check(self.key.public_key())
        if checkpoint.store != store.id:
            raise StoreBehind("the witness knows another store than this one; it cannot be put in its place")
        last = {head.chain: head for head in heads}
        for head in checkpoint.heads:
            now: Head | Line | None = last.get(head.chain)
            if now is not None and now.seq > head.seq:
                now = next(iter(store.lines(head.chain, head.seq - 1, 1)), None)
            if now is None or now.seq < head.seq:
                raise StoreBehind("the store is older than its witness; a backup was restored or a replica promoted")
            if now.hash != head.hash:
                raise LedgerBroken("it is not what was witnessed", head.chain, head.seq)


def _said(store: str, heads: Sequence[Head]) -> str:
    return canonical({"store": store, "heads": [[head.chain, head.seq, head.hash.hex()] for head in heads]})


def _last_line(file: BinaryIO) -> str | None:
    """The last line that is whole and not empty, read from the end: the file only grows."""
    end, size = file.seek(0, os.SEEK_END), _AT_ONCE
    begin = end
    while begin > 0:
        begin, size = max(0, end - size), 2 * size
        file.seek(begin)
        lines = file.read(end - begin).split(b"\n")[:-1]  # what a crash cut off ends without a line break
        for line in reversed(lines if begin == 0 else lines[1:]):  # the first one may have begun before
            if line.endswith(b"}"):
                return line.decode(errors="replace")
    return None
