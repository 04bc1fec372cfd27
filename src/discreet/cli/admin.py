"""`discreet admin`: accounts, grants and API keys of a service, over HTTP."""

from __future__ import annotations

import csv
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from discreet.cli.options import Epsilon, connection_options, options_of
from discreet.errors import InputError, file_error
from discreet.values import number


@click.group()
def admin() -> None:
    """Administer accounts, grants and API keys of a service.

    Accounts and grants need the key of an officer, API keys that of an admin: in a file, or in DISCREET_KEY. The
    responses of the service are printed as JSON.
    """


_changing = options_of(
    connection_options, click.option("--reason", required=True, help="The reason, which is recorded in the ledger.")
)
_limited = options_of(
    click.option("--epsilon", required=True, type=Epsilon(), help="Epsilon of all answers together."),
    click.option("--delta", required=True, metavar="FLOAT", help="Delta of all answers together."),
)


@admin.command()
@connection_options
def accounts(**options: Any) -> None:
    """List accounts."""
    _send(options, "GET", "accounts?limit=1000")


@admin.command("open")
@click.argument("account")
@click.option("--parent", help="The parent account, which is charged too; it never changes.")
@_limited
@click.option("--days", type=int, help="Days after which a charge stops counting, as many as the data is kept.")
@_changing
def open_account(
    account: str, parent: str | None, epsilon: float, delta: str, days: int | None, **options: Any
) -> None:
    """Open ACCOUNT with a limit."""
    period = {"kind": "forever"} if days is None else {"kind": "sliding", "days": days}
    limit = {"epsilon": epsilon, "delta": delta}
    _send(options, "POST", "accounts", {"account": account, "parent": parent, "limit": limit, "period": period})


@admin.command()
@click.argument("account")
@_limited
@_changing
def limit(account: str, epsilon: float, delta: str, **options: Any) -> None:
    """Change the limit of ACCOUNT."""
    _send(options, "PATCH", f"accounts/{_segment(account)}", {"limit": {"epsilon": epsilon, "delta": delta}})


@admin.command()
@click.argument("account")
@_limited
@click.option("--days", type=int, default=30, show_default=True, help="Days to look back.")
@connection_options
def preview(account: str, epsilon: float, delta: str, days: int, **options: Any) -> None:
    """Try a limit of ACCOUNT on its latest queries; change nothing."""
    limit = {"epsilon": epsilon, "delta": delta}
    _send(options, "POST", f"accounts/{_segment(account)}/preview?days={days}", {"limit": limit})


@admin.command()
@click.option("--days", type=int, default=30, show_default=True, help="Days to look back.")
@connection_options
def spending(days: int, **options: Any) -> None:
    """Show what accounts spend, and how soon analysts use up limits."""
    _send(options, "GET", f"spending?days={days}")


@admin.command()
@click.argument("account")
@_changing
def suspend(account: str, **options: Any) -> None:
    """Refuse the queries of ACCOUNT and of all below it."""
    _send(options, "POST", f"accounts/{_segment(account)}/suspend", {})


@admin.command()
@click.argument("account")
@_changing
def lift(account: str, **options: Any) -> None:
    """End the suspension of ACCOUNT."""
    _send(options, "POST", f"accounts/{_segment(account)}/lift", {})


@admin.command()
@click.option("--account", metavar="NAME", help="Only of this account and of those below it.")
@click.option("--dataset", metavar="NAME", help="Only of this dataset.")
@click.option("--kind", metavar="NAME", help="queries, changes, all, or one kind such as refused or account.")
@click.option("--since", metavar="DATE", help="The first day, UTC.  [default: six days ago]")
@click.option("--until", metavar="DATE", help="The last day, UTC.  [default: today]")
@connection_options
def activity(
    account: str | None, dataset: str | None, kind: str | None, since: str | None, until: str | None, **options: Any
) -> None:
    """Show who asked or changed what, and for how much.

    The latest 1,000 queries and changes that fit, and the accounts that spent most on them.
    """
    parameters = {"account": account, "dataset": dataset, "kind": kind, "since": since, "until": until, "limit": "1000"}
    _send(options, "GET", f"activity?{urlencode({name: value for name, value in parameters.items() if value})}")


@admin.command()
@connection_options
def grants(**options: Any) -> None:
    """List grants."""
    _send(options, "GET", "grants?limit=1000")


@admin.command()
@click.argument("account")
@click.argument("dataset")
@click.option("--column", "columns", multiple=True, help="A column; may be repeated.  [default: all columns]")
@_changing
def grant(account: str, dataset: str, columns: tuple[str, ...], **options: Any) -> None:
    """Let ACCOUNT and its descendants query DATASET."""
    body = {"columns": list(columns) or None}
    _send(options, "PUT", f"grants/{_segment(account)}/{_segment(dataset)}", body)


@admin.command()
@click.argument("account")
@click.argument("dataset")
@_changing
def revoke(account: str, dataset: str, **options: Any) -> None:
    """Revoke the grant of DATASET to ACCOUNT."""
    _send(options, "DELETE", f"grants/{_segment(account)}/{_segment(dataset)}")


@admin.command("running")
@connection_options
def running_counts(**options: Any) -> None:
    """List running counts: who paid how much, until when."""
    _send(options, "GET", "running")


@admin.command()
@click.argument("name")
@_changing
def erased(name: str, **options: Any) -> None:
    """Let the running counts NAME go on after users were erased.

    All rows of these users, and nothing else may have changed.
    """
    _send(options, "POST", f"running/{_segment(name)}/erased", {})


@admin.command()
@connection_options
def keys(**options: Any) -> None:
    """List API keys, without their secrets."""
    _send(options, "GET", "keys?limit=1000")


@admin.command("make-key")
@click.option("--account", help="The account to which queries with the key are charged.")
@click.option("--role", "roles", multiple=True, type=click.Choice(["analyst", "officer", "admin"]), required=True)
@click.option("--label", default="", help="Owner or purpose of the key.")
@click.option("--days", type=int, default=365, show_default=True, help="Days until it expires.")
@_changing
def make_key(account: str | None, roles: tuple[str, ...], label: str, days: int, **options: Any) -> None:
    """Create an API key, which is printed once."""
    _send(options, "POST", "keys", {"account": account, "roles": list(roles), "label": label, "days": days})


@admin.command("revoke-key")
@click.argument("id")
@_changing
def revoke_key(id: str, **options: Any) -> None:  # noqa: A002 - as the service calls it
    """Revoke the API key with this ID."""
    _send(options, "DELETE", f"keys/{_segment(id)}")


@admin.command("import")
@click.argument("people", metavar="PEOPLE.CSV")
@click.option("--apply", is_flag=True, help="Change it; without, say what would be changed.")
@_changing
def import_people(people: str, *, apply: bool, **options: Any) -> None:
    """Create or change accounts, grants and keys of many people.

    All rows are applied, or none. Columns: account, parent, epsilon, delta, days, mode, datasets, roles, label,
    key_days; only the first is required, and empty cells change nothing. Datasets have semicolons between them, and
    columns in parentheses: reads; sales(article, country). What is already so stays unchanged. Keys are printed once.
    """
    _send(options, "POST", "import", {"people": _people(Path(people)), "dry_run": not apply})


_PEOPLE = ("account", "parent", "epsilon", "delta", "days", "mode", "datasets", "roles", "label", "key_days")
_GRANTED = re.compile(r"([^()]+?)\s*(?:\(([^()]*)\))?")


def _people(path: Path) -> list[dict[str, Any]]:
    """Return the people of a CSV file, as the service reads them; raise `InputError` for mistakes."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            unknown = [name for name in reader.fieldnames or () if name not in _PEOPLE]
            if unknown or "account" not in (reader.fieldnames or ()):
                wrong = f"there is no column {unknown[0]!r}" if unknown else "the column account is missing"
                raise InputError(f"{wrong} of {path.name!r}; the columns are {', '.join(_PEOPLE)}")
            return [_person(row, f"row {n} of {path.name!r}") for n, row in enumerate(reader, 1)]
    except OSError as error:
        raise file_error(path, "read", error) from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path.name!r} is not CSV in UTF-8") from None


def _person(row: dict[str, str | None], place: str) -> dict[str, Any]:
    if None in row:
        raise InputError(f"{place} has more cells than there are columns")
    cells: dict[str, Any] = {name: value.strip() for name, value in row.items() if value is not None and value.strip()}
    person: dict[str, Any] = {name: cells[name] for name in ("account", "parent", "mode", "label") if name in cells}
    if ("epsilon" in cells) != ("delta" in cells):
        raise InputError(f"{place} needs both epsilon and delta, or neither")
    if "epsilon" in cells:
        person["limit"] = {"epsilon": number(cells["epsilon"], f"{place}: epsilon"), "delta": cells["delta"]}
    if "days" in cells:
        person["period"] = {"kind": "sliding", "days": _days(cells["days"], f"{place}: days")}
    if "key_days" in cells:
        person["key_days"] = _days(cells["key_days"], f"{place}: key_days")
    if "roles" in cells:
        person["roles"] = cells["roles"].split()
    grants = {}
    for text in filter(None, map(str.strip, cells.get("datasets", "").split(";"))):
        grant = _GRANTED.fullmatch(text)
        if grant is None:
            raise InputError(f"{place}: datasets have semicolons between them, as in reads; sales(article, country)")
        columns = None if grant[2] is None else [name.strip() for name in grant[2].split(",") if name.strip()]
        grants[grant[1]] = columns
    return person | {"grants": grants}


def _days(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 9:  # Python refuses to convert thousands of digits
        raise InputError(f"{name} must be a whole number of days, not {text[:100]!r}")
    return int(text)


def _segment(name: str) -> str:
    return quote(name, safe="")


def _send(options: dict[str, Any], method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """Send a request as `request_json` does, and print the response."""
    response = request_json(options, method, path, body)
    if response is not None:
        click.echo(json.dumps(response, indent=2, ensure_ascii=False))


def request_json(options: dict[str, Any], method: str, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - any JSON
    """Send a request of an officer or administrator once, without retries; check its effect before repeating it.

    Args:
        options: url, key_file and, for a change, reason.
        path: after /v1/admin/.

    Returns:
        the JSON of the response, or None without one.

    Raises:
        DiscreetError: the service cannot be reached, or refused it.
    """
    import httpx

    from discreet.client.client import find_key
    from discreet.client.errors import ServiceError, error_of, read_problem

    headers = {"Authorization": f"Bearer {find_key(None, options['key_file'], os.environ)}"}
    parameters = {}
    if "reason" in options:  # a change; DELETE has no body, so its reason is in the URL
        headers["Idempotency-Key"] = secrets.token_hex(16)
        parameters = {"reason": options["reason"]} if body is None else {}
        body = None if body is None else {**body, "reason": options["reason"]}
    url = httpx.URL(f"{options['url'].rstrip('/')}/v1/admin/{path}").copy_merge_params(parameters)
    try:
        reply = httpx.request(method, url, headers=headers, json=body, timeout=60)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServiceError(f"{options['url']} cannot be reached ({type(error).__name__})") from None
    if reply.is_error:
        problem = read_problem(reply.headers, reply.content)
        if problem is None:
            raise ServiceError(f"{options['url']} answered {reply.status_code}, but is not a Discreet service")
        raise error_of(problem, None)
    return reply.json() if reply.content else None
