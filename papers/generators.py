"""Tables made up to match published statistics. Deterministic; names say "(made up)".

There are three methods. `by_contributions`: the number of items per user follows the published percentiles exactly, the
domain has the published size, and the items follow the Zipf-Mandelbrot law, (rank + shift)^-exponent. The papers do not
publish the head of the histogram; shift and exponent are chosen so that it resembles that of public tables of the same
kind (exponent 1.2; shift 8 for words, 60 for films). `by_counts`: the number of users per item follows the published
percentiles and maximum, and the users follow the Zipf-Mandelbrot law. `few_items`: there are few items, of which most
users have several, as in columns of categories, months or states.

LinkedIn published no statistics of its tables: linkedin-articles (engagement of a region's members, many articles each)
and linkedin-titles (one job title each) resemble them in kind only. The tables after them are extreme in how many items
users have, to find where a release fails (docs/accuracy.md).

Between two published percentiles the logarithm of the quantile is linear: in ln(1 - p) from the median up, in p below.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from papers.user_items import UserItems

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


def make_table(name: str) -> UserItems:
    """Return the table *name* of `GENERATORS`; "name/10" has a tenth of its users, drawn in the same way."""
    base, _, divisor = name.partition("/")
    seed = int.from_bytes(hashlib.sha256(base.encode()).digest()[:8], "big")
    return GENERATORS[base](int(divisor or 1), np.random.default_rng(seed))


def by_contributions(
    label: str,
    users: int,
    items: int,
    percentiles: Mapping[float, int],
    exponent: float,
    shift: float,
) -> Callable[[int, np.random.Generator], UserItems]:
    """Return a generator of tables in which the items per user have the given percentiles.

    Args:
        label: the title of the table, without "(made up)".
        users: how many users.
        items: how many items have users.
        percentiles: distinct items per user, by the share of users that have at most as many; 0 and 1 included.
        exponent: of Zipf's law for the items.
        shift: of Zipf's law for the items.
    """

    def generate(divisor: int, rng: np.random.Generator) -> UserItems:
        n = users // divisor
        sizes = quantiles(percentiles, np.linspace(0, 1, n))
        rng.shuffle(sizes)
        covered = rng.choice(items, items // divisor, replace=False)
        rows, columns = draw_distinct(sizes, zipf(items, exponent, shift), covered, rng)
        return UserItems(_title(label, divisor), rows, _dense(columns))

    return generate


def by_counts(
    label: str,
    users: int,
    items: int,
    percentiles: Mapping[float, int],
    ones: float,
    exponent: float,
    shift: float,
) -> Callable[[int, np.random.Generator], UserItems]:
    """Return a generator of tables in which the users per item have the given percentiles.

    Args:
        label: the title of the table, without "(made up)".
        users: how many users there are; each has an item.
        items: how many items have users.
        percentiles: users per item, by the share of items that have at most as many; 1 included.
        ones: the share of items that one user has.
        exponent: of Zipf's law for the users.
        shift: of Zipf's law for the users.
    """

    def generate(divisor: int, rng: np.random.Generator) -> UserItems:
        # The top hundredth is drawn, not spaced evenly: gaps between the largest counts are what matters to mechanisms.
        places = np.linspace(0, 1, items)
        top = np.flatnonzero(places > 0.99)[:-1]
        places[top] = rng.uniform(0.99, 1 - 0.5 / items, len(top))
        sizes = np.where(places < ones, 1, quantiles({ones: 2, **percentiles}, places))
        rows, columns = draw_distinct(sizes, zipf(users, exponent, shift), np.arange(users), rng)
        columns = rng.permutation(users)[columns]
        pairs = np.sort((columns * items + rows)[columns < users // divisor])
        return UserItems(_title(label, divisor), pairs // items, _dense(pairs % items))

    return generate


def few_items(
    label: str, draw: Callable[[NDArray[np.int64], int, np.random.Generator], NDArray[np.int64]]
) -> Callable[[int, np.random.Generator], UserItems]:
    """Return a generator of tables of 160,000 users, who have about 13 rows each, many of them of the same item.

    Args:
        label: the title of the table, without "(made up)".
        draw: returns the item of each row, from the rows' users, ascending, and the number of users.
    """

    def generate(divisor: int, rng: np.random.Generator) -> UserItems:
        n = 160_000 // divisor
        means = np.maximum(np.exp(rng.normal(2.2, 0.9, n)), 1)
        users = np.repeat(np.arange(n), np.minimum(rng.geometric(1 / means), 2000))
        items = draw(users, n, rng)
        pairs = np.unique(users * (items.max() + 1) + items)
        return UserItems(_title(label, divisor), pairs // (items.max() + 1), _dense(pairs % (items.max() + 1)))

    return generate


def _categories(users: NDArray[np.int64], _: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.choice(5, len(users), p=[0.3, 0.25, 0.2, 0.15, 0.1])


def _weekdays(users: NDArray[np.int64], _: int, rng: np.random.Generator) -> NDArray[np.int64]:
    weights = np.array([1, 1, 1, 1.1, 1.2, 0.8, 0.6])
    return rng.choice(7, len(users), p=weights / weights.sum())


def _months(users: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the user's month, or a later one; the last month is the largest."""
    later = rng.integers(0, 12, len(users)) * (rng.random(len(users)) < 0.6)
    return np.minimum(rng.integers(0, 12, n)[users] + later, 11)


def _hours(users: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an hour near the user's usual one."""
    return (rng.integers(0, 24, n)[users] + np.rint(rng.normal(0, 3, len(users))).astype(np.int64)) % 24


def _weeks(users: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    other = rng.integers(0, 27, len(users)) * (rng.random(len(users)) < 0.8)
    return (rng.integers(0, 27, n)[users] + other) % 27


def _states(users: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the user's state, or any."""
    weights = zipf(50, 0.8, 0)
    weights /= weights.sum()
    at_home = rng.random(len(users)) < 0.7
    return np.where(at_home, rng.choice(50, n, p=weights)[users], rng.choice(50, len(users), p=weights))


def _days(users: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a day of a user's period, which is of any length."""
    offset = (rng.random(len(users)) * rng.integers(1, 366, n)[users]).astype(np.int64)
    return (rng.integers(0, 365, n)[users] + offset) % 365


def _integers(users: NDArray[np.int64], _: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.minimum(rng.geometric(0.35, len(users)) - 1, 19)


def quantiles(percentiles: Mapping[float, int], places: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the quantile function through the given percentiles, at *places* between 0 and 1, rounded."""
    at = np.array(sorted(percentiles))
    logs = np.log([percentiles[place] for place in at])
    end = 0.5 / len(places)  # 1 - p of the largest
    below = np.interp(places, at, logs)
    above = np.interp(-np.log(np.maximum(1 - places, end)), -np.log(np.maximum(1 - at, end)), logs)
    return np.rint(np.exp(np.where(places < 0.5, below, above))).astype(np.int64)


def zipf(n: int, exponent: float, shift: float) -> NDArray[np.float64]:
    """Return the weights (rank + shift)^-exponent of the ranks 1..n."""
    return (np.arange(1, n + 1) + float(shift)) ** -exponent


def draw_distinct(
    sizes: NDArray[np.int64],
    weights: NDArray[np.float64],
    covered: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw as many distinct columns for each row as *sizes* says, by weight.

    First each of the *covered* columns is put into a random place; then every row draws by weight, rejecting columns
    that it has already, until it is full.

    Args:
        sizes: how many columns each row gets, shape (rows,); their sum is at least the number of covered columns.
        weights: of the columns, shape (columns,).
        covered: columns that are drawn at least once, no more of them than places.
        rng: randomness.

    Returns:
        rows and columns of the pairs, ascending.
    """
    n, ends, cumulated = len(weights), np.cumsum(sizes), np.cumsum(weights)
    places = rng.choice(int(ends[-1]), len(covered), replace=False)
    pool = np.searchsorted(ends, places, side="right") * n + covered
    finished: list[NDArray[np.int64]] = []
    missing = sizes - np.bincount(pool // n, minlength=len(sizes))
    while missing.any():
        rows = np.repeat(np.arange(len(sizes)), missing)
        drawn = np.searchsorted(cumulated, rng.random(len(rows)) * cumulated[-1], side="right")
        pool = np.sort(np.concatenate((pool, rows * n + np.minimum(drawn, n - 1))))
        pool = pool[np.append(True, pool[1:] != pool[:-1])]  # np.unique hashes, which is ten times as slow
        rows = pool // n
        missing = np.where(missing > 0, sizes - np.bincount(rows, minlength=len(sizes)), 0)
        full = missing[rows] == 0
        finished.append(pool[full])
        pool = pool[~full]
    pairs = np.sort(np.concatenate([*finished, pool]))
    return pairs // n, pairs % n


def _dense(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber without gaps: leave out the numbers that do not occur."""
    used = np.bincount(numbers) > 0
    return (np.cumsum(used) - 1)[numbers]


def _title(label: str, divisor: int) -> str:
    return f"{label} (made up)" if divisor == 1 else f"{label} (made up, 1/{divisor} of the users)"


GENERATORS: dict[str, Callable[[int, np.random.Generator], UserItems]] = {
    "ts-gowalla": by_counts("Gowalla", 107_092, 1_280_968, {0.5: 2, 0.99: 24, 1: 2931}, 0.49, 1.2, 2500),
    "ts-brightkite": by_counts("BrightKite", 51_406, 772_966, {0.99: 7, 1: 3204}, 0.87, 1.2, 1500),
    "ts-foursquare": by_counts("Foursquare", 2_293, 100_191, {0.99: 28, 1: 1274}, 0.6, 0.8, 200),
    "pcr-finance": by_contributions("Finance", 1_400_469, 6_193, {0: 1, 1: 1}, 1.0, 100),
    # So many different words in so few contributions leave little for common ones; hence the steeper law.
    "pcr-reddit-small": by_contributions(
        "Reddit small sample", 341, 10_575, {0: 1, 0.5: 23, 0.75: 50, 0.95: 128, 0.99: 330, 1: 1000}, 1.6, 10
    ),
    "pcr-reddit": by_contributions(
        "Reddit", 223_388, 153_704, {0: 1, 0.5: 23, 0.75: 56, 0.95: 194, 0.99: 450, 1: 5000}, 1.2, 8
    ),
    "pcr-wikipedia": by_contributions(
        "Wikipedia", 245_103, 631_855, {0: 1, 0.5: 84, 0.75: 164, 0.95: 390, 0.99: 589, 1: 2500}, 1.2, 8
    ),
    "pcr-movielens": by_contributions(
        "MovieLens 25M", 162_541, 59_047, {0: 20, 0.5: 71, 0.75: 162, 0.95: 554, 0.99: 1228, 1: 20_000}, 1.2, 60
    ),
    "linkedin-articles": by_contributions(
        "Articles", 100_000, 40_000, {0: 1, 0.5: 3, 0.75: 8, 0.95: 30, 0.99: 80, 1: 500}, 0.8, 20
    ),
    "linkedin-titles": by_contributions("Job titles", 200_000, 8_000, {0: 1, 1: 1}, 1.0, 10),
    "one-item": by_contributions("One item", 500_000, 50_000, {0: 1, 1: 1}, 1.0, 0),
    "three-items": by_contributions("Three items", 2_000, 3, {0: 1, 0.6: 1, 0.61: 2, 0.96: 2, 0.97: 3, 1: 3}, 1.5, 0),
    "steep": by_contributions("Steep", 100_000, 5_000, {0: 1, 0.5: 3, 0.9: 5, 0.99: 7, 1: 12}, 2.0, 0),
    "pareto": by_contributions(
        "Pareto", 60_000, 50_000, {0: 2, 0.5: 4, 0.9: 16, 0.99: 126, 0.999: 1002, 0.9999: 7962, 1: 10_000}, 1.1, 0
    ),
    # Twenty of 50,000 users have most of the items each, all others about three.
    "twenty-heavy": by_contributions(
        "Twenty heavy users", 50_000, 30_000, {0: 1, 0.5: 3, 0.99: 10, 0.9996: 15, 0.99961: 10_000, 1: 10_000}, 1.0, 0
    ),
    "categories": few_items("5 categories", _categories),
    "weekdays": few_items("7 weekdays", _weekdays),
    "months": few_items("12 months", _months),
    "hours": few_items("24 hours", _hours),
    "weeks": few_items("27 weeks", _weeks),
    "states": few_items("50 states", _states),
    "days": few_items("365 days", _days),
    "integers": few_items("20 small integers", _integers),
}
"""Generators by name; each takes the divisor of its users and the randomness."""
