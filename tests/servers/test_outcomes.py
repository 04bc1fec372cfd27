"""No row decides whether an engine answers: random requests on every type at its extremes."""

from __future__ import annotations

import contextlib
import os
import random

import pytest

from discreet.engines.opening import open_engine
from discreet.testing.outcomes import check_outcomes, select

_INTEGERS = {
    "smallint": ["7", "-32768", "32767", "NULL"],
    "integer": ["7", "-2147483648", "2147483647", "NULL"],
    "bigint": ["7", "'-9223372036854775808'", "'9223372036854775807'", "NULL"],
}
_FLOATS = ["'0.5'", "'NaN'", "'Infinity'", "'-Infinity'", "'-0.0'", "NULL"]
_UUIDS = ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "NULL"]
_BOOLEANS = ["true", "false", "NULL"]


def _decimals(name, *sizes):
    cases = {}
    for digits, scale in sizes:
        most = f"{'9' * (digits - scale) or '0'}.{'9' * scale}".rstrip(".")
        least = f"0.{'0' * (scale - 1)}1" if scale else "1"
        cases[f"{name}({digits}, {scale})"] = ["'0'", f"'{most}'", f"'-{most}'", f"'{least}'", "NULL"]
    return cases


_SIZES = ((4, 1), (9, 2), (18, 3), (18, 18), (20, 0), (20, 16), (20, 19), (38, 0), (38, 38))
_POSTGRES_TIMES = [
    "'2024-02-29'",
    "'4713-01-02 00:00:00 BC'",
    "'294276-12-31 23:59:59'",
    "'infinity'",
    "'-infinity'",
    "'9999-12-31 23:59:59'",
    "NULL",
]
_POSTGRES = {
    **_INTEGERS,
    **_decimals("numeric", *_SIZES, (50, 10)),
    "numeric": ["'0'", "'NaN'", "'Infinity'", "'-Infinity'", "'1e1000'", "NULL"],
    "numeric(9, 3)": ["'0'", "'NaN'", "NULL"],
    "real": _FLOATS,
    "double precision": [*_FLOATS, "'1.7e308'", "'5e-324'"],
    "text": ["'a'", "''", "repeat('x', 1048576)", "chr(1114111)", "'a '", "'NaN'", "NULL"],
    "varchar(5)": ["'a'", "''", "NULL"],
    "char(5)": ["'a'", "''", "NULL"],
    "bytea": ["'a'", "''", "NULL"],
    "json": ["'{}'", "'null'", "NULL"],
    "uuid": _UUIDS,
    "boolean": _BOOLEANS,
    "date": ["'2024-02-29'", "'4713-01-01 BC'", "'5874897-12-31'", "'infinity'", "'-infinity'", "'0001-01-01'", "NULL"],
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp(0)"), _POSTGRES_TIMES),
    "time": ["'12:00'", "'24:00'", "NULL"],
    "interval": ["'1 day'", "'178000000 years'", "NULL"],
    "integer[]": ["'{1}'", "'{}'", "NULL"],
}
_TIMES = ["'2024-02-29 00:00:00'", "'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'-5000-01-01 00:00:00'", "NULL"]
_TRINO = {
    "tinyint": ["7", "-128", "127", "NULL"],
    **_INTEGERS,
    **_decimals("decimal", *_SIZES),
    "real": _FLOATS,
    "double": [*_FLOATS, "'1.7e308'", "'4.9e-324'"],
    "varchar": ["'a'", "''", "rpad('x', 1048576, 'y')", "chr(1114111)", "chr(0)", "'NaN'", "NULL"],
    "varchar(5)": ["'a'", "''", "NULL"],
    "char(5)": ["'a'", "''", "NULL"],
    "varbinary": ["X'61'", "X''", "NULL"],
    "uuid": _UUIDS,
    "boolean": _BOOLEANS,
    "date": ["'2024-02-29'", "'0001-01-01'", "'-5877641-06-24'", "'+5881580-07-10'", "'9999-12-31'", "NULL"],
    **{f"timestamp({digits})": [*_TIMES, "'+73000-01-01 00:00:00'"] for digits in (0, 3, 6)},
    **{f"timestamp({digits}) with time zone": [f"{text[:-1]} UTC'" for text in _TIMES[:4]] for digits in (3, 6)},
    "timestamp(12)": ["'2024-02-29 00:00:00'", "NULL"],
    "timestamp(9) with time zone": ["'2024-02-29 00:00:00.000000001 UTC'", "NULL"],
    "time(6) with time zone": ["'12:00:00 +00:00'", "NULL"],
    "interval day to second": ["INTERVAL '1' DAY", "NULL"],
    "array(integer)": ["ARRAY[1]", "ARRAY[]", "ARRAY[NULL]", "NULL"],
    "map(integer, varchar)": ["MAP(ARRAY[1], ARRAY['a'])", "NULL"],
    "row(a integer, b varchar)": ["ROW(1, 'a')", "ROW(NULL, NULL)", "NULL"],
    "json": ["JSON '1'", "JSON 'null'", "NULL"],
    "ipaddress": ["'10.0.0.1'", "'::1'", "NULL"],
}
_SPARK = {
    "tinyint": ["7", "-128", "127", "NULL"],
    **_INTEGERS,
    **_decimals("decimal", *_SIZES),
    "float": _FLOATS,
    "double": [*_FLOATS, "'1.7e308'", "'4.9e-324'"],
    "string": ["'a'", "''", "repeat('x', 1048576)", "char(0)", "'\\U0010FFFF'", "CAST(X'EDA080' AS STRING)", "NULL"],
    "binary": ["X'61'", "X''", "NULL"],
    "boolean": _BOOLEANS,
    "date": [
        "'2024-02-29'",
        "'0001-01-01'",
        "'+5881580-07-10'",
        "date_from_unix_date(-2147483648)",
        "'9999-12-31'",
        "NULL",
    ],
    "timestamp": [
        "'2024-02-29'",
        "timestamp_micros(9223372036854775807)",
        "timestamp_micros(-9223372036854775808)",
        "'9999-12-31 23:59:59'",
        "NULL",
    ],
    "array<int>": ["array(1)", "array()", "array(NULL)", "NULL"],
    "map<int, string>": ["map(1, 'a')", "map()", "NULL"],
    "struct<a: int, b: string>": ["named_struct('a', 1, 'b', 'a')", "named_struct('a', NULL, 'b', NULL)", "NULL"],
    "interval day to second": ["INTERVAL '1' DAY", "INTERVAL '106751990' DAY", "NULL"],
    "string COLLATE UTF8_LCASE": ["'a'", "'A'", "NULL"],
    "variant": ["parse_json('1')", "parse_json('null')", "NULL"],
    "timestamp_ntz": ["'2024-02-29'", "'0001-01-01'", "'9999-12-31 23:59:59'", "'-290000-01-01'", "NULL"],
}
_CLICKHOUSE = {
    **{
        f"Nullable(Int{bits})": ["7", str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1), "NULL"] for bits in (8, 16, 32)
    },
    "Nullable(Int64)": ["7", "'-9223372036854775808'", "'9223372036854775807'", "NULL"],
    "UInt64": ["7", "18446744073709551615"],
    **{
        f"Nullable(Decimal({digits}, {scale}))": ["7" if digits > scale else "0", f"'{most}'", f"'-{most}'", "NULL"]
        for digits, scale in ((4, 2), (18, 18), (38, 0), (38, 37))
        for most in [f"{'9' * (digits - scale)}.{'9' * scale}".removesuffix(".")]
    },
    "Nullable(Float32)": ["0.5", "nan", "inf", "-inf", "3.4e38", "NULL"],
    "Nullable(Float64)": ["0.5", "nan", "inf", "-inf", "1.7e308", "-0.0", "NULL"],
    "Nullable(Bool)": ["true", "false", "NULL"],
    "LowCardinality(Nullable(String))": ["'a'", "unhex('ff00')", "''", "repeat('é', 100000)", "NULL"],
    "Nullable(UUID)": ["'00000000-0000-0000-0000-000000000000'", "generateUUIDv4()", "NULL"],
    "Enum8('a' = 1, 'b' = -128)": ["'a'", "'b'"],
    "Nullable(Date)": ["'2024-02-29'", "'1970-01-01'", "'2149-06-06'", "NULL"],
    "Nullable(Date32)": ["'2024-02-29'", "'0001-01-01'", "'9999-12-31'", "NULL"],
    "Nullable(DateTime)": ["'2024-02-29 01:02:03'", "0", "4294967295", "NULL"],
    **{
        f"Nullable(DateTime64({digits}))": [
            "'2024-02-29 01:02:03'",
            f"fromUnixTimestamp64{name}(9223372036854775807)",
            f"fromUnixTimestamp64{name}(-9223372036854775807)",
            "'0001-01-01 00:00:00'",
            "NULL",
        ]
        for digits, name in ((0, "Second"), (3, "Milli"), (6, "Micro"))
    },
}
_CASES = {"clickhouse": (_CLICKHOUSE, 60), "postgres": (_POSTGRES, 150), "trino": (_TRINO, 40), "spark": (_SPARK, 25)}


@pytest.mark.parametrize("engine", _CASES)
def test_no_row_decides_whether_there_is_an_answer(server, engine):
    """Types x groups_per_user x rows_per_group x filters x sums; DISCREET_FUZZ_TIMES multiplies them."""
    cases, requests = _CASES[engine]
    seed = os.environ.get("DISCREET_FUZZ_SEED", engine)
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(contextlib.closing(open_engine(server(engine), view=select(cases, extremes))))
            for extremes in (True, False)
        ]
        check_outcomes(*engines, random.Random(seed), requests * int(os.environ.get("DISCREET_FUZZ_TIMES", "1")))
