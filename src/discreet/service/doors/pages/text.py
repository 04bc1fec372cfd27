"""Numbers and sentences of the web page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from discreet.accounting.convert import epsilon_tight
from discreet.catalog.model import Catalog, ImpliedColumn
from discreet.head_request import Period
from discreet.mechanisms.select_verify import SelectVerify
from discreet.mechanisms.two_round import TwoRound
from discreet.mechanisms.unknown_gumbel import UnknownGumbel
from discreet.query.json import from_dict
from discreet.query.planning import AVERAGE_BASIS
from discreet.query.query import Select
from discreet.query.sql import condition
from discreet.release.result import interval_note
from discreet.service.answering.accounts import period_in_words
from discreet.wire.administration import Activity, Spent
from discreet.wire.problems import Problem
from discreet.wire.queries import BudgetReport, Estimate, Expected, Spend, percent

TEMPLATES = Path(__file__).parent / "templates"


def snippets(sql: str, price: Mapping[str, float], url: str, method: str) -> list[tuple[str, str]]:
    """Return the code of a query in SQL, Python and curl, each with the name of the language.

    Args:
        method: "query", or "sql" for a whole statement.
    """
    arguments = ", ".join([json.dumps(sql), *(f"{name}={value!r}" for name, value in price.items())])
    python = (
        "import discreet\n\n"
        f'with discreet.Client("{url}") as client:  # the key is in DISCREET_KEY\n'
        f"    answer = client.{method}({arguments})\n"
        "    print(answer)"
    )
    body = json.dumps({"sql": sql, **price}).replace("'", "'\\''")
    curl = (
        f'curl -s {url}/v1/{method} -H "Authorization: Bearer $DISCREET_KEY" \\\n'
        f"  -H 'Content-Type: application/json' -d '{body}'"
    )
    return [("SQL", sql), ("Python", python), ("curl", curl)]


# ---------------------------------------------------------------------------------------------------- sentences


def name_of(catalog: Catalog, dataset: str, column: str) -> str:
    """Return the name of a column for people: "week of read_at" for read_at_week, a period that no catalog declares.

    A column that is called as a period, such as day, is not named: "week".
    """
    declared = catalog.datasets.get(dataset)
    uses = None if declared is None else declared.columns.get(column)
    if not isinstance(uses, ImpliedColumn):
        return column
    return str(uses.each) if uses.source.casefold() in {"date", *get_args(Period)} else f"{uses.each} of {uses.source}"


def title_of(
    query: Select, named: Callable[[str, str], str] = lambda _, column: column, *, per_user: bool = False
) -> str:
    """Return the title of a query in words.

    Args:
        named: names columns for people, see `name_of`.
        per_user: True for an average over users, as AVG was in earlier versions.
    """
    column = query.measure.column
    items = [named(query.dataset, item) for item in query.items]
    counted = {"users": "Users", "rows": "Rows", "sum": f"Sum of {column}", "average": f"Average of {column}"}
    average = f"{column} per user" if per_user else None
    title = (average or counted[query.measure.kind]) + (f" by {' and '.join(items)}" if items else " in total")
    title = f"{title}, top {query.k:,}" if query.k else title
    segments = " and ".join(named(query.dataset, segment) for segment in query.each)
    return f"{title}, for each {segments}" if segments else title


def asked(of: Activity | Spent, named: Callable[[str, str], str] = lambda _, column: column) -> str:
    """Return what was asked in words, without the constants of a filter."""
    if of.question is None:
        is_total = not isinstance(of, Activity)  # all that an account spent, which charges without a query are part of
        return "Running counts, or charges by hand" if is_total else "A query that the ledger does not describe"
    query = from_dict({**of.question, "where": None})
    columns = [named(query.dataset, name) for name in of.question.get("where") or []]
    title = title_of(query, named)
    return f"{title}, filtered by {' and '.join(columns)}" if columns else title


def acted(of: Activity) -> str:
    """Return what an action concerned: an account, or the service."""
    sentences = {"grant": "Grant to {}", "key": "API key of {}", "account": "Account {}"}
    if of.kind in sentences and of.account:
        return sentences[of.kind].format(of.account)
    return {"key": "API key", "store": "The store", "upkeep": f"Upkeep of {of.account}" if of.account else "Upkeep"}[
        of.kind
    ]


def why_fewer_items(release: Mapping[str, Any]) -> str | None:
    """Return an explanation if a release has fewer items than its query asked for, otherwise None."""
    k = release["question"].get("k")
    shown = len(release["items"])
    if k is not None and release["question"].get("each") and shown:
        if release["complete"]:
            return None
        return (
            f"Not all of {' and '.join(release['question']['each'])} have the {k:,} items that you asked for: further "
            "items have too few users to be named without revealing whether one person is among them."
        )
    if k is None or shown >= k:
        return None
    came = {0: f"None of the {k:,} items", 1: f"Only one of the {k:,} items"}.get(
        shown, f"Only {shown:,} of the {k:,} items"
    )
    return (
        f"{came} that you asked for came back: {'further items' if shown else 'they'} have too few users to be named "
        "without revealing whether one person is among them. Ask about a larger group, or spend more epsilon."
    )


_CHOSEN = {
    UnknownGumbel.name: "The {k:,} largest counts stand out clearly, so only these were counted.",
    SelectVerify.name: "There are few people for so many items, so only the largest were counted, and precisely.",
    TwoRound.name: "There are many people, so all items were counted roughly, and then the larger ones precisely.",
}
"""Explanations of the choices of the mechanism auto, in plain words, by mechanism."""


def chosen_for_you(release: Mapping[str, Any]) -> str | None:
    """Return an explanation in plain words of the mechanism that auto chose, or None without such a choice."""
    sentence = _CHOSEN.get(release["chosen"])
    return None if sentence is None else sentence.format(k=release["question"].get("k") or 0)


def interval_note_of(release: Mapping[str, Any]) -> str | None:
    """Return the reason why some intervals of a release are wide or lopsided, in a sentence; None if none are."""
    query = release["query"]
    value = "average" if query["average"] else "count" if query["summed"] is None else "sum"
    if not query["counts"] and value == "count":
        return None
    columns = [[float(item[name]) for item in release["items"]] for name in (value, "low", "high")]
    note = interval_note(columns, query["relative_error"] or 0.1, counts=value == "count")
    return None if note is None else f"{note[0].upper()}{note[1:]}."


def mechanism_of(release: Mapping[str, Any]) -> str:
    """Return the mechanism of a release and the reason for its choice, for experts."""
    how = f"Answered by {release['mechanism']}"
    if release["chosen"]:
        how += f", which chose {release['chosen']}: {release['why']}"
    elif release["why"]:
        how += f": {release['why']}"
    return f"{how}."


def expected_error(expected: Expected, kind: str) -> list[str]:
    """Return the expected errors of a release in sentences.

    Args:
        kind: the kind of its measure.
    """
    of = "rows" if kind == "rows" else "users"
    sentences = []
    if errors := expected.interval_ranges(f" {of}"):
        least, *other = errors
        off = "will probably be off by at most" if expected.likely else "are off by at most"
        others = f"; if another method answers, by {other[0]}" if other else ""
        sentences.append(f"95 % of the counts {off} {least}{others}.")
    if expected.sum_std_error is not None and kind == "average":
        error = number(2 * expected.sum_std_error)  # of Gaussian noise 95.4 % are within it, of Laplace noise 94.1 %
        smaller = str(expected.basis).removeprefix(AVERAGE_BASIS)
        sentences.append(f"The error of an average of n rows is about ± {error} / n, and {smaller}.")
    elif expected.sum_std_error is not None:
        # With a private bound this is the error of the declared one, which no choice exceeds.
        error = number(2 * expected.sum_std_error)
        limited = "after what each user adds is limited to the bounds"
        sentences.append(f"Noise moves about 95 % of the sums by at most {error}, {limited}.")
    if counts := expected.count_ranges():
        others = f"; with another method, {counts[1]}" if counts[1:] else ""
        sentences.append(f"Items probably need about {counts[0]} {of} to be shown{others}.")
    return sentences


def daily_price(estimate: Estimate) -> str | None:
    """Return the price of daily queries beside that of one query by day, in a sentence; None for other queries."""
    daily = estimate.daily
    if daily is None:
        return None
    sentences = " ".join(expected_error(daily.expected, estimate.question["measure"]["kind"]))
    return (
        f"Asked every day for four weeks instead, each of the {daily.releases} queries has epsilon "
        f"{number(daily.epsilon)} if they may cost as much together. {sentences}"
    )


def guarantee_in_words(epsilon: float, delta: float, answers: str = "all answers together") -> str:
    """Return the meaning of (epsilon, delta) for one person, in a sentence.

    Args:
        answers: the answers that epsilon and delta are of.
    """
    sure = math.ceil(1_000 / (1 + math.exp(-min(epsilon, 700.0)))) / 10  # rounded up
    if sure > 99.9:
        return (
            f"From {answers}, an attacker who is 50 % sure that a person is in the data could become certain: so large "
            "an epsilon promises next to nothing."
        )
    return (
        f"From {answers}, an attacker who is 50 % sure that a person is in the data can become at most {sure:g} % "
        f"sure, except with probability {number(delta)}."
    )


def place_of(problem: Problem) -> str:
    """Return the part of the query form to which a problem belongs: "sql", "privacy" or "cost"."""
    if problem.slug in {"malformed", "not-found"}:
        return "sql"
    if problem.slug == "out-of-range":
        return "privacy" if re.search(r"\b(epsilon|delta)\b", problem.detail) else "sql"
    return "cost"


# ---------------------------------------------------------------------------------------------------- budgets


def epsilon_of(cost: Spend, budget: BudgetReport) -> float:
    """Return the epsilon of a cost, at the delta of the account's conversion."""
    return epsilon_tight(cost.rho, budget.conversion_delta)


def times(needed: Spend, left: Spend) -> float | None:
    """Return how many times *needed* is what is left, by rho or delta; None if nothing is left of one of them."""
    pairs = [(needed.rho, left.rho), (needed.delta, left.delta)]
    return None if any(cost and not rest for cost, rest in pairs) else max(c / r if c else 0.0 for c, r in pairs)


def used_up(budget: BudgetReport) -> bool:
    """Return True if nothing is left of rho, or nothing of a delta that is above 0."""
    return not budget.left.rho or bool(budget.limit.delta and not budget.left.delta)


def budget_bar(budget: BudgetReport, cost: Spend | None = None) -> list[tuple[str, float, float]]:
    """Return the segments of the budget bar: name, start and width, in percent of the limit.

    The bar shows rho or delta, whichever is exhausted first.

    Args:
        cost: the worst-case cost of a query, shown as a segment of the remaining budget.
    """
    shares = {part: _share(getattr(budget.left, part), getattr(budget.limit, part)) for part in ("rho", "delta")}
    if cost is not None:
        shares = {part: -_share(getattr(cost, part), getattr(budget.left, part)) for part in shares}
    part = min(shares, key=lambda name: shares[name])
    limit = getattr(budget.limit, part)
    parts = []
    begin = 0.0
    for name, spend in (("used", budget.used), ("failed", budget.forfeited), ("held", budget.held), ("cost", cost)):
        width = 0.0 if spend is None else min(100 * _share(getattr(spend, part), limit), 100 - begin)
        if width:
            parts.append((name, round(begin, 2), round(max(width, 0.4), 2)))
        begin += width
    return parts


def _share(cost: float, of: float) -> float:
    return 0.0 if not cost and of else min(cost / of, 1.0) if of else 1.0


# ---------------------------------------------------------------------------------------------------- numbers


def number(value: float | str | None) -> str:
    """Format a number for display: whole numbers exactly, others rounded; None is a dash."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return re.sub(r"(\.0)?e-0?", "e-", f"{value:.1e}") if abs(value) < 1e-4 else f"{value:.3g}"


def when(text: str | None) -> str:
    """Format an ISO timestamp for display, to the minute in UTC; None is "never"."""
    return "never" if text is None else f"{datetime.fromisoformat(text):%-d %b %Y, %H:%M} UTC"


def moment(text: str) -> str:
    """Format an ISO timestamp for a column of times, to the second in UTC."""
    return f"{datetime.fromisoformat(text):%-d %b %Y, %H:%M:%S}"


def ended(text: str) -> str:
    """Return a message with a full stop, unless it has a mark at its end."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def label(values: Sequence[Any]) -> str:
    """Join the values of an item to its label."""
    return " · ".join("(missing)" if value is None else str(value) for value in values)


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": number,
    "percent": percent,
    "when": when,
    "moment": moment,
    "acted": acted,
    "period": period_in_words,
    "select_of": from_dict,
    "condition": condition,
    "used_up": used_up,
    "times": times,
    "epsilon_of": epsilon_of,
    "ended": ended,
}
"""Filters of the templates."""


def open_templates(*folders: Path) -> Environment:
    """Return the templates here and in *folders*, with the functions above as filters; they escape their values."""
    templates = Environment(
        loader=FileSystemLoader([TEMPLATES, *folders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(_FILTERS)
    return templates
