"""The errors of the largest counts, and rivals with the best settings: `python -m benchmarks.accuracy_rivals`.

`--largest` measures the errors of the ten and the hundred largest counts, the bias of all that are released, and the
errors of the demo's five largest. `--hidden` compares `auto` with two rounds where a few users have very many items,
and says what one round would lose by a histogram that shows them, and what its tests cost where users have one item.
The default compares the counts within 10 % with those of four other methods, each with the settings that are best by
the truth in every cell, and finds tables on which `auto` loses. All print the tables of docs/accuracy.md.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import click
import numpy as np
import pyarrow.parquet as pq
from scipy.stats import norm  # type: ignore[import-untyped]

from benchmarks.accuracy import CONFIDENCE, DELTA, EPSILONS, HEAD_LIMIT, PERCENTILES, SMALL
from benchmarks.accuracy_page import SET_ON, geometric_mean
from benchmarks.timing import table as markdown
from discreet.accounting.convert import limit_for
from discreet.accounting.gaussian import epsilon_of_branch, mu_gaussian, rho_of_branch
from discreet.errors import InvariantViolated
from discreet.mechanisms import Request, SelectVerify, TwoRound, two_round
from discreet.mechanisms.auto import BRANCH_LOST, HEAD_SHARE, LIGHT_LOST, SIGNAL_SHARE, Auto
from discreet.mechanisms.base import INTERVAL
from discreet.mechanisms.light import TAILS
from discreet.mechanisms.two_round import TUNING
from discreet.testing.pairs import ArrayPairs
from discreet.values import ExactHead
from examples.demo import make_log
from papers.baselines import Counted, bounding_mask, non_private_percentile, one_pass, two_passes, weighted_selection
from papers.experiment import trial_bits, trial_seed
from papers.tables import Tables
from papers.user_items import UserItems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from discreet.values import Outcome

TARGET = 0.1
TRIALS = 2
DEMO_TRIALS = 20
ONE_ITEM_TRIALS = 40
HIDDEN_TRIALS = 8
SHARES = (0.1, 0.3, 0.5)
"""Shares of mu^2 for the selection that a rival with two passes tries."""

FRACTIONS = (1, 0.5, 0.25, 0.125, 0.0625)
"""Shares of the selected items, the largest, that correlated noise is tried on: its error grows with their number."""

RIVALS = {
    "Laplace": "one pass, every user bounded, Laplace noise and a threshold",
    "Gaussian": "the same with Gaussian noise",
    "weighted": "weighted Gaussian selection; users bounded again, and counted",
    "correlated": "weighted Gaussian selection; counts without a bound, of which all share a part of their noise",
}


RANKS = np.arange(1, 30_001)


def drawn(
    rng: np.random.Generator,
    users: int,
    each: tuple[int, int],
    weights: NDArray[np.float64],
    name: str,
    heavy: tuple[float, int] = (0, 1),
) -> UserItems:
    """Return a table of users who draw items by weight, from the first to the last number *each*.

    Args:
        rng: source of randomness.
        users: number of users.
        each: the least and the largest number of draws of a user.
        weights: of the items.
        name: of the table.
        heavy: the share of users who draw so many times as many.
    """
    sizes = rng.integers(each[0], each[1], users, endpoint=True)
    if heavy[0]:
        sizes[rng.random(users) < heavy[0]] *= heavy[1]
    pairs = np.repeat(np.arange(users), sizes) * len(weights)
    pairs = np.unique(pairs + rng.choice(len(weights), len(pairs), p=weights / weights.sum()))
    items = np.unique(pairs % len(weights), return_inverse=True)[1]
    return UserItems(name, pairs // len(weights), items.astype(np.int64))


def losing() -> dict[str, UserItems]:
    """Return made-up tables on which another method or another branch is better."""
    rng = np.random.default_rng(33)
    return {
        "2 to 4 items": drawn(rng, 100_000, (2, 4), 1 / RANKS, "2 to 4 items (made up)"),
        "2 to 6 items": drawn(rng, 100_000, (2, 6), 1 / RANKS, "2 to 6 items (made up)"),
        "flat counts": drawn(rng, 100_000, (1, 10), np.ones(4_000), "flat counts (made up)"),
        "500 users": drawn(rng, 500, (1, 5), 1 / RANKS[:100], "500 users (made up)"),
        "1 item": drawn(rng, 100_000, (1, 1), 1 / RANKS, "1 item (made up)"),
    }


def hidden() -> list[str]:
    """Counts within 10 % and the share beyond, by two rounds / by `auto`, where noise may hide a few heavy users."""
    rng = np.random.default_rng(5)
    tables = {
        "100,000 users, 0.05 % with 100 times as many": drawn(
            rng, 100_000, (2, 5), 1 / RANKS, "hidden: 50 users", (0.0005, 100)
        ),
        "100,000 users, 0.2 % with 100 times as many": drawn(
            rng, 100_000, (2, 6), 1 / RANKS[:5_000], "hidden: 200 users", (0.002, 100)
        ),
        "6,000 users, 1 % with 40 times as many": drawn(
            rng, 6_000, (1, 3), 1 / RANKS[:500], "hidden: 60 users", (0.01, 40)
        ),
    }
    rows = []
    for name, table in tables.items():
        pairs = ArrayPairs(table.users, table.items)
        shown = []
        for epsilon in EPSILONS:
            cell = []
            two_round = TwoRound.at_epsilon(Fraction(epsilon), DELTA, Request(None, HEAD_LIMIT))
            for mechanism in (two_round, default(epsilon)):
                if mechanism is None:
                    raise InvariantViolated("every epsilon measured here is large enough")
                accurate = 0
                total = 0
                for trial in range(HIDDEN_TRIALS):
                    bits = trial_bits("hidden", {"table": table.name, "epsilon": epsilon}, trial)
                    outcome = mechanism.release(pairs, bits)
                    if outcome.counts is None:
                        raise InvariantViolated("counts were requested")
                    accurate += within(outcome.positions, outcome.counts.astype(np.float64), table.counts)
                    total += len(outcome.positions)
                cell.append(f"{accurate / HIDDEN_TRIALS:,.0f} ({1 - accurate / max(total, 1):.0%})")
            shown.append(" / ".join(cell))
        rows.append([name, *shown])
    return markdown(["table", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], rows)


def default(epsilon: float) -> Auto:
    """Return the default release."""
    auto = Auto.at_epsilon(Fraction(epsilon), DELTA, Request(None, HEAD_LIMIT))
    if auto is None:
        raise InvariantViolated("every epsilon measured here is large enough")
    return auto


def one_round() -> list[str]:
    """Return what one round has of epsilon, by the share of mu^2 for the histogram before it."""
    lost, lost_of_labels = (float(DELTA * share) for share in (BRANCH_LOST, LIGHT_LOST))
    rows = []
    for share in (0.004, TUNING.histogram_share, 0.016):
        shown = []
        for epsilon in EPSILONS:
            two = default(epsilon).two_round
            mu = float(two.mu)
            lost_items = float(two.lost)
            test = mu * math.sqrt(share + SIGNAL_SHARE)
            rho = rho_of_branch(epsilon, float(DELTA * HEAD_SHARE), mu, test, lost_items, lost)
            left = epsilon_of_branch(epsilon, float(DELTA), mu, test, lost_items, rho, lost, lost_of_labels)
            shown.append(f"{left / epsilon:.3f}")
        rows.append([f"{share:g}", *shown])
    return markdown(["share", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], rows)


def one_item() -> list[str]:
    """Return epsilon of one round, and its counts over those of tuned Laplace, by the noise of the tests before it.

    The table has one item a user. False bins are as rare by Laplace as by Gaussian noise if its standard error is so
    much smaller that the tails beyond the evidence that a bin needs are equal.
    """
    truth = losing()["1 item"].counts
    rng = np.random.default_rng(33)

    def counts(epsilon: float, lost: float, *, whole: bool) -> float:
        """Return the mean number of released counts within 10 %, as whole numbers or not."""
        least = max(1 - math.log(2 * lost) / epsilon, TAILS / (TARGET * epsilon))
        accurate = 0
        for _ in range(ONE_ITEM_TRIALS):
            noisy = truth + rng.laplace(0, 1 / epsilon, len(truth))
            items = np.flatnonzero(noisy >= least)
            accurate += within(items, np.rint(noisy[items]) if whole else noisy[items], truth)
        return accurate / ONE_ITEM_TRIALS

    rarer = -math.log(2 * norm.sf(TUNING.evidence)) / math.sqrt(2) / TUNING.evidence
    columns: dict[str, list[str]] = {
        name: []
        for name in (
            "Gaussian, as it is",
            "Laplace, the same standard errors",
            "Laplace, false bins as rare",
            "no tests",
        )
    }
    for epsilon in (1.0, 4.0):
        auto = default(epsilon)
        histogram, signal = (
            math.sqrt(2 * share) * float(auto.two_round.mu) for share in (TUNING.histogram_share, SIGNAL_SHARE)
        )
        left = (float(auto.light.epsilon), epsilon - histogram - signal, epsilon - rarer * histogram - signal, epsilon)
        rival = counts(epsilon, float(DELTA), whole=False)
        for cells, mine in zip(columns.values(), left, strict=True):
            share = counts(mine, float(DELTA * LIGHT_LOST), whole=True) / rival
            cells += [f"{mine / epsilon:.3f}", f"{share:.2f}"]
    header = ["noise of the tests", *(f"{name}, ε = {epsilon}" for epsilon in (1, 4) for name in ("ε′ / ε", "counts"))]
    return markdown(header, [[name, *cells] for name, cells in columns.items()])


def released(table: UserItems, epsilon: float, trial: int, *, head: bool = False) -> tuple[Outcome, NDArray[np.int64]]:
    """Return a release by `auto`, or from the head, and the numbers of its items."""
    bits = trial_bits("rivals", {"table": table.name, "epsilon": epsilon}, trial)
    if not head:
        outcome = default(epsilon).release(ArrayPairs(table.users, table.items), bits)
        return outcome, outcome.positions
    order = np.argsort(-table.counts, kind="stable")[: HEAD_LIMIT + 1]
    mechanism = SelectVerify.within_cost(limit_for(epsilon, DELTA), Request(None, HEAD_LIMIT))
    outcome = mechanism.release(ExactHead(table.counts[order], HEAD_LIMIT), bits)
    return outcome, order[outcome.positions]


def largest(tables: Tables) -> list[str]:
    """Errors of the largest released counts and the bias of all, by `auto` / by the head."""
    rows = []
    for name in SMALL:
        if not tables.has(name):
            continue
        table = tables.real(name)
        for epsilon in (1.0, 4.0):
            columns = []
            for head in (False, True):
                errors = []
                for trial in range(TRIALS):
                    outcome, items = released(table, epsilon, trial, head=head)
                    if outcome.counts is None:
                        raise InvariantViolated("counts were requested")
                    order = np.argsort(-table.counts[items], kind="stable")
                    errors.append((outcome.counts / table.counts[items] - 1)[order])
                root = [math.sqrt(np.mean(np.concatenate([each[:n] for each in errors]) ** 2)) for n in (10, 100)]
                columns.append([*root, float(np.mean(np.concatenate([each[:10] for each in errors])))])
                columns[-1].append(float(np.mean(np.concatenate(errors))))
            shown = [f"{100 * ours:.2g}% / {100 * theirs:.2g}%" for ours, theirs in zip(*columns, strict=True)]
            rows.append([name, f"{epsilon:g}", *shown])
    return markdown(["table", "ε", "ten largest", "hundred largest", "bias of ten", "bias of all"], rows)


def of_demo() -> list[str]:
    """Return the errors of the demo's largest counts at an epsilon of 4, by the share whose noise grows with rank."""
    with tempfile.TemporaryDirectory() as folder:
        make_log(Path(folder) / "reads.parquet")
        log = pq.read_table(Path(folder) / "reads.parquet")
    article = log["article"].combine_chunks().dictionary_encode().indices.to_numpy()
    number = int(article.max()) + 1
    stored = np.unique(log["reader"].to_numpy() * number + article)
    pairs = ArrayPairs(stored // number, stored % number)
    order = np.argsort(-pairs.counts, kind="stable")[:100]
    truth = pairs.counts[order]
    auto = default(4.0)
    rows = []
    for share in (0.0, two_round.GRADED, 0.5):
        errors, said, accurate = [], [], 0
        for trial in range(DEMO_TRIALS):
            with mock.patch.object(two_round, "GRADED", share):
                outcome = auto.release(pairs, trial_bits("rivals", {"table": "demo"}, trial))
            if outcome.counts is None or outcome.low is None or outcome.high is None:
                raise InvariantViolated("counts were requested")
            place = np.argsort(outcome.positions)[np.searchsorted(np.sort(outcome.positions), order)]
            errors.append(outcome.counts[place] / truth - 1)
            said.append(((outcome.high - outcome.low)[place] / (2 * INTERVAL * truth))[:5])
            accurate += within(outcome.positions, outcome.counts.astype(np.float64), pairs.counts)
        error = np.array(errors)
        ends = 100 * np.mean(said, axis=0)
        rows.append(
            [
                f"{share:.0%}",
                f"{ends[0]:.2f}% to {ends[-1]:.2f}%",
                f"{np.mean(np.abs(error[:, :5]) <= 0.006):.0%}",
                *(f"{100 * math.sqrt(np.mean(error[:, :n] ** 2)):.2g}%" for n in (5, 10, 100)),
                f"{accurate / DEMO_TRIALS:,.0f}",
            ]
        )
    header = ["graded", "standard errors of five", "five within 0.6%", "five", "ten", "hundred", "counts within 10%"]
    return markdown(header, rows)


def candidates(table: UserItems, epsilon: float) -> Iterator[tuple[str, Counted]]:
    """Yield the releases of all rivals at all their settings, with the names of the rivals."""
    lost = float(DELTA / 2)
    mu = mu_gaussian(epsilon, lost)
    for percent in PERCENTILES:
        rng = np.random.default_rng(trial_seed("rivals", {"table": table.name, "percent": percent}, 0))
        most = non_private_percentile(table.contributions, percent)
        kept = bounding_mask(table.users, most, rng)
        for laplace in (True, False):
            scale = most / epsilon if laplace else math.sqrt(most) / mu
            lost_alone = float(DELTA) if laplace else lost
            yield "Laplace" if laplace else "Gaussian", one_pass(table, kept, most, scale, lost_alone, rng, laplace)
        for share in SHARES:
            selected = weighted_selection(table, kept, most, 1 / (mu * math.sqrt(share)), lost, rng)
            left = mu * math.sqrt(1 - share)
            yield "weighted", two_passes(table, selected, left, percent, rng)
            for fraction in FRACTIONS:
                part = selected[: math.ceil(fraction * len(selected))]
                sigma = (math.sqrt(len(part)) + 1) / (2 * left)
                noise = sigma * rng.standard_normal(len(part))  # what all share does not change counts within 10 %
                yield "correlated", Counted(part, table.counts[part] + noise, np.full(len(part), sigma))


def within(items: NDArray[np.int64], counts: NDArray[np.float64], truth: NDArray[np.int64]) -> int:
    """Return how many counts are within the target."""
    return int((np.abs(counts - truth[items]) <= TARGET * truth[items]).sum())


def rivals(tables: Tables) -> list[str]:
    """Counts within 10 % by `auto`, and by each rival at its best settings by the truth."""
    named: dict[str, Callable[[], UserItems]] = {
        name: lambda n=name: tables.real(n) for name in SMALL if tables.has(name)
    }
    named |= {name: lambda t=table: t for name, table in losing().items()}
    rows = []
    ratios = []
    ratios_unseen = []
    for (name, load), epsilon in itertools.product(named.items(), EPSILONS[1::2]):
        table = load()
        best = dict.fromkeys(RIVALS, 0)
        for rival, found in candidates(table, epsilon):
            cut = found.above(CONFIDENCE / TARGET * found.sigma.max(initial=0))
            best[rival] = max(best[rival], within(cut.items, cut.counts, table.counts))
        ours = []
        for trial in range(TRIALS):
            outcome, items = released(table, epsilon, trial)
            if outcome.counts is None:
                raise InvariantViolated("counts were requested")
            ours.append(within(items, outcome.counts.astype(np.float64), table.counts))
        mean = float(np.mean(ours))
        ratio = (mean + 1) / (max(best.values()) + 1)
        if tables.has(name):
            ratios.append(ratio)
            ratios_unseen += [] if name in SET_ON else [ratio]
        made_up = "" if tables.has(name) else "made up, "
        rows.append(
            [
                f"{made_up}{name}",
                f"{epsilon:g}",
                *(f"{count:,}" for count in best.values()),
                f"**{mean:,.0f}**",
                f"{ratio:.2f}",
            ]
        )
    lines = markdown(["table", "ε", *RIVALS, "**release**", "ratio"], rows)
    if ratios_unseen:
        means = (
            f"{geometric_mean(ratios):.2f}, {geometric_mean(ratios_unseen):.2f} without those that constants are set on"
        )
        lines += ["", f"Geometric mean over the real tables: {means}"]
    return lines


@click.command()
@click.option("--largest", "only_largest", is_flag=True, help="Errors of the largest counts, and bias.")
@click.option("--hidden", "only_hidden", is_flag=True, help="Tables in which noise may hide users with many items.")
def main(*, only_largest: bool, only_hidden: bool) -> None:
    """Print the tables of docs/accuracy.md about the largest counts, hidden users and tuned rivals."""
    if only_hidden:
        print("\n".join([*hidden(), "", *one_round(), "", *one_item()]))
        return
    if only_largest:
        print("\n".join([*largest(Tables()), "", *of_demo()]))
        return
    print("\n".join(rivals(Tables())))


if __name__ == "__main__":
    main()
