"""Rewriting a filter keeps its canonical form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.head_request import And, Comparison, Constant, Kind, Membership, Not, Or
from discreet.query.canonical import canonical
from tests.query.test_canonical_rows import KINDS, filters

_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_SAME = {
    ("n", ">", "1"): (">=", "2"),
    ("n", "<", "0.5"): ("<=", "0"),
    ("n", ">=", "1.5"): (">", "1"),
    ("n", "<=", "1.5"): ("<", "2"),
    ("at", ">", "2024-02-29"): (">", "2024-02-29 00:00:00.000"),
    ("at", "<=", "2024-02-29 00:00:00"): ("<=", "2024-02-29"),
    ("f", "=", "0.1"): ("=", "0.1000000000000000055511151231257827"),
    ("f", "<", "0.3"): ("<", "0.29999999999999998"),
    ("p", "<>", "1.5"): ("<>", "1.500"),
    ("p", "=", "1"): ("=", "1.0"),
    ("r", ">=", "1.5"): (">=", "1.49999999999999999999"),
    ("t", ">", ""): ("<>", ""),
}
"""Conditions that are the same for columns of these kinds."""


def _rewritten(predicate, random):
    """Return *predicate* written in another way."""
    match predicate:
        case And(parts) | Or(parts):
            parts = [_rewritten(part, random) for part in parts]
            predicate = random.choice([_shuffled, _nested, _turned])(type(predicate), parts, random)
        case Not(inner):
            predicate = Not(_rewritten(inner, random))
        case Membership(column, constants):
            predicate = random.choice([_spelled_out, _repeated])(column, list(constants), random)
        case Comparison():
            predicate = _compared(predicate, random)
    ways = [
        predicate,
        Not(Not(predicate)),
        And((predicate, predicate)),
    ]
    return random.choices(ways, [6, 1, 1])[0]


def _other(junction):
    return Or if junction is And else And


def _shuffled(junction, parts, random):
    return junction(tuple(random.sample([*parts, random.choice(parts)], len(parts) + 1)))


def _nested(junction, parts, random):
    cut = random.randrange(1, len(parts))
    return junction((junction((parts[0], *parts[1:cut])) if cut > 1 else parts[0], junction((*parts[cut:], parts[-1]))))


def _turned(junction, parts, random):
    return Not(_other(junction)(tuple(Not(part) for part in random.sample(parts, len(parts)))))


def _spelled_out(column, constants, random):
    random.shuffle(constants)
    return Or(tuple(Comparison(column, "=", constant) for constant in [*constants, constants[0]]))


def _repeated(column, constants, random):
    return Membership(column, tuple(random.sample([*constants, *constants], 2 * len(constants))))


def _compared(comparison, random):
    column, operator, constant = comparison.column, comparison.operator, comparison.constant
    ways = [comparison, Not(replace(comparison, operator=_NEGATED[operator]))]
    if (column, operator, constant.text) in _SAME:
        operator, text = _SAME[column, operator, constant.text]
        ways.append(Comparison(column, operator, Constant(_kind_of(text, constant.kind), text)))
    elif operator == "=" and KINDS[column] is not Kind.BOOLEAN:
        ways.append(And((replace(comparison, operator=">="), replace(comparison, operator="<="))))
    elif operator == "<>" and KINDS[column] is not Kind.BOOLEAN:
        ways.append(Or((replace(comparison, operator="<"), replace(comparison, operator=">"))))
    return random.choice(ways)


def _kind_of(text, kind):
    if kind in {Kind.DATE, Kind.TIMESTAMP}:
        return Kind.TIMESTAMP if ":" in text else Kind.DATE
    if kind is Kind.TEXT:
        return kind
    return Kind.DECIMAL if "." in text else Kind.INTEGER


_FILTERS = filters(tuple(KINDS), 6) | st.one_of(*(filters((column,), 6) for column in KINDS))


@settings(max_examples=80)
@given(_FILTERS, st.randoms(use_true_random=True))
def test_rewriting_keeps_the_form(predicate, random):
    """Order, nesting, repetition, negation, lists, ranges, and constants of equal value."""
    form = canonical(predicate, KINDS)
    once = _rewritten(predicate, random)
    assert canonical(once, KINDS) == form
    if len(repr(once)) < 5_000:
        assert canonical(_rewritten(once, random), KINDS) == form


@pytest.mark.parametrize("same", _SAME)
def test_conditions_of_equal_meaning_have_one_form(same):
    """Each pair that rewriting uses, by itself and negated."""
    column, operator, text = same
    kind = KINDS[column] if KINDS[column] in {Kind.TEXT, Kind.DATE, Kind.TIMESTAMP} else Kind.INTEGER
    one = Comparison(column, operator, Constant(_kind_of(text, kind), text))
    operator, text = _SAME[same]
    other = Comparison(column, operator, Constant(_kind_of(text, kind), text))
    assert one != other
    assert canonical(one, KINDS) == canonical(other, KINDS)
    assert canonical(Not(one), KINDS) == canonical(Not(other), KINDS) != canonical(one, KINDS)
