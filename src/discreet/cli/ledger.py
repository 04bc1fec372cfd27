"""`discreet ledger`: verify and read the ledger of a store, even while a service uses it."""

from __future__ import annotations

import contextlib
import csv
import heapq
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.options import config_option, options_of, reason_option
from discreet.cli.output import check_writable
from discreet.cli.serve import parse_store, require_service
from discreet.errors import InputError, file_error

if TYPE_CHECKING:
    from discreet.budget.checkpoints import Checkpointer
    from discreet.budget.ledger import Line
    from discreet.budget.stores.sqlite import LedgerFile
    from discreet.budget.stores.store import BudgetStore
    from discreet.wire.administration import LedgerLine

_FIELDS = (
    *("chain", "seq", "time", "kind", "reservation", "actor", "reason", "detail"),
    *("account", "bucket", "part", "rho", "delta", "hash"),
)


_store_options = options_of(
    click.option("--config", metavar="FILE", help="Settings of the service.  [default: discreet.toml]"),
    click.option("--store", metavar="URL", help="The store, instead of settings: sqlite:FILE or postgresql://..."),
    click.option(
        "--password-env", metavar="NAME", help="The environment variable that holds the password of the store."
    ),
)


@click.group()
def ledger() -> None:
    """Verify, show and export the ledger of all budgets."""


@ledger.command()
@_store_options
@click.option(
    "--archive",
    "archives",
    multiple=True,
    metavar="FILE",
    help="File of lines that prune removed; repeat the option for each file.",
)
def verify(archives: Sequence[str], **where: str | None) -> None:
    """Verify all lines, balances and the checkpoint of the end.

    Reads the whole ledger, computes every balance from it, and compares its end with the signed checkpoint. Exit code 3
    if something was changed, or if the checkpoint is missing, so that a rollback cannot be excluded. Lines that prune
    removed are read from the archives; without archives, the check starts from their sums, whose hash is in the ledger.
    """
    with _open_store(**where) as (store, checkpointer):
        verified = store.verify([_archived(Path(file)) for file in archives])
        if checkpointer is not None:
            checkpointer.check(store)
    vouched = (
        "its end is not checked, so a rollback cannot be excluded: there are no checkpoints"
        if checkpointer is None
        else "its end is that of the last checkpoint"
    )
    removed = sum(head.seq for head in verified.heads) - verified.lines
    after = f" after {removed:,} that were removed" if removed else ""
    click.echo(f"sound: {verified.lines:,} lines{after}, {len(verified.accounts):,} accounts; {vouched}")


@ledger.command()
@_store_options
@click.option("--account", metavar="NAME", help="Only lines that name this account.")
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of lines.")
def show(account: str | None, last: int, **where: str | None) -> None:
    """Print the last lines.

    Lines of all chains, by time. A change is the amount charged, held or released, in rho and delta.
    """

    def concerns(line: LedgerLine) -> bool:
        described = line.detail.get("account")
        named = described.get("id") if isinstance(described, dict) else described
        return account is None or account == named or account in {change.account for change in line.changes}

    with _open_store(**where) as (store, _):
        matching = (item for item in _all_lines(store, account) if concerns(item[1]))
        lines = heapq.nlargest(last, matching, key=lambda item: (item[1].time, item[0], item[1].seq))
    for chain, line in reversed(lines):
        act = " ".join(str(line.detail[name]) for name in ("actor", "reason") if name in line.detail)
        changes = "; ".join(f"{c.account} {c.part} {c.rho:+.4g} {c.delta:+.4g}" for c in line.changes)
        fields = (line.time[:19], f"{f'{chain}:{line.seq}':>8}", f"{line.kind:<8}", act, changes)
        click.echo("  ".join(field for field in fields if field))


@ledger.command()
@_store_options
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@click.option("--output", metavar="FILE", help="Write to FILE instead of standard output.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def export(form: str, output: str | None, *, force: bool, **where: str | None) -> None:
    """Write all lines.

    JSON lines hold all fields, with the exact text that is hashed, so that the chain can be verified; CSV has a row for
    each change.
    """
    if output is not None:
        check_writable(Path(output), force=force)
    with _open_store(**where) as (store, _):
        parts = _as_csv(_all_lines(store)) if form == "csv" else _as_json(_all_lines(store))
        if output is None:
            for part in parts:
                click.echo(part, nl=False)
            return
        _write_durably(Path(output), parts)


@ledger.command()
@config_option
@click.option("--before", type=click.DateTime(["%Y-%m-%d"]), required=True, help="Remove lines before this day, UTC.")
@click.option("--archive", required=True, metavar="FILE", help="Write the lines to FILE first, as JSON lines.")
@reason_option
@click.option("--force", is_flag=True, help="Overwrite the file.")
def prune(config: str, before: datetime, archive: str, reason: str, *, force: bool) -> None:
    """Move old lines to a file.

    Verifies the ledger first. Balances, stored releases and the records of who paid for them stay; idempotency keys
    and ended reservations of the same age are removed. If the store is SQLite, stop the service first.
    """
    require_service()
    from discreet.budget.model import AdminAction
    from discreet.budget.rules import microseconds
    from discreet.service.settings import load_settings
    from discreet.service.stores import open_manager

    check_writable(Path(archive), force=force)
    with open_manager(load_settings(config), os.environ) as manager:
        removed = manager.prune(
            microseconds(before.replace(tzinfo=UTC)),
            AdminAction("discreet", reason),
            lambda lines: _write_durably(Path(archive), _as_json(map(_with_chain, lines))),
        )
        manager.maintain()
    click.echo(f"{removed:,} lines are in {archive}, and no longer in the store")


@ledger.command()
@config_option
@reason_option
def accept(config: str, reason: str) -> None:
    """Accept a ledger that has no checkpoint.

    A service does not start without the file of checkpoints, because its store may be an older copy, with budget that
    was spent since. This verifies the ledger, records in it that the store was accepted as it is, and writes the first
    checkpoint. Running counts that go on are charged once more, because what they answered since is answered again. If
    the store is SQLite, stop the service first. To go on with a store that is older than its last checkpoint, rename
    the file of checkpoints before.
    """
    require_service()
    from discreet.budget.model import AdminAction
    from discreet.service.answering.running import charge_again
    from discreet.service.settings import load_settings
    from discreet.service.stores import checkpointer_of, open_store, utc_now

    settings = load_settings(config)
    checkpointer = checkpointer_of(settings.checkpoints)
    if settings.checkpoints is None or checkpointer is None:
        raise InputError("the settings have no section checkpoints, so there is nothing to accept")
    name = settings.checkpoints.file.name
    if checkpointer.file.latest() is not None:
        raise InputError(f"{name!r} has a checkpoint, with which the store is compared, so there is nothing to accept")
    with contextlib.closing(open_store(settings.store, os.environ, utc_now)) as store:
        lines = store.verify().lines
        action = AdminAction("discreet", reason)

        def work(store: BudgetStore) -> list[str]:
            charged = charge_again(store, action)
            store.note(action, {"what": "accept the ledger without a checkpoint"})
            return charged

        charged = store.together(work)
        checkpointer.begin(store)
    click.echo(f"accepted: {lines:,} lines, as they are; {name!r} has the first checkpoint")
    if charged:
        click.echo(f"running counts were charged once more: {', '.join(charged)}")


@contextlib.contextmanager
def _open_store(
    config: str | None, store: str | None, password_env: str | None
) -> Iterator[tuple[BudgetStore | LedgerFile, Checkpointer | None]]:
    """Open the store of the options; yields it and its checkpointer."""
    require_service()
    from discreet.service.settings import load_settings
    from discreet.service.stores import checkpointer_of, open_ledger

    if store is not None and config is not None:
        raise InputError("give either --config or --store, not both")
    if store is not None:
        named = parse_store(store, password_env)
        checkpointer = None
    else:
        settings = load_settings(config or "discreet.toml")
        named = settings.store
        checkpointer = checkpointer_of(settings.checkpoints)
    with contextlib.closing(open_ledger(named, os.environ)) as opened:
        yield opened, checkpointer


def _all_lines(store: BudgetStore | LedgerFile, text: str | None = None) -> Iterator[tuple[int, LedgerLine]]:
    """Yield the lines of all chains, only those that contain *text* if it is given."""
    escaped = "" if text is None else json.dumps(text)[1:-1]
    for head in store.heads():
        for line in store.lines(head.chain, 0, head.seq):
            if text is None or text in line.body or escaped in line.body:
                yield _with_chain(line)


def _with_chain(line: Line) -> tuple[int, LedgerLine]:
    from discreet.budget.errors import LedgerBroken
    from discreet.wire.administration import ledger_line_of

    try:
        return line.chain, ledger_line_of(line)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # of a value that is damaged
        raise LedgerBroken("a line cannot be read", line.chain, line.seq) from None


def _archived(file: Path) -> Iterator[Line]:
    """Yield the ledger lines in a file that `_as_json` wrote."""
    from discreet.budget.ledger import Line

    try:
        with file.open(encoding="utf-8") as texts:
            for text in texts:
                read = json.loads(text)
                yield Line(read["chain"], read["seq"], read["body"], bytes.fromhex(read["hash"]))
    except OSError as error:
        raise file_error(file, "read", error) from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{str(file)!r} is not an archive of ledger lines") from None


def _as_json(lines: Iterable[tuple[int, LedgerLine]]) -> Iterator[str]:
    for chain, line in lines:
        yield json.dumps({"chain": chain, **line.model_dump()}, ensure_ascii=False) + "\n"


def _as_csv(lines: Iterable[tuple[int, LedgerLine]]) -> Iterator[str]:
    from discreet.release.tables import guarded_cell

    text = io.StringIO()
    writer = csv.DictWriter(text, _FIELDS, lineterminator="\n")
    writer.writeheader()
    for chain, line in lines:
        shared = {
            "chain": chain,
            "seq": line.seq,
            "time": line.time,
            "kind": line.kind,
            "reservation": line.reservation,
            "actor": line.detail.get("actor"),
            "reason": line.detail.get("reason"),
            "detail": json.dumps(line.detail, ensure_ascii=False),
            "hash": line.hash,
        }
        changes: list[dict[str, Any]] = [change.model_dump() for change in line.changes]
        for change in changes or [{}]:  # a line without changes has a row, too
            writer.writerow({field: guarded_cell(cell) for field, cell in (shared | change).items()})
        yield text.getvalue()
        # One line at a time: a ledger may be larger than the memory.
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _write_durably(path: Path, parts: Iterable[str]) -> None:
    from discreet.release.files import write_durably

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            for part in parts:
                file.write(part)

    write_durably(path, write)
