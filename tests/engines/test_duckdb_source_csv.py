"""CSV files: one record moves counts by one record, and no record decides whether a query fails."""

from __future__ import annotations

import csv
import io
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import EngineUnreachable, InputError
from discreet.head_request import HeadRequest
from discreet.testing.engines import rows_of

REQUEST = HeadRequest("user", ("item",), 1000)
PIECES = [
    "a",
    "b",
    ",",
    ";",
    '"',
    "\n",
    "\r\n",
    "\r",
    " ",
    "é",
    "\0",
    "\ufeff",
    "#",
    "\\",
    "ghost,forged",
    "NULL",
    "\x85",
]
CELLS = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
RECORDS = st.lists(st.tuples(CELLS, CELLS), max_size=6)
FORGED = "x\n" + "".join(f"ghost{n},z was here\n" for n in range(5000))


def _head(path, content, request=REQUEST):
    path.write_bytes(content)
    engine = DuckDBEngine(path)
    try:
        return dict(rows_of(engine, request))
    finally:
        engine.close()


def _written(records, lineterminator="\n", quoting=csv.QUOTE_MINIMAL):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=lineterminator, quoting=quoting).writerows([("user", "item"), *records])
    return text.getvalue().encode()


def _expected(records, tau=1):
    pairs = Counter((user, item) for user, item in records if user and item)
    counts = Counter()
    for (_, item), rows in pairs.items():
        counts[item,] += min(rows, tau)
    return dict(counts)


@settings(deadline=None, max_examples=30)
@given(RECORDS, st.tuples(CELLS, CELLS), st.sampled_from([("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]))
@example([("u", "a")] * 3, ("z", FORGED), ("\n", csv.QUOTE_MINIMAL))
@example([("u", "a")] * 3, ("z", FORGED.replace("\n", "\r")), ("\n", csv.QUOTE_ALL))
@example([("u", "a")] * 3, ("z", FORGED.replace("\n", "\r\n")), ("\r\n", csv.QUOTE_MINIMAL))
def test_one_record_moves_every_count_by_at_most_tau(tmp_path_factory, records, extra, dialect):
    """Sensitivity: with and without any record, every count differs by at most tau (here 2)."""
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    request = HeadRequest("user", ("item",), 1000, rows_per_group=2)
    without = _head(path, _written(records, *dialect), request)
    with_it = _head(path, _written([*records, extra], *dialect), request)
    assert sum(abs(with_it.get(label, 0) - without.get(label, 0)) for label in {*with_it, *without}) <= 1
    assert with_it == _expected([*records, extra], tau=2)


def _parsed(content):
    """Return the records of RFC 4180, two fields each, or None if malformed."""
    records, fields, place = [], [], 0
    while place < len(content):
        if content[place] == '"':
            parts, place = [], place + 1
            while (end := content.find('"', place)) >= 0 and content[end + 1 : end + 2] == '"':
                parts.append(content[place : end + 1])
                place = end + 2
            if end < 0:
                return None
            fields.append("".join([*parts, content[place:end]]))
            place = end + 1
        else:
            end = min((at for mark in ",\r\n" if (at := content.find(mark, place)) >= 0), default=len(content))
            fields.append(content[place:end])
            place = end
        if content[place : place + 1] == ",":
            place += 1
            if place < len(content):
                continue
            fields.append("")
        ending = next((mark for mark in ("\n", "\r\n") if content.startswith(mark, place)), None)
        if ending is None and content[place:] not in {"", "\r"}:
            return None
        place += len(ending or content[place:])
        if fields != [""]:
            records.append(fields)
        fields = []
    return records if all(len(record) == 2 for record in records) else None


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([*PIECES, ",", "\n", '""']), max_size=12).map("".join))
@example('a,"open\nb,c\n')
@example('a,"b"c\n')
@example("a,b\rc,d\n")
@example("a,b,c\n")
@example("a\n")
@example('"",\n')
def test_a_file_is_read_by_rfc_4180_or_refused_when_it_is_opened(tmp_path_factory, content):
    """No query depends on whether a record is well formed: a malformed file is refused when it is opened."""
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    records = _parsed(content)
    if records is None or content.startswith('""\n') or content == '""':
        with pytest.raises(InputError, match=r"malformed|cannot be read"):
            _head(path, f"user,item\n{content}".encode())
    else:
        assert _head(path, f"user,item\n{content}".encode()) == _expected(records)


@pytest.mark.parametrize(
    "content",
    [
        b"secret,item\r1,secret\r2,b\r",
        b"secret,item\n1,\xe9\n2,secret\n",
        b'secret,item\n1,"secret\n',
        b"secret,item\n1,secret\0\r2,b\n",
        b'"secret,item\n',
    ],
    ids=["old Mac", "Latin-1", "unterminated", "carriage return", "header"],
)
def test_a_malformed_file_is_refused_whole_in_one_sentence(tmp_path, content):
    """The message names the file and the remedy, and shows nothing of its text."""
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"t\.csv .*(RFC 4180|UTF-8)") as error:
        DuckDBEngine(tmp_path / "t.csv")
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None


def test_cells_may_be_huge(tmp_path):
    """A field of a megabyte is a label like any other."""
    label = "x" * 2**20
    assert _head(tmp_path / "t.csv", _written([("1", label), ("2", label)])) == {(label,): 2}


def test_a_file_that_changed_since_it_was_opened_is_refused(tmp_path):
    """Read again, a record could decide which query fails; not read again, old data would get the noise of new data."""
    path = tmp_path / "t.csv"
    path.write_bytes(_written([("1", "a")]))
    engine = DuckDBEngine(path)
    assert rows_of(engine, REQUEST) == [(("a",), 1)]
    for content in (_written([("1", "b"), ("2", "c")]), b'"'):
        path.write_bytes(content)
        with pytest.raises(EngineUnreachable, match="open it again"):
            engine.head(REQUEST)
    path.unlink()
    with pytest.raises(EngineUnreachable, match="open it again"):
        engine.head(REQUEST)
    engine.close()
