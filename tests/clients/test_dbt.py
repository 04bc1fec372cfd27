"""dbt with dbt-trino: `dbt show` of a model, and `dbt run` of tables, views and incremental models."""

from __future__ import annotations

import json

import pytest

from tests.clients.environments import run

PROFILE = """
discreet:
  target: dev
  outputs:
    dev:
      type: trino
      method: ldap
      user: ann
      password: "{key}"
      host: 127.0.0.1
      port: {port}
      http_scheme: https
      cert: {certificate}
      database: discreet
      schema: saved
      session_properties: {{epsilon: "0.5"}}
      threads: 1
"""
MODEL = """
-- dbt adds comments and a subquery
select country, count(distinct reader) as readers
from {{ source('main', 'reads') }}
group by country
"""


@pytest.fixture
def project(service, tmp_path):
    """Return the folder of a dbt project with one model over reads."""
    files = {
        "dbt_project.yml": "name: reads\nprofile: discreet\nmodel-paths: [models]\n",
        "profiles.yml": PROFILE.format(
            key=service.key, port=service.tls_url.rpartition(":")[2], certificate=service.certificate
        ),
        "models/countries.sql": MODEL,
        "models/sources.yml": "sources:\n  - name: main\n    database: discreet\n    tables: [{name: reads}]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def dbt(project, command, *options):
    """Run a command of dbt on a project and return what it printed."""
    folders = ("--project-dir", str(project), "--profiles-dir", str(project))
    quiet = ("-m", "dbt.cli.main", "--quiet", "--no-send-anonymous-usage-stats")
    return run("dbt", *quiet, command, *folders, *options, HOME=str(project))


def test_dbt_shows_a_model_and_pays_once(service, project):
    """The model is a subquery of what dbt sends; shown again, it is free."""
    service.charged()
    first, second = (dbt(project, "show", "--output", "json", "--select", "countries") for _ in range(2))
    rows = json.loads(first[first.index("{") :])["show"]
    assert {row["country"] for row in rows} == {"BR", "DE", "IN", "KE", "US"}
    assert first == second
    assert service.charged() == (1, 1)


COUNTS = "select {group}, count(distinct reader) as readers from {{{{ source('main', 'reads') }}}} group by {group}"
MODELS = {
    "countries": "{{ config(materialized='table') }}\n" + COUNTS.format(group="country"),
    "large": "{{ config(materialized='view') }}\nselect * from {{ ref('countries') }} where readers > 100",
    "shares": "{{ config(materialized='table') }}\nselect country, 1.0 * readers / sum(readers) over () as share from "
    "{{ ref('large') }}",
    "weekly": "{{ config(materialized='incremental', incremental_strategy='append') }}\n"
    + COUNTS.format(group="week, country").replace(
        "group by",
        "{% if is_incremental() %} where week = date '2026-01-05' {% else %} where week = date '2025-12-29' {% endif %}"
        "group by",
    ),
}


def test_dbt_runs_tables_views_and_incremental_models_and_pays_once(service, project):
    """Run again over the same data, a table costs nothing; an incremental model pays for what it adds."""
    for name, text in MODELS.items():
        (project / f"models/{name}.sql").write_text(text)
    service.charged()
    dbt(project, "run")
    assert sum(service.charged()) == 2  # one may have been paid for when it was shown
    dbt(project, "run")
    assert service.charged()[0] == 1  # what the incremental model appends
    dbt(project, "run")
    assert service.charged()[0] == 0
    shown = dbt(project, "show", "--output", "json", "--limit", "100", "--inline", "select * from saved.weekly")
    rows = json.loads(shown[shown.index("{") :])["show"]
    assert len(rows) == 15
    assert service.charged()[0] == 0
