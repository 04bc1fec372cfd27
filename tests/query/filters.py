"""Filters: written as text, shown in tables of cases, and generated at random."""

from __future__ import annotations

from hypothesis import strategies as st

from discreet.head_request import And, Comparison, Constant, IsNull, Kind, Membership, Not, Or

BARE = {"x", "größe", "_a1", "date", "timestamp"}
_CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
NAMES = st.sampled_from([*sorted(BARE), "select", "TRUE", "a b", 'a"b', "'", "1", "--"]) | st.text(
    _CHARACTERS, min_size=1, max_size=5
)
DATES = ["0001-01-01", "1969-12-31", "2024-02-29", "9999-12-31"]


def shown(predicate):
    """Return a predicate as the tables of cases have it, with every part in brackets."""
    match predicate:
        case Comparison(column, sign, constant):
            return f"[{column} {sign} {constant.kind.name} {constant.text}]"
        case Membership(column, constants):
            return f"[{column} IN {', '.join(f'{c.kind.name} {c.text}' for c in constants)}]"
        case IsNull(column):
            return f"[{column} IS NULL]"
        case Not(inner):
            return f"[NOT {shown(inner)}]"
        case And(parts) | Or(parts):
            return "[" + f" {'AND' if isinstance(predicate, And) else 'OR'} ".join(map(shown, parts)) + "]"


def written(predicate, named=None):
    """Return a predicate as filter text with all possible parentheses; *named* writes columns."""
    named = named or (lambda name: name if name in BARE else quoted(name))
    match predicate:
        case Comparison(column, sign, constant):
            return f"{named(column)} {sign} {_literal(constant)}"
        case Membership(column, constants):
            return f"{named(column)} IN ({', '.join(map(_literal, constants))})"
        case IsNull(column):
            return f"{named(column)} IS NULL"
        case Not(inner):
            return f"NOT ({written(inner, named)})"
        case And(parts) | Or(parts):
            word = " AND " if isinstance(predicate, And) else " OR "
            return word.join(f"({written(part, named)})" for part in parts)


def flattened(predicate):
    """Return a predicate with nested ANDs and ORs flattened, as DuckDB reads them."""
    match predicate:
        case Not(inner):
            return Not(flattened(inner))
        case And(parts) | Or(parts):
            kind, found = type(predicate), []
            for part in map(flattened, parts):
                found += part.predicates if isinstance(part, kind) else (part,)
            return kind(tuple(found))
    return predicate


def quoted(name):
    """Return a name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def _literal(constant):
    if constant.kind in {Kind.DATE, Kind.TIMESTAMP}:
        return f"{constant.kind.name} '{constant.text}'"
    return "'" + constant.text.replace("'", "''") + "'" if constant.kind is Kind.TEXT else constant.text


def constants():
    """Return a strategy for constants of every kind, in canonical form."""
    whole = st.integers(-(10**37) + 1, 10**37 - 1)
    parts = st.tuples(st.sampled_from(["", "-"]), st.integers(0, 10**20), st.integers(1, 9), st.integers(0, 10**14))
    return (
        st.builds(Constant, st.just(Kind.TEXT), st.text(_CHARACTERS, max_size=8))
        | st.builds(Constant, st.just(Kind.INTEGER), whole.map(str))
        | st.builds(
            Constant, st.just(Kind.DECIMAL), parts.map(lambda p: f"{p[0]}{p[1]}.{p[3]:015d}".rstrip("0") + str(p[2]))
        )
        | st.builds(Constant, st.just(Kind.BOOLEAN), st.sampled_from(["true", "false"]))
        | st.builds(Constant, st.just(Kind.DATE), st.sampled_from(DATES))
        | st.builds(
            Constant,
            st.just(Kind.TIMESTAMP),
            st.tuples(st.sampled_from(DATES), st.sampled_from(["00:00:00", "23:59:59.999999"])).map(" ".join),
        )
    )


def predicates(names=NAMES):
    """Return a strategy for predicates of up to ten conditions on columns with these *names*."""
    signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
    leaf = (
        st.builds(Comparison, names, signs, constants())
        | st.builds(Membership, names, st.lists(constants(), min_size=1, max_size=3).map(tuple))
        | st.builds(IsNull, names)
    )

    def compound(inner):
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.builds(Not, inner) | st.builds(And, several) | st.builds(Or, several)

    return st.recursive(leaf, compound, max_leaves=10)
