"""Disclosures of accounts and datasets from the catalog, the settings and the store."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

from discreet._version import __version__
from discreet.accounting.convert import guarantee_of
from discreet.budget.manager import BudgetManager, guaranteed_cost
from discreet.budget.model import Account, PaidRelease, Sliding
from discreet.budget.stores.store import MAX_HISTORY_PAGE, BudgetStore
from discreet.catalog.fields import OwnerQuery
from discreet.catalog.model import Catalog, Dataset
from discreet.errors import InputError
from discreet.release.result import privacy_to_dict
from discreet.service.answering.accounts import limit_in_words, period_in_words, period_of
from discreet.service.auth.access import GRANT, KEY, KeyRecord, account_and_dataset, granted_columns
from discreet.service.settings import Settings
from discreet.values import Cost
from discreet.wire import disclosure as wire
from discreet.wire import document
from discreet.wire.queries import Privacy, iso_time


def disclose(
    account: str | None,
    dataset: str | None,
    manager: BudgetManager,
    catalog: Catalog,
    settings: Settings,
    written_us: int,
) -> wire.Disclosure:
    """Return the disclosure of an account without parents, or of a dataset; by default of the only such account.

    Args:
        written_us: the time, in microseconds since 1970.

    Raises:
        UnknownAccount: there is no such account.
        NotFound: there is no such dataset.
        InputError: the account has a parent, or it must be chosen.
    """
    store = manager.store
    accounts = {entry.id: entry for entry in store.accounts()}
    grants = {account_and_dataset(name): granted_columns(text) for name, text in store.records(GRANT)}
    if dataset is not None and account is not None:
        raise InputError("a disclosure is of an account or of a dataset, not of both")
    if dataset is None:
        roots = [_root_named(account, accounts, store)]
        granted = {name for who, name in grants if _root_of(who, accounts) == roots[0].id}
        names = [name for name in catalog.datasets if name in granted]
        subject = roots[0].id
    else:
        subject, _ = catalog.find(dataset)
        names = [subject]
        roots = [entry for entry in accounts.values() if entry.parent is None]
    used: Counter[str] = Counter()
    times: list[int] = []
    answering: set[str | None] = set()
    damaged = 0
    seen = set()
    for root in roots:
        for paid in _history(store, root.id):
            if paid.release is None:
                damaged += 1
                continue
            release = document.read(paid.release.result)
            if dataset is not None and release["dataset"] != subject:
                continue
            answering.add(root.id)
            times.append(paid.time_us)
            if paid.release_key not in seen:
                used[wire.mechanism_of(release)] += 1
                seen.add(paid.release_key)
    if dataset is not None:
        answering |= {_root_of(who, accounts) for who, name in grants if name == subject}
        roots = [root for root in roots if root.id in answering]
    privacy = _guarantee(roots, manager)
    datasets = [catalog.datasets[name] for name in names]
    return wire.Disclosure(
        kind="account" if dataset is None else "dataset",
        subject=subject,
        written=iso_time(written_us),
        version=__version__,
        deployment=settings.disclosure,
        datasets=[
            wire.DisclosedDataset(
                name=name,
                description=declared.description,
                user=declared.user,
                columns=_columns(name, declared, roots, grants, accounts),
                changes=declared.retention_days is not None or not isinstance(declared.data_version, str),
            )
            for name, declared in zip(names, datasets, strict=True)
        ],
        privacy=privacy,
        period=_period(roots),
        accounts=[
            wire.DisclosedAccount(
                account=root.id,
                limit=limit_in_words(root),
                period=period_in_words(period_of(root.period)),
                enforced=root.enforced,
            )
            for root in roots
        ],
        answers=len(seen),
        first_answer=iso_time(min(times)) if times else None,
        last_answer=iso_time(max(times)) if times else None,
        mechanisms=wire.mechanisms_used(used),
        composition=wire.COMPOSITION,
        post_processing=wire.POST_PROCESSING,
        exclusions=[
            line for name, declared in zip(names, datasets, strict=True) for line in _exclusions(name, declared)
        ],
        unprotected=[
            *wire.UNPROTECTED,
            *(line for name, declared in zip(names, datasets, strict=True) for line in _read_labels(name, declared)),
        ],
        access=_access(roots, accounts, store, settings, written_us),
        implementation=[*wire.NOISE, _timing(settings)],
        checkpoint=_checkpoint(manager),
        limits=[
            *wire.key_limit(privacy),
            *_limits(roots, accounts, grants, names, datasets, damaged),
            *([] if settings.checkpoints else ["There are no checkpoints: a ledger that lost its end is not noticed."]),
            *wire.LIMITS,
        ],
    )


def _root_named(name: str | None, accounts: dict[str, Account], store: BudgetStore) -> Account:
    roots = [account for account in accounts.values() if account.parent is None]
    if name is None:
        if len(roots) != 1:
            raise InputError(
                f"choose the account or a dataset; the accounts are {', '.join(account.id for account in roots)}"
            )
        return roots[0]
    path = store.path(name)
    if len(path) > 1:
        raise InputError(
            f"the account {name!r} is below {path[-1].id!r}, whose limit is the one that holds for all answers: "
            f"disclose {path[-1].id!r}"
        )
    return path[0]


def _root_of(name: str | None, accounts: dict[str, Account]) -> str | None:
    """Return the account without parents above an account, or None if there is no such account."""
    root = None
    while name in accounts:
        root = name
        name = accounts[name].parent
    return root


def _history(store: BudgetStore, account: str) -> Iterator[PaidRelease]:
    before: int | None = None
    while page := store.history(account, before, MAX_HISTORY_PAGE):
        yield from page
        before = page[-1].number


def _guarantee(roots: Sequence[Account], manager: BudgetManager) -> Privacy | None:
    """Return the guarantee of all answers of *roots* together; None if one promises nothing, or there is none."""
    if not roots or not all(root.enforced for root in roots):
        return None
    cost = sum((guaranteed_cost(root, manager.store.balance(root.id).spent) for root in roots), Cost())
    delta = cost.delta + sum(root.conversion for root in roots)
    if delta >= 1:
        return None
    return Privacy.model_validate(privacy_to_dict(guarantee_of(cost, delta, computational=True)))


def _period(roots: Sequence[Account]) -> str:
    """Return the window of time in which the guarantee holds: the shortest of the periods of accounts."""
    ways = list(dict.fromkeys(period_in_words(period_of(root.period)) for root in roots))
    if len(ways) == 1:
        return f"All answers {ways[0]}"
    days = [root.period.days for root in roots if isinstance(root.period, Sliding)]
    return f"All answers in any {min(days)} days" if days else "All answers in any period of all accounts"


def _columns(
    name: str,
    dataset: Dataset,
    roots: Sequence[Account],
    grants: dict[tuple[str, str], frozenset[str] | None],
    accounts: dict[str, Account],
) -> list[str]:
    """Return the declared columns of a dataset that are granted to an account of *roots*, or to one below it."""
    ids = {root.id for root in roots}
    granted = [columns for (who, of), columns in grants.items() if of == name and _root_of(who, accounts) in ids]
    return [column for column in dataset.declared if any(columns is None or column in columns for columns in granted)]


def _exclusions(name: str, dataset: Dataset) -> Iterator[str]:
    yield f"{name}: rows without a value of {dataset.user} are left out."
    if dataset.missing_labels == "drop":
        yield f"{name}: rows without a label are left out."
    if dataset.groups_per_user is not None:
        yield f"{name}: at most {dataset.groups_per_user:,} groups of each user count; of more, random ones do."
    if dataset.rows_per_group is not None:
        yield f"{name}: where rows count, at most {dataset.rows_per_group:,} of each user and group."
    for column, uses in dataset.columns.items():
        if column in dataset.declared and uses.groups_per_user is not None:
            yield f"{name}: at most {uses.groups_per_user:,} labels of {column} of each user count, at random."
        if uses.sum is not None:
            low, high = (f"{float(bound):,g}" for bound in (uses.sum.low, uses.sum.high))
            yield f"{name}: what each user adds to a sum of {column} is clipped to {low} to {high}."


def _read_labels(name: str, dataset: Dataset) -> Iterator[str]:
    for column in dataset.declared:
        if isinstance(dataset.columns[column].domain, OwnerQuery):
            yield f"{name}: all labels of {column}, which a query of the data owner lists."


def _access(
    roots: Sequence[Account], accounts: dict[str, Account], store: BudgetStore, settings: Settings, now_us: int
) -> list[str]:
    ids = {root.id for root in roots}
    below = [name for name in accounts if _root_of(name, accounts) in ids]
    keys = [record for _, text in store.records(KEY) if (record := KeyRecord.of_text(text)).valid_at(now_us)]
    analysts = sum(record.account in below and "analyst" in record.roles for record in keys)
    issuer = [] if settings.oidc is None else [f"Tokens of {settings.oidc.issuer} are accepted, too."]
    officers = sum("officer" in record.roles for record in keys)
    admins = sum("admin" in record.roles for record in keys)
    return [
        (
            f"Accounts: {len(below):,}; valid API keys of analysts: {analysts:,}. An analyst sees only datasets and "
            "columns that are granted to the analyst's account or to one above it."
        ),
        (
            f"Valid keys of privacy officers, who set limits and grants: {officers:,}; of administrators, who create "
            f"keys: {admins:,}. No role includes another."
        ),
        *issuer,
        (
            "Each query and each change of a limit, grant or key is in a ledger whose lines are chained by hashes, "
            "with its author and reason."
        ),
        "The operators of the service and of the engines see the rows.",
    ]


def _timing(settings: Settings) -> str:
    grid = settings.service.release_grid_ms
    if grid:
        return f"Responses are sent at multiples of {grid:,} milliseconds, which hides part of the time of a query."
    return "Nothing is done about the time that a query takes, which depends on the data."


def _checkpoint(manager: BudgetManager) -> str | None:
    latest = manager.last_checkpoint()
    return None if latest is None else hashlib.sha256(latest.text.encode()).hexdigest()


def _limits(
    roots: Sequence[Account],
    accounts: dict[str, Account],
    grants: dict[tuple[str, str], frozenset[str] | None],
    names: Sequence[str],
    datasets: Sequence[Dataset],
    damaged: int,
) -> Iterator[str]:
    observed = [root.id for root in roots if not root.enforced]
    if observed:
        yield f"{', '.join(observed)} is only observed: nothing is refused, so there is no guarantee."
    asking = {_root_of(who, accounts) for who, name in grants if name in names}
    others = sorted(filter(None, asking - {root.id for root in roots}))
    if others:
        listed = ", ".join(others)
        yield f"Other accounts may query the same data, whose losses add to these: {listed}."
    for root in roots:
        retention = [dataset.retention_days for dataset in datasets]
        if isinstance(root.period, Sliding) and any(days is None or days > root.period.days for days in retention):
            yield (
                f"The limit of {root.id} holds {period_in_words(period_of(root.period))}; rows may be kept for longer, "
                "and then the losses of several periods add up."
            )
    for name, dataset in zip(names, datasets, strict=True):
        if dataset.data_version is None and dataset.engine is not None:
            yield f"{name} has no declared version of the data."
    if damaged:
        yield f"{damaged:,} stored answers are damaged, and are missing in the list of mechanisms."
