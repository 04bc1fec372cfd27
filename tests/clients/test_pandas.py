"""pandas, SQLAlchemy and the DB-API over the trino package, in their own environment."""

from __future__ import annotations

import json

import pytest

from tests.clients.environments import ROOT, run

SCRIPT = """
import datetime, json, os
import pandas as pd
import sqlalchemy as sa

engine = sa.create_engine(os.environ["DISCREET_URL"], connect_args=json.loads(os.environ["ARGUMENTS"]))
shown = {}
def show(name, frame):
    shown[name] = json.loads(frame.to_json(orient="split", date_format="iso"))

show("top", pd.read_sql("SELECT article, COUNT(DISTINCT reader) AS readers FROM reads "
                        "GROUP BY article ORDER BY readers DESC LIMIT 5", engine))
with engine.connect() as connection:
    bound = sa.text("SELECT country, COUNT(DISTINCT reader) AS readers FROM reads WHERE day >= :first GROUP BY country")
    show("bound", pd.read_sql(bound, connection, params={"first": datetime.date(2026, 1, 15)}))
    reads = sa.Table("reads", sa.MetaData(), autoload_with=connection)
    readers = sa.func.count(sa.distinct(reads.c.reader)).label("readers")
    days = sa.select(reads.c.day, readers).group_by(reads.c.day).order_by(reads.c.day)
    frame = pd.read_sql(days, connection, parse_dates=["day"])
    show("days", frame)
    frame.plot("day", "readers", ylim=(0, None), figsize=(8, 3)).figure.savefig(os.environ["PICTURE"], dpi=100)
    connection.execute(sa.text("CREATE TABLE saved.days AS SELECT day, COUNT(DISTINCT reader) AS readers "
                               "FROM reads GROUP BY day")).fetchall()
    largest = "SELECT day, readers FROM saved.days ORDER BY readers DESC LIMIT 3"
    show("saved", pd.read_sql(sa.text(largest), connection, parse_dates=["day"]))
    inspector = sa.inspect(connection)
    shown["saved tables"] = inspector.get_table_names("saved")
    shown["tables"] = {name: inspector.get_table_comment(name)["text"] for name in inspector.get_table_names()}
    shown["columns"] = {c["name"]: [str(c["type"]), c["comment"]] for c in inspector.get_columns("reads")}
    try:
        connection.execute(sa.text("SELECT * FROM reads"))
    except sa.exc.DBAPIError as error:
        shown["rows"] = [type(error.orig).__name__, error.orig.error_name, error.orig.message]
    shown["budget"] = connection.execute(sa.text("SELECT rho_left FROM information_schema.budget")).scalar()
    connection.execute(sa.text("SET SESSION rehearse = true"))
    made_up = "SELECT country, COUNT(DISTINCT reader) AS readers FROM reads GROUP BY country"
    shown["made up"] = pd.read_sql(sa.text(made_up), connection)["made_up"].all().item()
shown["versions"] = [pd.__version__, sa.__version__]
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def shown(service):
    """Return the script's output, and the statements that the service received."""
    picture = str(ROOT / "docs/images/connect-pandas.png")
    service.charged()
    arguments = json.dumps(service.arguments(epsilon=0.5))
    url = service.address
    output = run("notebook", "-c", SCRIPT, DISCREET_URL=url, ARGUMENTS=arguments, PICTURE=picture, MPLBACKEND="agg")
    return json.loads(output.splitlines()[-1]), service.take(), service.charged()


def test_read_sql_returns_a_frame_of_private_counts(shown):
    """The text is sent to the service unchanged; the frame has its columns."""
    frame = shown[0]["top"]
    assert frame["columns"] == ["article", "readers"]
    assert frame["data"][0][0] == "article-001"
    assert 1 <= len(frame["data"]) <= 5
    assert any(sql.startswith("SELECT article, COUNT(DISTINCT reader)") for sql in shown[1])


def test_parameters_reach_the_service_as_literals(shown):
    """A filter by a bound parameter answers all five countries."""
    assert sorted(row[0] for row in shown[0]["bound"]["data"]) == ["BR", "DE", "IN", "KE", "US"]
    assert any("DATE '2026-01-15'" in sql for sql in shown[1])


def test_a_reflected_table_answers_a_time_series_with_every_day(shown):
    """A known domain has no gaps: 31 days, with noise also where nothing was read."""
    frame = shown[0]["days"]
    assert [row[0][:10] for row in frame["data"]] == [f"2026-01-{day:02}" for day in range(1, 32)]


def test_reflection_has_the_descriptions_of_columns(shown):
    """Datasets and columns are those granted to the account, with the catalog's descriptions."""
    seen = shown[0]
    assert seen["tables"] == {"reads": "Which reader read which article; made up."}
    assert seen["columns"]["reader"][1] == "identifies users: COUNT(DISTINCT reader)"
    assert seen["columns"]["country"] == ["VARCHAR", "for GROUP BY, WHERE"]
    assert seen["columns"]["day"][0] == "DATE"
    assert seen["columns"]["minutes"][1] == "for SUM"


def test_rows_are_refused_in_one_sentence_and_cost_nothing(shown):
    """A statement that cannot be answered is a TrinoUserError; three queries were charged, and none twice.

    The one from the store is that of the saved table.
    """
    kind, name, message = shown[0]["rows"]
    assert (kind, name) == ("TrinoUserError", "SYNTAX_ERROR")
    assert "rows are never shown" in message
    assert shown[2] == (3, 1)


def test_the_budget_is_a_table_and_a_rehearsal_a_property_of_the_session(shown):
    """Both are free."""
    assert 0 < shown[0]["budget"] < 1
    assert shown[0]["made up"]


def test_a_saved_table_of_a_paid_answer_is_read_and_listed_free_of_charge(shown):
    """Its query is that of the time series, which was charged; the charges asserted above include no other."""
    series = dict(shown[0]["days"]["data"])
    largest = shown[0]["saved"]["data"]
    assert len(largest) == 3
    assert [readers for _, readers in largest] == sorted(series.values(), reverse=True)[:3]
    assert all(series[day] == readers for day, readers in largest)
    assert shown[0]["saved tables"] == ["days"]
