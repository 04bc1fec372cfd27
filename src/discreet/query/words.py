"""Words and marks that statements may not hold, and what is said about them."""

from __future__ import annotations

from discreet.query.where import RESERVED as FILTER_WORDS

_KINDS = {
    "joins are": "JOIN INNER OUTER LEFT RIGHT FULL CROSS NATURAL LATERAL SEMI ANTI ASOF STRAIGHT_JOIN ON USING",
    "set operations are": "UNION INTERSECT EXCEPT MINUS",
    "window functions are": "OVER WINDOW PARTITION QUALIFY",
}
_KEYWORDS = (
    "ALL ASC CASE COLLATE CURRENT_DATE CURRENT_DATETIME CURRENT_ROLE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER "
    "DISTINCT FETCH FILTER FOR GROUPING HAVING INTO ISNULL NOTNULL OFFSET PIVOT PREWHERE TABLESAMPLE TOP UNPIVOT "
    "VALUES WITH WITHIN"
)

REFUSED = {word: what for what, words in _KINDS.items() for word in words.split()}
"""What is not allowed, for each word that stands for it: "joins are", "HAVING is"."""

REFUSED |= {word: f"{word} is" for word in _KEYWORDS.split()}

RESERVED = FILTER_WORDS | REFUSED.keys() | {"SELECT", "FROM", "WHERE", "GROUP", "ORDER", "BY", "LIMIT", "AS", "DESC"}
"""Words that are no names unless they are quoted."""

REFUSED |= {"CAST": "casts are", "TRY_CAST": "casts are", "CUBE": "CUBE is", "ROLLUP": "ROLLUP is"}  # like functions

HINTS = (
    {"": "only SELECT ... FROM ... WHERE ... GROUP BY ... ORDER BY ... LIMIT ... is allowed"}
    | dict.fromkeys("?@$", "parameters are not allowed")
    | dict.fromkeys("+/%|&^~", "arithmetic is not allowed")
    | dict.fromkeys("[]{}", "arrays and brackets are not allowed")
    | dict.fromkeys("0123456789", "numbers are digits with at most one point")
    | {":": "casts and parameters are not allowed", "#": "comments are not allowed"}
    | {"`": "names are put in double quotes"}
)
"""What is said about a character that begins no token; under "" about all others."""
