"""Planted defects in canonical forms, each of which the check of correct forms detects."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from discreet.head_request import And, Kind, Not, Or
from discreet.query import canonical
from tests.query.test_canonical_rows import all_rows, check, filters


def _read_as(wrong):
    """Return a defect: columns of some kinds are read as if they had others."""
    return "_read_as", lambda right: lambda kind, constant: wrong.get(kind) or right(kind, constant)


def _text_changed(change):
    """Return a defect: constants are compared after a change of their text."""
    return (
        "cuts_around",
        lambda right: lambda kind, constant: right(kind, replace(constant, text=change(constant.text))),
    )


def _not_true(form):
    """Return a form for the rows for which *form* is not true, including missing values."""
    match form:
        case canonical._Values():
            return canonical._simplify(replace(form, first=not form.first, missing=not form.missing))
        case canonical._Junction(conjunction, parts):
            return canonical._join(map(_not_true, parts), not conjunction)
    return not form


def _unknown_is_false(right):
    def wrong(predicate, columns, wanted):
        if isinstance(predicate, Not) and wanted:
            return _not_true(right(predicate.predicate, columns, True))
        return right(predicate, columns, wanted)

    return wrong


def _not_goes_into_and(right):
    def wrong(predicate, columns, wanted):
        if isinstance(predicate, And | Or) and not wanted:
            parts = [canonical._reduce(part, columns, False) for part in predicate.predicates]
            return canonical._join(parts, isinstance(predicate, And))
        return right(predicate, columns, wanted)

    return wrong


def _merged_the_other_way(right):
    return lambda sets, conjunction: right(sets, not conjunction)


def _missing_of_any(right):
    def wrong(sets, conjunction):
        return replace(right(sets, conjunction), missing=any(values.missing for values in sets))

    return wrong


def _one_column(right):
    """Merge the sets of all columns as if they were of one column."""

    def wrong(forms, conjunction):
        forms = list(forms)
        sets = [form for form in forms if isinstance(form, canonical._Values)]
        if len({form.kind for form in sets}) == 1:
            forms = [replace(form, column=sets[0].column) if form in sets else form for form in forms]
        return right(forms, conjunction)

    return wrong


_DEFECTS = {
    "NOT makes what is unknown true": ("no", "_reduce", _unknown_is_false),
    "NOT AND is AND NOT": ("no", "_reduce", _not_goes_into_and),
    "AND is the union of sets": ("no", "_merge", _merged_the_other_way),
    "missing values of any set are in their intersection": ("no", "_merge", _missing_of_any),
    "sets of different columns are merged": (["b1", "b2", "b3"], "_join", _one_column),
    "conditions that are never true are always true": (
        "no",
        "_simplify",
        lambda right: lambda values: True if right(values) is False else right(values),
    ),
    "IS NULL is lost": ("no", "_write", lambda right: lambda form, columns: right(_without_missing(form), columns)),
    "no value is on a cut": (
        "p",
        "_compare",
        lambda right: lambda *what: right(*what[:2], what[2].replace("<=", "<").replace(">=", ">"), *what[3:]),
    ),
    "what is left out of a range is in it": (
        ["n"],
        "_enumerated",
        lambda right: lambda kind, low, high: right(kind, low, high) if low and high and low < high else [],
    ),
    "decimals are whole": ("p", *_read_as({Kind.DECIMAL: Kind.INTEGER})),
    "digits behind the point are cut off": ("n", *_text_changed(lambda text: text.partition(".")[0])),
    "doubles are decimals": ("f", *_read_as({Kind.FLOAT: Kind.DECIMAL})),
    "timestamps are dates": (["at"], *_text_changed(lambda text: text[:10])),
    "text has no case": ("t", *_text_changed(str.casefold)),
    "text is normalised": ("t", *_text_changed(lambda text: unicodedata.normalize("NFC", text))),
    "numbers without a type are text": ("r", *_read_as({Kind.UNTYPED: Kind.TEXT})),
}


def _without_missing(form):
    if isinstance(form, canonical._Values) and form.cuts:
        return replace(form, missing=False)
    return form


def _check(columns, examples=300):
    rows = all_rows(columns)

    @settings(max_examples=examples, phases=[Phase.generate])
    @given(st.lists(filters(tuple(columns), 3), min_size=2, max_size=6))
    def run(predicates):
        check(predicates, rows)

    run()


@pytest.mark.parametrize("defect", _DEFECTS)
def test_a_wrong_canonical_form_is_detected(defect, monkeypatch):
    """Each defect merges different filters, separates equal ones, or changes their rows."""
    columns, name, make = _DEFECTS[defect]
    monkeypatch.setattr(canonical, name, make(getattr(canonical, name)))
    with pytest.raises(AssertionError):
        _check(columns)


@pytest.mark.parametrize("columns", ["r", ["at"], ["day"]])
def test_the_canonical_form_passes_the_same_check(columns):
    """The check accepts the correct form, so it can distinguish."""
    _check(columns, 30)
