"""Secrets in files, and connections that may carry them."""

from __future__ import annotations

import pytest

from discreet.errors import InputError
from discreet.secrets import is_local, read_secret


def test_a_missing_secret_is_reported_without_its_path(tmp_path):
    """The message has the name of the file only."""
    with pytest.raises(InputError) as caught:
        read_secret(tmp_path / "absent.key", "noise key")
    assert str(caught.value) == "the noise key 'absent.key' cannot be read: no such file or directory"


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("reader.localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost.example.org", False),
        ("0.0.0.0", False),  # noqa: S104 - an invalid address
        ("192.168.0.1", False),
        ("example.org", False),
    ],
)
def test_only_loopback_addresses_are_local(host, local):
    """Names and addresses beyond the loopback interface count as other machines."""
    assert is_local(host) == local
