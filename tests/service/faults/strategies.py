"""Strategies for fuzzing the service: valid queries, and queries with one wrong part."""

from __future__ import annotations

from hypothesis import strategies as st

COLUMNS = st.sampled_from(["article", "country"])
NAMES = st.sampled_from(["article", "country", "minutes", "reader", "hidden", "ARTICLE", '"article"', "x", ""])
TEXTS = st.one_of(st.sampled_from(["article 1", "IN", "", "\0", "'", "\ud800", "\U0010ffff"]), st.text(max_size=5))
JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
"""Any JSON value."""


def _written(text):
    return "'" + text.replace("'", "''") + "'"


_COMPARED = st.builds(
    "{} {} {}".format, COLUMNS, st.sampled_from(["=", "<>", "<", ">="]), st.sampled_from(["'IN'", "'article 2'", "''"])
)
FILTERS = st.recursive(
    st.one_of(
        _COMPARED,
        st.builds("{} IN ('IN', {})".format, COLUMNS, TEXTS.map(_written)),
        st.builds("{} IS {}NULL".format, COLUMNS, st.sampled_from(["", "NOT "])),
        st.builds("{} BETWEEN 'a' AND {}".format, COLUMNS, TEXTS.map(_written)),
    ),
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner),
    ),
    max_leaves=4,
)
"""Valid queries on granted columns."""

ODD_FILTERS = st.one_of(
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["=", "LIKE", "IS", "~"]), TEXTS.map(_written)),
    st.builds(
        "{} = {}".format, NAMES, st.sampled_from(["7", "1e400", "TRUE", "NULL", "DATE '2026-02-30'", "lower('x')"])
    ),
    st.builds("({} = 'x' {}".format, NAMES, st.sampled_from(["", ");", ") OR 1=1", ") -- x", ") /* x"])),
    TEXTS,
)
_MEASURES = st.sampled_from(["COUNT(DISTINCT reader)", "SUM(minutes)", "AVG(minutes)"])
_TAILS = st.sampled_from(["", " LIMIT 1", " LIMIT 5", " ORDER BY 2 DESC LIMIT 3"])


def _statement(column, measure, table, where, tail):
    where = "" if where is None else f" WHERE {where}"
    if column is None:
        return f"SELECT {measure} FROM {table}{where}"
    return f"SELECT {column}, {measure} FROM {table}{where} GROUP BY {column}{tail}"


STATEMENTS = st.builds(_statement, st.none() | COLUMNS, _MEASURES, st.just("reads"), st.none() | FILTERS, _TAILS)
ODD_STATEMENTS = st.one_of(
    st.builds(_statement, NAMES, _MEASURES, st.just("reads"), st.none() | FILTERS, _TAILS),
    st.builds(
        _statement,
        COLUMNS,
        st.builds("{}({})".format, st.sampled_from(["SUM", "MAX", "COUNT", ""]), NAMES),
        st.just("reads"),
        st.none() | FILTERS,
        _TAILS,
    ),
    st.builds(
        _statement,
        COLUMNS,
        _MEASURES,
        st.sampled_from(["secret", "loose", "x", "reads, reads", "(SELECT 1)"]),
        st.none(),
        _TAILS,
    ),
    st.builds(_statement, COLUMNS, _MEASURES, st.just("reads"), ODD_FILTERS, _TAILS),
    st.builds(
        _statement,
        COLUMNS,
        _MEASURES,
        st.just("reads"),
        st.none() | FILTERS,
        st.sampled_from(
            [" LIMIT 0", " LIMIT -1", " LIMIT 99999999999999999999", " LIMIT 1.5", " LIMIT ALL", "; SELECT 1"]
        ),
    ),
    TEXTS,
)

_CONSTANTS = st.builds(
    lambda kind, text: {kind: text},
    st.sampled_from(["text", "integer", "decimal", "date", "boolean"]),
    st.sampled_from(["IN", "7", "1e9", "0.1", "2026-02-30", "true", "-0", "\u0661"]),
)
_NESTED = st.recursive(
    st.one_of(
        st.builds(
            lambda n, o, c: {"column": n, "operator": o, "constant": c},
            NAMES,
            st.sampled_from(["=", "<", "~"]),
            _CONSTANTS,
        ),
        st.builds(lambda n, c: {"column": n, "in": c}, NAMES, st.lists(_CONSTANTS, max_size=3)),
        st.builds(lambda n, m: {"column": n, "missing": m}, NAMES, st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(lambda part: {"not": part}, inner),
        st.builds(lambda key, parts: {key: parts}, st.sampled_from(["and", "or"]), st.lists(inner, max_size=3)),
    ),
    max_leaves=4,
)
_KINDS = st.sampled_from(
    [("users", "reader"), ("sum", "minutes"), ("average", "minutes"), ("rows", "x"), ("sum", "article")]
)
QUERIES = st.fixed_dictionaries(
    {
        "dataset": st.sampled_from(["reads", "Reads"]),
        "items": st.lists(COLUMNS, max_size=2),
        "measure": _KINDS.map(lambda pair: {"kind": pair[0], "column": pair[1]}),
    },
    optional={"where": FILTERS | _NESTED, "k": st.integers(1, 30)},
)

NUMBERS = st.one_of(
    st.sampled_from(
        [0, -1, 8.1, 1e-7, 1e308, 5e-324, "1e-8", "1/3", "1/0", "1e-400", "1e999999999", "nan", " 1", "\u0661", ""]
    ),
    JSONS,
)
_WHOLE = st.one_of(st.sampled_from([-1, 0, 10**30, 1.5]), JSONS)
_ODD = st.one_of(
    st.tuples(st.sampled_from(["epsilon", "delta", "epsilon_per", "relative_error"]), NUMBERS),
    st.tuples(st.sampled_from(["information", "head_limit"]), _WHOLE),
    st.tuples(st.sampled_from(["counts", "mechanism", "noise", "sql", "query", "more"]), JSONS),
    st.tuples(st.just("sql"), ODD_STATEMENTS),
)
"""Parts of a query and their wrong values."""

_FINE = st.fixed_dictionaries(
    {},
    optional={
        "epsilon": st.sampled_from([0.01, 0.5, 1, 8]),
        "delta": st.sampled_from([1e-9, "1e-8", "1/100000000"]),
        "counts": st.booleans(),
        "mechanism": st.sampled_from(["gumbel", "laplace", "stable", "pcr"]),
        "noise": st.sampled_from(["gaussian", "laplace"]),
        "head_limit": st.integers(1, 1_000),
    },
)


def _question(asked, options, odd):
    question = {**options, **asked}
    if odd is not None:
        part, value = odd
        place = question["query"] if part in question.get("query", {}) else question
        place[part] = value
    return question


QUESTIONS = st.builds(
    _question,
    st.one_of(STATEMENTS.map(lambda sql: {"sql": sql}), QUERIES.map(lambda query: {"query": query})),
    _FINE,
    st.one_of(st.none(), _ODD, st.tuples(st.sampled_from(["dataset", "items", "measure", "where", "k"]), JSONS)),
)
"""Bodies of requests."""
