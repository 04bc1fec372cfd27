"""Wrong ways to find forms: the check that the right one passes finds every one of them out."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from discreet.query import canonical, sets
from discreet.query.diagram import FALSE, TRUE
from discreet.question import Every, Kind, Not, Some
from tests.query.test_canonical_worlds import check, filters, world


def _read_as(wrong):
    """Columns of some kinds read as if they were of others."""
    return canonical, "reading", lambda right: lambda kind, constant: wrong.get(kind) or right(kind, constant)


def _text_changed(change):
    """Text that is compared after a change."""

    def make(right):
        return lambda kind, constant: right(kind, replace(constant, text=change(constant.text)))

    return sets, "cuts_around", make


def _unknown_is_false(right):
    def wrong(self, predicate, wanted):
        if isinstance(predicate, Not) and wanted:
            return self._diagrams.without(TRUE, self.diagram(predicate.predicate, True))
        return right(self, predicate, wanted)

    return wrong


def _not_goes_into_and(right):
    def wrong(self, predicate, wanted):
        if isinstance(predicate, Every | Some) and not wanted:
            parts = [self.diagram(part, False) for part in predicate.predicates]
            return self._joined(parts, isinstance(predicate, Every))
        return right(self, predicate, wanted)

    return wrong


def _days_have_days_between(right):
    def wrong(kind, constant):
        low, high = right(kind, constant)
        return (low, (low[0], 1)) if kind is Kind.DATE else (low, high)

    return wrong


def _everything_goes(_):
    def wrong(self, place, cuts, ways, *_):
        wide = [other for other in ways if other[1] != FALSE]
        return wide, self._conditions(place, cuts, sorted(piece for other in wide for piece in ways[other]))

    return wrong


_DEFECTS = {
    "NOT makes what is unknown true": ("no", canonical._Form, "diagram", _unknown_is_false),
    "NOT AND is AND NOT": ("no", canonical._Form, "diagram", _not_goes_into_and),
    "IS NULL is lost": (
        "no",
        canonical,
        "written",
        lambda right: lambda *what, missing, untyped: right(*what, missing=missing and not what[2], untyped=untyped),
    ),
    "values go any way": (["b1", "b2", "b3"], canonical._Form, "_chosen", _everything_goes),
    "no value is on a cut": (
        "p",
        canonical,
        "compared",
        lambda right: lambda kind, sign, constant: right(kind, sign.replace("<=", "<").replace(">=", ">"), constant),
    ),
    "decimals are whole": ("p", *_read_as({Kind.DECIMAL: Kind.INTEGER})),
    "digits behind the point are cut off": ("n", *_text_changed(lambda text: text.partition(".")[0])),
    "doubles are decimals": ("f", *_read_as({Kind.FLOAT: Kind.DECIMAL})),
    "timestamps are dates": (["at"], *_read_as({Kind.TIMESTAMP: Kind.DATE})),
    "days have others between": (["day"], sets, "cuts_around", _days_have_days_between),
    "text has no case": ("t", *_text_changed(str.casefold)),
    "text is normalised": ("t", *_text_changed(lambda text: unicodedata.normalize("NFC", text))),
    "there is text below ''": ("t", sets, "ENDS", lambda right: {Kind.BOOLEAN: right[Kind.BOOLEAN]}),
    "numbers without a type are text": ("r", *_read_as({Kind.UNTYPED: Kind.TEXT})),
}


def _check(columns, examples=300):
    rows = world(columns)

    @settings(max_examples=examples, phases=[Phase.generate])
    @given(st.lists(filters(list(columns), 3), min_size=2, max_size=6))
    def run(predicates):
        check(predicates, rows)

    run()


@pytest.mark.parametrize("defect", _DEFECTS)
def test_a_wrong_way_to_find_forms_is_found_out(defect, monkeypatch):
    """It takes different filters for the same, the same for different ones, or changes their rows."""
    columns, place, name, make = _DEFECTS[defect]
    monkeypatch.setattr(place, name, make(getattr(place, name)))
    with pytest.raises(AssertionError):
        _check(columns)


@pytest.mark.parametrize("columns", ["r", ["at"], ["day"]])
def test_the_right_way_passes_the_same_check(columns):
    """What finds defects out is not that the check finds something in everything."""
    _check(columns, 30)
