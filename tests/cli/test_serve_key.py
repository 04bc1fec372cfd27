"""`discreet key`: secrets in files, and new access for an administrator."""

from __future__ import annotations

import io

import pytest

from discreet.service.app import open_service
from discreet.service.problems import KeyRefused
from discreet.service.settings import NoiseSettings, load_settings
from discreet.service.stores import noise_secret, signing_key
from tests.cli.test_serve_init import keys_in


def test_a_new_key_has_32_random_bytes_that_only_its_owner_can_read(run, tmp_path):
    """It is valid for noise and for signing, and all keys differ."""
    for name in ("a.key", "b.key"):
        assert run("key", "new", tmp_path / name).code == 0
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    assert len(noise_secret(NoiseSettings(key_file=tmp_path / "a.key"), {})) == 32
    assert signing_key(tmp_path / "b.key")
    assert (tmp_path / "a.key").read_bytes() != (tmp_path / "b.key").read_bytes()


def test_an_existing_key_is_never_lost(run, tmp_path):
    """Without --force it is kept; with it, renamed: a lost key ends consistent noise."""
    path = tmp_path / "noise.key"
    run("key", "new", path)
    before = path.read_bytes()
    ran = run("key", "new", path)
    assert (ran.code, ran.out) == (2, "")
    assert "--force" in ran.err
    assert path.read_bytes() == before
    ran = run("key", "new", path, "--force")
    assert ran.code == 0
    (aside,) = tmp_path.glob("noise.key.*")
    assert aside.name in ran.err
    assert aside.read_bytes() == before
    assert path.read_bytes() != before


def test_a_link_is_not_followed(run, tmp_path):
    """A secret is not written through a symbolic link."""
    (tmp_path / "link.key").symlink_to(tmp_path / "elsewhere")
    assert run("key", "new", tmp_path / "link.key").code == 2
    assert not (tmp_path / "elsewhere").exists()


def test_a_key_that_cannot_be_written_is_reported(run, tmp_path):
    """Exit code 2 and one sentence."""
    ran = run("key", "new", tmp_path / "none" / "noise.key")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "cannot be written" in ran.err


def test_access_to_the_store_suffices_to_create_an_administrators_key(run, tmp_path):
    """It replaces the last key if that is lost; the reason is in the ledger, and a checkpoint is written."""
    run("init", tmp_path)
    ran = run("key", "admin", "--config", tmp_path / "discreet.toml", "--reason", "the last one left")
    assert ran.code == 0
    with open_service(load_settings(tmp_path / "discreet.toml"), {}) as parts:
        identity = parts.authenticator.authenticate(f"Bearer {ran.out.strip()}")
        assert (identity.roles, identity.account) == ({"admin"}, None)
        assert any("the last one left" in line.body for line in parts.manager.store.lines())
        assert parts.manager.verify()


def test_a_running_service_accepts_the_key_at_its_next_maintenance(run, tmp_path):
    """The service owns the store, so the key is passed in a file, which other users must not be able to write."""
    run("init", tmp_path)
    command = ("key", "admin", "--config", tmp_path / "discreet.toml", "--reason", "the last one left")
    with open_service(load_settings(tmp_path / "discreet.toml"), {}, io.StringIO()) as service:
        ran, waiting = run(*command), tmp_path / "budget.db.new-key"
        assert (ran.code, run(*command).code) == (0, 2)
        assert ran.out.strip() not in waiting.read_text()
        waiting.chmod(0o666)
        service.maintenance.once()
        with pytest.raises(KeyRefused):
            service.authenticator.authenticate(f"Bearer {ran.out.strip()}")
        waiting.chmod(0o600)
        service.maintenance.once()
        assert not waiting.exists()
        assert service.authenticator.authenticate(f"Bearer {ran.out.strip()}").roles == {"admin"}
        assert any("the last one left" in line.body for line in service.manager.store.lines())
        assert service.maintenance.age_seconds < 60


@pytest.mark.parametrize("reason", [" ", "x" * 2_001])
def test_a_reason_is_required(run, tmp_path, reason):
    """The reason is kept in the ledger."""
    run("init", tmp_path)
    ran = run("key", "admin", "--config", tmp_path / "discreet.toml", "--reason", reason)
    assert (ran.code, ran.out) == (2, "")


def test_keys_are_printed_by_init_only(run, tmp_path):
    """`key new` writes a secret to its file only."""
    ran = run("key", "new", tmp_path / "noise.key")
    assert (ran.out, ran.err) == ("", "")
    assert keys_in(ran.out) == {}
