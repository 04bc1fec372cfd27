"""dbt with dbt-trino: `dbt show` of a model, and `dbt debug`."""

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
      schema: main
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
        "dbt_project.yml": "name: reads\nversion: '1'\nprofile: discreet\nmodel-paths: [models]\n",
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


def test_dbt_shows_a_model_and_pays_once(service, project):
    """The model is a subquery of what dbt sends; shown again, it is free."""
    service.charged()
    command = [
        "-m",
        "dbt.cli.main",
        "--quiet",
        "--no-send-anonymous-usage-stats",
        "show",
        "--output",
        "json",
    ]
    command += ["--project-dir", str(project), "--profiles-dir", str(project), "--select", "countries"]
    first, second = (run("dbt", *command, HOME=str(project)) for _ in range(2))
    rows = json.loads(first[first.index("{") :])["show"]
    assert {row["country"] for row in rows} == {"BR", "DE", "IN", "KE", "US"}
    assert first == second
    assert service.charged() == (1, 1)
