"""Signed checkpoints of the ledger, stored outside the database, to detect that a ledger is an older copy.

A restored backup and a replica that was promoted while it lagged are complete and consistent, so they can only be
detected with data stored elsewhere. The heads of the ledger are signed periodically, and a store that lacks lines of
its last checkpoint refuses to serve. Lines after the last checkpoint are not covered.

The first checkpoint is written while the ledger is empty, or by `discreet init`. So a ledger with lines and without a
checkpoint has lost its file of checkpoints, and may be an older copy: it refuses to serve, too, until its operator
accepts it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from cryptography.exceptions import InvalidSignature

from discreet.budget.errors import LedgerBroken, StoreBehind, StoreUnavailable
from discreet.budget.ledger import Head, Line, canonical
from discreet.budget.stores.sqlite import LedgerFile
from discreet.budget.stores.store import BudgetStore

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


_PURPOSE = b"discreet checkpoint 1\n"

_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The heads of a store's chains, signed.

    Args:
        signature: Ed25519 signature of all other fields.
    """

    store: str
    heads: tuple[Head, ...]
    signature: bytes

    @classmethod
    def signed(cls, store: str, heads: Sequence[Head], key: Ed25519PrivateKey) -> Checkpoint:
        """Return a checkpoint signed with *key*."""
        return cls(store, tuple(heads), key.sign(_PURPOSE + _content(store, heads).encode()))

    def check(self, key: Ed25519PublicKey) -> None:
        """Raise `LedgerBroken` unless the checkpoint was signed with the private key of *key*."""
        try:
            key.verify(self.signature, _PURPOSE + _content(self.store, self.heads).encode())
        except InvalidSignature:
            raise LedgerBroken("a checkpoint is not signed by this service's key") from None

    @property
    def text(self) -> str:
        """The checkpoint as one line of JSON."""
        return canonical({"content": _content(self.store, self.heads), "signature": self.signature.hex()})

    @classmethod
    def of_text(cls, text: str) -> Checkpoint:
        """Parse a checkpoint that `text` wrote, or raise `LedgerBroken`."""
        try:
            outer = json.loads(text)
            content = json.loads(outer["content"])
            heads = tuple(Head(chain, seq, bytes.fromhex(digest)) for chain, seq, digest in content["heads"])
            return cls(content["store"], heads, bytes.fromhex(outer["signature"]))
        except (ValueError, KeyError, TypeError):
            raise LedgerBroken("a checkpoint cannot be read") from None


class CheckpointFile:
    """An append-only file of checkpoints.

    Keep it on another disk than the database, where restoring the database cannot change it.

    Args:
        path: the file; it is created if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, checkpoint: Checkpoint) -> None:
        """Append a checkpoint, durably.

        Raises:
            StoreUnavailable: the file cannot be written.
        """
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
                size = os.fstat(file).st_size
                # the line break first: a crash may have cut off the last line, and the operator accepted the store
                line = f"\n{checkpoint.text}\n".encode()
                if os.write(file, line) < len(line):
                    os.ftruncate(file, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreUnavailable("the file of checkpoints cannot be written") from error

    def latest(self) -> Checkpoint | None:
        """Return the last checkpoint; None if the file is missing or empty, or its last line was cut off.

        A line that was cut off may have been a checkpoint of lines that the store lost since, so an earlier one does
        not replace it.

        Raises:
            StoreUnavailable: the file cannot be read.
            LedgerBroken: the checkpoint cannot be parsed.
        """
        try:
            with self._path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)  # another process may be writing
                line = _last_line(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable("the file of checkpoints cannot be read") from error
        return None if line is None else Checkpoint.of_text(line)


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """Writes checkpoints of a store, and compares the store with them."""

    file: CheckpointFile
    key: Ed25519PrivateKey

    def begin(self, store: BudgetStore) -> None:
        """Write a checkpoint without a comparison: of a new store, or of one that its operator accepts as it is.

        Raises:
            StoreUnavailable: the file cannot be written.
        """
        self.file.append(Checkpoint.signed(store.id, store.heads(), self.key))

    def write(self, store: BudgetStore) -> None:
        """Write a checkpoint of *store*, unless it has not changed since the last one.

        Raises:
            StoreUnavailable: the file cannot be written.
            StoreBehind: `check` failed; a checkpoint now would hide that lines are missing.
            LedgerBroken: `check` failed.
        """
        last = self.file.latest()  # before the heads, so that it is not newer than they are
        now = Checkpoint.signed(store.id, store.heads(), self.key)
        if now == last:  # Ed25519 is deterministic
            return
        self._compare(store, now.heads, last)
        self.file.append(now)

    def check(self, store: BudgetStore | LedgerFile) -> None:
        """Raise unless *store* has every line of the last checkpoint.

        Raises:
            StoreBehind: the store is older than the checkpoint, or another store; or there is no checkpoint, although
                the ledger has lines.
            LedgerBroken: the checkpoint was signed with another key, or a line differs from it.
        """
        last = self.file.latest()
        self._compare(store, store.heads(), last)

    def _compare(self, store: BudgetStore | LedgerFile, heads: Sequence[Head], checkpoint: Checkpoint | None) -> None:
        """Compare the *heads* of *store* with a checkpoint; read lines only of chains that have grown since."""
        if checkpoint is None:
            if not heads:
                return  # nothing was ever charged
            raise StoreBehind(
                "there is no checkpoint of the ledger, so a rollback to an older copy of the store cannot be excluded; "
                "put the file of checkpoints back, or accept the store as it is with: discreet ledger accept"
            )
        checkpoint.check(self.key.public_key())
        if checkpoint.store != store.id:
            raise StoreBehind("the checkpoints are of another store; this one cannot replace it")
        last = {head.chain: head for head in heads}
        for head in checkpoint.heads:
            now: Head | Line | None = last.get(head.chain)
            if now is not None and now.seq > head.seq:
                now = next(iter(store.lines(head.chain, head.seq - 1, 1)), None)
            if now is None or now.seq < head.seq:
                raise StoreBehind(
                    "the store is older than its last checkpoint; a backup was restored or a replica promoted"
                )
            if now.hash != head.hash:
                raise LedgerBroken("it is not as in the last checkpoint", head.chain, head.seq)


def _content(store: str, heads: Sequence[Head]) -> str:
    return canonical({"store": store, "heads": [[head.chain, head.seq, head.hash.hex()] for head in heads]})


def _last_line(file: BinaryIO) -> str | None:
    """Return the last line that is not empty, reading backwards; None if there is none, or it has no line break."""
    end = file.seek(0, os.SEEK_END)
    size = _READ_BYTES
    begin = end
    while begin > 0:
        begin = max(0, end - size)
        size = 2 * size
        file.seek(begin)
        *lines, cut_off = file.read(end - begin).split(b"\n")
        if cut_off:
            return None
        for line in reversed(lines if begin == 0 else lines[1:]):  # the first one may begin before what was read
            if line:
                return line.decode(errors="replace")
    return None
