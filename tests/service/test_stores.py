"""Where the service reads its store and its secrets from: private files, or the environment."""

from __future__ import annotations

import pytest

from discreet.errors import InputError
from discreet.service.settings import NoiseSettings
from discreet.service.stores import noise_secret, signing_key


@pytest.mark.parametrize(
    ("mode", "fine"), [(0o600, True), (0o400, True), (0o640, True), (0o604, False), (0o602, False)]
)
def test_a_secret_file_accessible_to_others_is_refused(tmp_path, mode, fine):
    """T9: a key file that other users can read or write is refused."""
    path = tmp_path / "noise.key"
    path.write_bytes(bytes(range(32)))
    path.chmod(mode)
    if fine:
        assert noise_secret(NoiseSettings(key_file=path), {}) == bytes(range(32))
    else:
        with pytest.raises(InputError, match="others can") as caught:
            noise_secret(NoiseSettings(key_file=path), {})
        assert str(tmp_path) not in str(caught.value)


def test_a_secret_that_is_too_short_is_refused(tmp_path):
    """31 bytes are less than the required 32."""
    path = tmp_path / "noise.key"
    path.write_bytes(bytes(31))
    path.chmod(0o600)
    with pytest.raises(InputError, match="at least 32 bytes"):
        noise_secret(NoiseSettings(key_file=path), {})
    with pytest.raises(InputError, match="must have 32 bytes"):
        signing_key(path)


def test_a_secret_can_come_from_the_environment():
    """In hexadecimal digits: the same 32 bytes as in a file."""
    noise = NoiseSettings(key_env="NOISE")
    assert noise_secret(noise, {"NOISE": bytes(range(32)).hex()}) == bytes(range(32))
    for environment, sentence in [
        ({}, "is not set"),
        ({"NOISE": "zz"}, "hexadecimal"),
        ({"NOISE": "00" * 31}, "at least 32"),
    ]:
        with pytest.raises(InputError, match=sentence):
            noise_secret(noise, environment)
