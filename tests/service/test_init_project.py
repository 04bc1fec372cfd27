"""The files of a new service are created completely or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import secrets
import shutil

import pytest

from discreet.budget.errors import StoreBehind, StoreUnavailable
from discreet.budget.model import Sliding
from discreet.catalog.loader import CatalogError
from discreet.errors import InputError
from discreet.service import init_project as first
from discreet.service import init_project as staging
from discreet.service.app import open_service
from discreet.service.init_project import QUESTION, create_project
from discreet.service.settings import Store, load_settings
from discreet.service.stores import open_store
from tests.service.deployment import Clock

FILES = {
    *("discreet.toml", "catalog.toml", "reads.parquet", "noise.key"),
    *("checkpoints.key", "checkpoints.log", "budget.db"),
}


@pytest.fixture
def make(tmp_path):
    """Create a service in a folder; random bytes are numbered."""
    numbers = itertools.count(1)

    def make(folder="service", **more):
        return create_project(
            tmp_path / folder,
            **{
                "catalog": None,
                "store": Store.model_validate({"url": "sqlite:budget.db"}),
                "force": False,
                "environment": {},
                "clock": Clock(),
                "random": lambda n: hashlib.shake_256(str(next(numbers)).encode()).digest(n),
            }
            | more,
        )

    return make


@pytest.fixture
def folder(tmp_path):
    """Return the folder of the service."""
    return tmp_path / "service"


@contextlib.contextmanager
def opened(folder):
    """Return the parts of the created service."""
    with open_service(load_settings(folder / "discreet.toml"), {}) as parts:
        yield parts


def listed(folder) -> set[str]:
    """Return the names of all files, including hidden ones."""
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_all_files_are_created_and_nothing_else(make, folder):
    """No partial file and no temporary folder remains."""
    template = make()
    assert template.settings == folder / "discreet.toml"
    assert listed(folder) == FILES


def test_secrets_can_be_read_by_their_owner_only(make, folder):
    """T9: this includes the store, which holds answers."""
    make()
    for name in ("noise.key", "checkpoints.key", "budget.db", "checkpoints.log"):
        assert (folder / name).stat().st_mode & 0o077 == 0, name
    assert len((folder / "noise.key").read_bytes()) == 32
    assert (folder / "noise.key").read_bytes() != (folder / "checkpoints.key").read_bytes()


def test_the_settings_are_read_without_a_mistake_and_explain_the_rest(make, folder):
    """Every commented setting is valid when it is uncommented."""
    make()
    path = folder / "discreet.toml"
    assert load_settings(path).service.catalog == folder / "catalog.toml"
    text = (
        "\n".join(
            line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
            for line in path.read_text().splitlines()
        )
        .replace('#preset = "linkedin"', "")
        .replace('\npreset = "linkedin"', "\n#preset")
    )
    path.write_text(text)
    settings = load_settings(path)
    assert settings.oidc.roles == {"analysts": "analyst", "privacy-office": "officer"}
    assert settings.service.release_grid_ms == 50
    assert settings.traces.endpoint
    assert settings.mcp.max_unasked_share == 0.25


def test_the_first_keys_have_one_role_each(make, folder):
    """Each has one role; only the analyst's has an account; the administrator's never expires."""
    template = make()
    with opened(folder) as parts:
        for role, key in template.keys.items():
            identity = parts.authenticator.authenticate(f"Bearer {key}")
            assert identity.roles == {role}
            assert identity.account == ("ann@example" if role == "analyst" else None)
        ends = {record for _, record in parts.manager.store.records("key") if '"expires_us":null' in record}
        assert len(ends) == 1


def test_the_keys_are_stored_nowhere(make, folder):
    """T9: not in the store, the ledger, the settings or the checkpoints."""
    template = make()
    held = b"".join(path.read_bytes() for path in folder.iterdir())
    for key in template.keys.values():
        assert key.rpartition("_")[2].encode() not in held
    assert template.keys["admin"].rpartition("_")[2] not in repr(template)


def test_the_analyst_may_query_and_every_account_on_the_path_pays(make, folder):
    """Analyst, organisation and dataset pay; grants belong to the organisation."""
    make()
    with opened(folder) as parts:
        path = parts.manager.store.path("ann@example")
        assert [account.id for account in path] == ["ann@example", "example", "data"]
        assert {account.period for account in path} == {Sliding(30)}
        assert all(account.enforced for account in path)
        seen = parts.grants.catalog_for("ann@example")
        columns = ["article", "country", "day", "minutes", "day_week", "day_month", "day_quarter", "day_year"]
        assert list(seen.datasets["reads"].columns) == columns
        plan = parts.warehouse.plan(QUESTION, epsilon=1.0, delta="1e-8")
        assert plan.worst_cost.within(path[0].limit)


def test_checkpoints_cover_the_store_from_its_first_line(make, folder):
    """T25: a store that replaces it later is refused."""
    make()
    make("another")
    shutil.copy(folder.parent / "another" / "budget.db", folder / "budget.db")
    with pytest.raises(StoreBehind, match="another store"), opened(folder):
        pass


@pytest.mark.parametrize("name", sorted(FILES))
def test_an_existing_file_is_never_replaced(make, folder, name):
    """Nothing is written to the folder."""
    folder.mkdir()
    (folder / name).write_text("mine")
    with pytest.raises(InputError, match="would be replaced; --force puts it aside"):
        make()
    assert listed(folder) == {name}
    assert (folder / name).read_text() == "mine"


def test_force_moves_existing_files_aside(make, folder):
    """Nothing is lost, noise key and store included; the old log of the store is moved with it."""
    make()
    before = {name: (folder / name).read_bytes() for name in FILES}
    for name in ("budget.db-wal", "budget.db-shm"):
        (folder / name).write_bytes(b"old")
    make(force=True)
    aside = folder / "replaced-20261120T120000Z"
    assert listed(aside) == FILES | {"budget.db-wal", "budget.db-shm"}
    assert {name: (aside / name).read_bytes() for name in FILES} == before
    assert listed(folder) - {"budget.db.lock"} == FILES | {aside.name}
    with opened(folder) as parts:
        assert parts.manager.verify().lines


def test_a_store_in_use_is_not_moved_aside(make, folder):
    """Its service would keep writing to a file without a name."""
    make()
    with opened(folder), pytest.raises(StoreUnavailable, match="one process at a time"):
        make(force=True)
    assert listed(folder) - {"budget.db.lock"} == FILES


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("step", range(1, 8))
def test_a_failure_at_any_moved_file_changes_nothing(make, folder, monkeypatch, step, force):
    """After a failure at any moved file, everything is as before, including files put aside."""
    if force:
        make()
    before = {path.name: path.read_bytes() for path in folder.iterdir()} if force else {}
    moves, real = itertools.count(1), staging._move_file

    def moved(source, target):
        if next(moves) == step:
            raise OSError(28, "No space left on device")
        return real(source, target)

    monkeypatch.setattr(staging, "_move_file", moved)
    with pytest.raises(InputError, match="no space left on device"):
        make(force=force)
    assert {path.name: path.read_bytes() for path in folder.glob("*") if path.name != "budget.db.lock"} == before
    assert not [name for name in listed(folder) if name.startswith(".")]
    assert folder.exists() == force


def test_a_failure_while_files_are_created_leaves_nothing(make, folder, monkeypatch):
    """After a failure the new folder is removed too."""

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(first, "grant_name", fail)
    with pytest.raises(KeyboardInterrupt):
        make()
    assert not folder.exists()


def test_a_file_that_appears_meanwhile_is_not_replaced(make, folder, monkeypatch):
    """Of two that start concurrently, only one gets the folder."""
    real = first.write_reads

    def slow(path):
        real(path)
        (folder / "discreet.toml").write_text("of somebody else")

    monkeypatch.setattr(first, "write_reads", slow)
    with pytest.raises(InputError, match="would be replaced"):
        make()
    assert listed(folder) == {"discreet.toml"}


def test_a_folder_that_cannot_be_written_is_reported(make, tmp_path):
    """The error about missing permission is one sentence."""
    (tmp_path / "service").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        make()


def test_the_users_own_catalog_replaces_the_example(make, folder, tmp_path):
    """Its datasets are granted to the example organisation; the retention is the period of its accounts."""
    own = tmp_path / "own.toml"
    own.write_text(
        '[datasets.a]\nsource = "a.parquet"\nuser = "u"\nretention_days = 90\n'
        'columns.select = { type = "text", group = true }\ncolumns.x = { type = "text", group = true }\n'
        '[datasets.b]\nsource = "b.parquet"\nuser = "u"\ncolumns.y = { type = "text", group = true }\n'
    )
    (tmp_path / "beside").mkdir()
    template = make(catalog=tmp_path / "beside" / ".." / "own.toml")
    assert template.query == "SELECT x, COUNT(DISTINCT u) FROM a GROUP BY x ORDER BY COUNT(DISTINCT u) DESC LIMIT 10"
    assert listed(folder) == FILES - {"catalog.toml", "reads.parquet"}
    with opened(folder) as parts:
        assert load_settings(folder / "discreet.toml").service.catalog == own
        assert list(parts.grants.catalog_for("ann@example").datasets) == ["a", "b"]
        assert parts.manager.store.account("ann@example").period == Sliding(90)


def test_an_invalid_catalog_is_refused_and_no_file_is_written(make, folder, tmp_path):
    """All mistakes of the catalog are reported."""
    (tmp_path / "own.toml").write_text("datasets = 5")
    with pytest.raises(CatalogError):
        make(catalog=tmp_path / "own.toml")
    assert not folder.exists()


def test_random_bytes_of_the_system_make_keys_that_differ(make):
    """No two services share a secret."""
    made = [make(name, random=secrets.token_bytes).keys for name in ("a", "b")]
    assert not set(made[0].values()) & set(made[1].values())


def test_the_store_of_the_first_start_is_whole(make, folder):
    """I5: every line of the ledger is there and adds up."""
    make()
    settings = load_settings(folder / "discreet.toml")
    with contextlib.closing(open_store(settings.store, {}, Clock())) as store:
        verified = store.verify()
    assert verified.lines == 7
    assert set(verified.accounts) == {"data", "example", "ann@example"}
