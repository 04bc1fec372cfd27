"""Counts of a release within a relative error, compared with other methods: the numbers of docs/accuracy.md.

`python -m benchmarks.accuracy` measures every available table and writes the page; cells that an earlier run
finished are not measured again. `--quick` measures a few made-up tables and only prints.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click
import numpy as np
from scipy.optimize import minimize  # type: ignore[import-untyped]
from scipy.stats import norm  # type: ignore[import-untyped]

from benchmarks import accuracy_each, accuracy_page
from benchmarks.accuracy_page import EXTREME, MADE_UP
from benchmarks.peers import INSTALLED, release_by
from benchmarks.timing import table as markdown
from discreet.accounting.convert import limit_for, rho_simple
from discreet.accounting.gaussian import mu_gaussian
from discreet.errors import InvariantViolated
from discreet.mechanisms import CountRelease, KnownAuto, KnownLaplace, Request
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.select_verify import SelectVerify
from discreet.testing.pairs import ArrayPairs
from discreet.values import ExactHead
from papers.baselines import plume
from papers.experiment import Experiment, Setting, trial_bits, trial_seed
from papers.report import ROOT, run
from papers.tables import REAL, Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from papers.experiment import Row
    from papers.user_items import UserItems

DELTA = Fraction(1, 10**8)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
TARGETS = (0.1, 0.05, 0.2)
HEAD_LIMIT = 10_000
TRIALS = 6
"""Number of trials at a target of 10 %; a third of it at other targets, and fewer on large tables with pair queries."""

SMALL = (
    "movielens-1m",
    "gowalla",
    "amazon-beauty",
    "amazon-sports",
    "citeulike",
    "foursquare",
    "shakespeare",
    "online-retail",
    "lastfm-plays",
    "kjv-verses",
    "retail",
)
LARGE = ("reddit-posts-domain", "reddit-posts-words", "imdb-words")
"""Tables that are not released by the other libraries, because they would take most of the time."""

FEW_ITEMS = ("categories", "weekdays", "months", "hours", "weeks", "states", "days", "integers")
FEW_TRIALS = 20

LISTED = (
    ("reddit-posts-domain", 100),
    ("shakespeare", 200),
    ("lastfm-plays", 200),
    ("foursquare", 1000),
    ("citeulike", 1000),
    ("movielens-1m", 1000),
    ("kjv-verses", 2000),
    ("gowalla", 3000),
)
"""Tables of which so many of the largest items are listed; on five of these and of the made-up ones, the constants of
known-auto were set."""

LISTED_UNSEEN = (
    ("amazon-beauty", 500),
    ("amazon-sports", 1000),
    ("online-retail", 500),
    ("retail", 1000),
)
"""Likewise, of tables that had no part in that."""

PERCENTILES = (50, 75, 90, 95, 99)
PEER_PERCENTILES = (95, 99)
CONFIDENCE = 1.645
"""Plume's counts at the threshold are within the target with probability 90 %."""


def cells(setting: Setting) -> list[Row]:
    """Return one cell for each table and method."""
    names = [] if setting.smoke else [name for name in (*SMALL, *LARGE) if setting.tables.has(name)]
    made_up = ["linkedin-titles/20", "linkedin-articles/20"] if setting.smoke else [*MADE_UP, *EXTREME]
    tables = [(name, True) for name in made_up] + [(name, False) for name in names]
    methods = ["auto", "head", "pcr", "bound", *(f"plume {percent}" for percent in PERCENTILES)]
    peers = [] if setting.smoke else [f"{peer} {percent}" for peer in INSTALLED for percent in PEER_PERCENTILES]
    trials = 2 if setting.smoke else TRIALS
    return [
        {"table": name, "made_up": fake, "method": method, "trials": 1 if method in peers else trials}
        for name, fake in tables
        for method in (*methods, *(peers if name in SMALL else []))
    ]


def measure(setting: Setting, cell: Row) -> list[Row]:
    """Run the releases of one table by one method."""
    table = setting.table(cell)
    method, _, percent = str(cell["method"]).partition(" ")
    share = 1 if len(table.users) < 2_000_000 else 3 if len(table.users) < 5_000_000 else 6
    trials = int(cell["trials"] or 0) if method in ("head", "pcr") else max(1, int(cell["trials"] or 0) // share)
    fixed = {"table": cell["table"], "users": table.number_of_users, "pairs": len(table.users)}
    if method == "bound":
        return [
            fixed | _row(method, TARGETS[0], epsilon, [], table.counts) | most(table, epsilon) for epsilon in EPSILONS
        ]
    if method in ("auto", "head", "pcr"):
        found = _ours(table, cell, trials)
    elif method == "plume":
        found = _plume(table, cell, float(percent), trials)
    else:
        found = {(str(cell["method"]), 0.1, 1.0): [Released(*release_by(method, table, float(percent), DELTA))]}
    return [fixed | _row(*key, releases, table.counts) for key, releases in found.items()]


@dataclass(frozen=True)
class Released:
    """Items with noisy counts, and with intervals if the method computes them.

    Args:
        items: numbers of items, shape (m,).
        counts: shape (m,).
        low: lower ends of the intervals, shape (m,), or None.
        high: upper ends, shape (m,), or None.
        chosen: the branch that `auto` chose, or None.
    """

    items: NDArray[np.int64]
    counts: NDArray[np.float64]
    low: NDArray[np.int64] | None = None
    high: NDArray[np.int64] | None = None
    chosen: str | None = None


Found: TypeAlias = "dict[tuple[str, float, float], list[Released]]"
"""Return the releases by method, target and epsilon."""


def _ours(table: UserItems, cell: Row, trials: int, targets: Sequence[float] = TARGETS) -> Found:
    method = str(cell["method"])
    pairs = ArrayPairs(table.users, table.items)
    order = np.argsort(-table.counts, kind="stable")[: HEAD_LIMIT + 1]
    head = ExactHead(table.counts[order], HEAD_LIMIT)
    found: Found = {}
    for target, epsilon, trial in itertools.product(targets, EPSILONS, range(trials)):
        if target != TARGETS[0] and trial > trials // 3:
            continue
        request = Request(None, HEAD_LIMIT, relative_error=Fraction(str(target)))
        bits = trial_bits("accuracy", cell | {"target": target, "epsilon": epsilon}, trial)
        if method == "auto":
            auto = Auto.at_epsilon(Fraction(epsilon), DELTA, request)
            if auto is None:
                raise InvariantViolated("every epsilon measured here is large enough")
            outcome = auto.release(pairs, bits)
            items = outcome.positions
        else:
            kind = CountRelease if method == "pcr" else SelectVerify
            outcome = kind.within_cost(limit_for(epsilon, DELTA), request).release(head, bits)
            items = order[outcome.positions]
        if outcome.counts is None:
            raise InvariantViolated("counts were requested")
        released = Released(items, outcome.counts.astype(np.float64), outcome.low, outcome.high, outcome.chosen)
        found.setdefault((method, target, epsilon), []).append(released)
    return found


def _plume(table: UserItems, cell: Row, percent: float, trials: int) -> Found:
    """Run Plume with its authors' accounting and half of rho for the selection; then with better choices of both."""
    lost = float(DELTA / 2)
    simple = [(rho_simple(epsilon, lost), lost) for epsilon in EPSILONS]
    exact = [(mu_gaussian(epsilon, lost) ** 2 / 2, lost) for epsilon in EPSILONS]
    found: Found = {}
    for share, trial in itertools.product((0.5, 0.1), range(trials)):
        rng = np.random.default_rng(trial_seed("accuracy", cell | {"share": share}, trial))
        kinds = [(", exact curve" if share == 0.5 else ", exact curve, tenth", epsilon) for epsilon in EPSILONS]
        limits = exact
        if share == 0.5:
            kinds, limits = [("", epsilon) for epsilon in EPSILONS] + kinds, simple + exact
        for (kind, epsilon), release in zip(kinds, plume(table, limits, percent, rng, share), strict=True):
            for target in TARGETS:
                cut = release.above(CONFIDENCE / target * release.sigma.max(initial=0))
                key = (f"{cell['method']}{kind}", target, epsilon)
                found.setdefault(key, []).append(Released(cut.items, cut.counts))
    return found


def most(table: UserItems, epsilon: float) -> Row:
    """Return an upper bound on the counts within 10 % from a head, if 6 % of the released ones may be beyond 10 %.

    One user may be in all counts. Noise of covariance V costs max u' V^-1 u / 2 over users u in {0, 1}^n, which is
    at least its mean over all u, at least tr V^-1 / 8, and at least the sum of 1 / 8 V_jj: no noise is cheaper than
    that of `SelectVerify`, even if it is chosen for the true counts. A label costs ln(HEAD_LIMIT)^2 / 8 count^2, the
    cheapest race that its item wins against HEAD_LIMIT others with probability 1/2. It remains to choose the standard
    errors; by Lagrangian duality, every price and weight of a miss gives an upper bound, and the least is returned.
    """
    rho, beyond = float(limit_for(epsilon, DELTA).rho), 0.06
    counts = np.sort(table.counts)[::-1][:HEAD_LIMIT].astype(np.float64)
    noise, label = 1 / (8 * (TARGETS[0] * counts) ** 2), math.log(HEAD_LIMIT) ** 2 / (8 * counts**2)
    grid = np.linspace(0.01, 6, 2000)
    slopes = norm.pdf(grid) / grid

    def bound(logarithms: NDArray[np.float64]) -> float:
        price, weight = np.exp(np.clip(logarithms, -50, 50))
        errors = np.interp(-price * noise / (1 + weight), -slopes, grid)  # 10 % of the count, in standard errors
        within = norm.cdf(errors) - norm.cdf(-errors)
        gain = (1 + weight) * within - weight * (1 - beyond) - price * (errors**2 * noise + label)
        return float(np.maximum(gain, 0).sum() + price * rho)

    found = minimize(bound, np.log([100 / rho, 3]), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-6})
    return {"within": float(found.fun)}


def _row(method: str, target: float, epsilon: float, releases: Sequence[Released], truth: NDArray[np.int64]) -> Row:
    """Return a row of means over releases, and of shares of all counts that they released.

    Args:
        method: name of the method.
        target: the target relative error of counts.
        epsilon: epsilon of each release.
        releases: one release per trial.
        truth: true counts by item.
    """
    released = within = covered = 0
    half_width = 0.0
    for release in releases:
        true = truth[release.items]
        released += len(true)
        within += int((np.abs(release.counts - true) <= target * true).sum())
        if release.low is not None and release.high is not None:
            covered += int(((release.low <= true) & (true <= release.high)).sum())
            half_width += float(((release.high - release.low) / 2 / np.maximum(release.counts, 1)).sum())
    intervals = released > 0 and any(release.low is not None for release in releases)
    return {
        "method": method,
        "target": target,
        "epsilon": epsilon,
        "trials": len(releases),
        "released": released / max(len(releases), 1),
        "within": within / max(len(releases), 1),
        "beyond": 1 - within / released if released else None,
        "covered": covered / released if intervals else None,
        "half_width": half_width / released if intervals else None,
        "by_head": sum(release.chosen == "head" for release in releases) / max(len(releases), 1),
        "by_light": sum(release.chosen == "light" for release in releases) / max(len(releases), 1),
    }


EXPERIMENT = Experiment(
    "accuracy", "accuracy", "How many counts", "docs/accuracy.md", cells, measure, accuracy_page.draw, accuracy_page.say
)


def write_numbers(rows: Sequence[Row], docs: Path = ROOT / "docs") -> None:
    """Write the measured rows to the results file."""
    with (docs / "accuracy.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} for row in rows
        )


def write_page(docs: Path = ROOT / "docs") -> None:
    """Write the pictures, that of the README too, and the results section of the page, from the stored rows."""
    rows = read(docs)
    chosen = [row for row in rows if row["table"] in accuracy_page.IN_README]
    for shown, name in ((rows, "accuracy.png"), (chosen, "accuracy-four.png")):
        accuracy_page.draw(shown).savefig(docs / "images" / name, dpi=110, metadata={"Software": None})
    page = docs / "accuracy.md"
    page.write_text(with_results(page.read_text(), rows))


def read(docs: Path = ROOT / "docs") -> list[Row]:
    """Return the stored rows."""
    with (docs / "accuracy.csv").open(newline="") as file:
        return [
            {key: _value(text) if key not in ("table", "method") else text for key, text in row.items()}
            for row in csv.DictReader(file)
        ]


def _cell_of(row: Row) -> tuple[object, ...]:
    """Return what row of all results it is."""
    return tuple(row[name] for name in ("table", "method", "target", "epsilon"))


def _value(text: str) -> float | None:
    if text.isdecimal():
        return int(text)  # written again as it was
    return float(text) if text else None


def with_results(page: str, rows: Sequence[Row]) -> str:
    """Return the page with its results replaced by *rows*."""
    begin, end = "<!-- results -->\n", "<!-- end of results -->\n"
    return re.sub(f"(?s){begin}.*{end}", lambda _: f"{begin}\n{accuracy_page.say(rows)}\n{end}", page)


def quick() -> list[str]:
    """Counts within 10 % beside other methods, on two small generated tables (the page has the rest)."""
    return accuracy_page.say(run(EXPERIMENT, Setting(Tables(), smoke=True))).splitlines()


def few() -> list[str]:
    """Root mean square errors of all counts of tables with few items, by `auto` and by the head."""
    tables, lines = Tables(), []
    for name in FEW_ITEMS:
        table = tables.made_up(name)
        errors = {
            (method, epsilon): np.concatenate([each.counts / table.counts[each.items] - 1 for each in releases])
            for kind in ("auto", "head")
            for (method, _, epsilon), releases in _ours(
                table, {"table": name, "method": kind}, FEW_TRIALS, TARGETS[:1]
            ).items()
        }
        found = {key: f"{100 * math.sqrt(np.mean(error**2)):.2g}%" for key, error in errors.items()}
        lines.append(
            [table.name.removesuffix(" (made up)")]
            + [f"{found['auto', epsilon]} / {found['head', epsilon]}" for epsilon in EPSILONS]
        )
    return markdown(["table", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], lines)


def listed(tables: Tables) -> list[str]:
    """Return counts within 10 % of listed items: independent noise, shared noise and known-auto.

    Below are the ratios of the last to the first two, and the coverage of its intervals. The second table is of data
    that had no part in the choice of constants.
    """
    return [
        *_listed(tables, LISTED, ("categories", "states")),
        "",
        *_listed(tables, LISTED_UNSEEN, ("months", "days")),
    ]


def _listed(tables: Tables, real: Sequence[tuple[str, int]], made_up: Sequence[str]) -> list[str]:
    names = [(name, tables.real, size) for name, size in real if tables.has(name)]
    names += [(name, tables.made_up, None) for name in made_up]
    lines = []
    covered = []
    ratios = []
    for name, load, size in names:
        table = load(name)
        domain = np.argsort(-table.counts, kind="stable")[:size]
        row = np.full(len(table.counts), -1)
        row[domain] = np.arange(len(domain))
        kept = row[table.items] >= 0
        pairs = ArrayPairs(table.users[kept], row[table.items[kept]])
        truth = table.counts[domain]
        cells = []
        for epsilon in EPSILONS:
            request = Request(None, len(domain), known_domain=True)
            limit = limit_for(epsilon, DELTA, lossless=True)
            auto = KnownAuto.at_epsilon(Fraction(epsilon), DELTA, request)
            laplace = KnownLaplace.at_epsilon(Fraction(epsilon), DELTA, replace(request, noise="laplace"))
            if auto is None or laplace is None:
                raise InvariantViolated("every epsilon measured here is large enough")
            plain = [KnownLaplace.within_cost(limit, replace(request, independent=alone)) for alone in (True, False)]
            within = np.zeros(3)
            for trial in range(TRIALS):
                bits = trial_bits("listed", {"table": name, "epsilon": epsilon}, trial)
                outcome = auto.release(pairs, bits)
                exact = truth[outcome.positions]
                covered.append(((outcome.low <= exact) & (exact <= outcome.high)).mean())
                within[2] += _within(outcome.counts, exact)
                for place, mechanism in enumerate(plain):
                    noise = min(mechanism.count_noise(), laplace.count_noise(), key=lambda noise: noise.std)
                    within[place] += _within(truth + noise.draw(bits, f"plain {place}", len(truth)), truth)
            within /= TRIALS
            ratios.append((within[2] + 1) / (within[:2] + 1))
            cells.append(" / ".join(f"{count:,.0f}" for count in within))
        lines.append([f"{len(domain):,} of {name}", *cells])
    means = np.exp(np.mean(np.log(ratios), axis=0))
    least = np.min(ratios, axis=0)
    summary = (
        f"geometric means of the ratios {means[0]:.2f} and {means[1]:.2f}, least {least[0]:.2f} and {least[1]:.2f}; "
        f"{100 * np.mean(covered):.1f} % of the intervals hold"
    )
    return [
        *markdown(["listed items", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], lines),
        "",
        summary,
    ]


def _within(counts: NDArray[np.int64], truth: NDArray[np.int64]) -> int:
    return int((np.abs(counts - truth) <= TARGETS[0] * truth).sum())


@click.command()
@click.option("--few", "few_items", is_flag=True, help="Errors of tables with few items, printed only; three minutes.")
@click.option("--listed", "listed_items", is_flag=True, help="Counts of listed items, printed only; a minute.")
@click.option(
    "--each",
    "index",
    type=click.Path(path_type=Path, exists=True),
    help="Items of each section of this Packages file of Debian, printed only; two minutes.",
)
@click.option("--quick", is_flag=True, help="A few made-up tables, printed only; less than a minute.")
@click.option("--page", is_flag=True, help="Measure nothing: write the page from docs/accuracy.csv.")
@click.option("--auto", "only_auto", is_flag=True, help="Measure auto alone: keep the rows of other methods.")
@click.option("--data", type=click.Path(path_type=Path), default=REAL, help="The folder of the real tables.")
def main(
    *, few_items: bool, listed_items: bool, index: Path | None, quick: bool, page: bool, only_auto: bool, data: Path
) -> None:
    """Measure the accurate counts of releases, and write docs/accuracy.md."""
    if index is not None:
        print("\n".join(accuracy_each.shares(index)))
        return
    if few_items:
        print("\n".join(few()))
        return
    if listed_items:
        print("\n".join(listed(Tables(real=data))))
        return
    rows = read() if page or only_auto else []
    if only_auto:  # all noise follows from the cell, so that the other rows would be the same
        auto = replace(EXPERIMENT, cells=lambda setting: [cell for cell in cells(setting) if cell["method"] == "auto"])
        measured = {_cell_of(row): row for row in run(auto, Setting(Tables(real=data)))}
        rows = [measured.get(_cell_of(row), row) for row in rows]
    elif not page:
        rows = run(EXPERIMENT, Setting(Tables(real=data), smoke=quick))
    if not (quick or page):
        write_numbers(rows)
    if not quick:
        write_page()
    print(accuracy_page.say(rows))


if __name__ == "__main__":
    main()
