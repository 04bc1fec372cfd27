"""The API key: its sources, and that it is not shown."""

from __future__ import annotations

import traceback
import warnings

import pytest

from discreet.client import Client
from discreet.client.client import KEY_VARIABLE, MAX_KEY_LENGTH, find_key
from discreet.errors import InputError

from .conftest import KEY


@pytest.fixture
def file(tmp_path):
    """Return a key file that only its owner can read."""
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    return path


def test_a_key_comes_from_an_argument_a_file_or_the_environment(file):
    """In this order of precedence; the line end is not part of the key."""
    assert find_key("a", None, {KEY_VARIABLE: "c"}) == "a"
    assert find_key(None, file, {KEY_VARIABLE: "c"}) == KEY
    assert find_key(None, str(file), {}) == KEY
    assert find_key(None, None, {KEY_VARIABLE: " c\n"}) == "c"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((None, None, {}), "or set DISCREET_KEY"),
        (("a", "b", {}), "not both"),
        (("", None, {}), "the argument key is not a valid key"),
        (("two words", None, {}), "the argument key is not a valid key"),
        (("line\r\nHost:x", None, {}), "the argument key is not a valid key"),
        (("schlüssel", None, {}), "the argument key is not a valid key"),
        (("x" * (MAX_KEY_LENGTH + 1), None, {}), "the argument key is not a valid key"),
        ((None, None, {KEY_VARIABLE: ""}), "the value of DISCREET_KEY is not a valid key"),
        ((None, "/nowhere/key", {}), "the key 'key' cannot be read: no such file"),
        ((None, "/", {}), "the key '/' cannot be read: is a directory"),
    ],
)
def test_an_invalid_key_is_refused_without_showing_it(arguments, sentence):
    """T9: one sentence; no line end can begin another header."""
    with pytest.raises(InputError) as caught:
        find_key(*arguments)
    assert sentence in str(caught.value)
    assert not any(text in str(caught.value) for text in ("two words", "Host", "schl", "xxx"))


def test_a_file_without_a_key_is_refused_without_showing_its_text(tmp_path):
    """A long binary file, for example, is read only up to the greatest length of a key."""
    path = tmp_path / "key"
    path.write_bytes(b"\xff\x00" * MAX_KEY_LENGTH)
    path.chmod(0o600)
    with pytest.raises(InputError, match="is not a valid key"):
        find_key(None, path, {})


@pytest.mark.parametrize(("mode", "fine"), [(0o600, True), (0o640, True), (0o604, False), (0o602, False)])
def test_a_key_file_that_others_can_read_or_write_is_refused(file, mode, fine):
    """T9: the rule of all secrets; a key that others could read must be replaced."""
    file.chmod(mode)
    if fine:
        assert find_key(None, file, {}) == KEY
    else:
        with pytest.raises(InputError, match="others can read or write the key 'key'; run chmod 600"):
            find_key(None, file, {})


def test_the_key_is_shown_nowhere(make_client):
    """T9: not by the client or its attributes, and not in an error or its traceback."""
    client, _, _ = make_client([b""], retries=0)
    with pytest.raises(Exception, match="broke") as caught:
        client.budget()
    shown = [repr(client), str(client), repr(vars(client)), repr(vars(client._transport))]
    shown += ["".join(traceback.format_exception(caught.value)), repr(caught.value.__context__)]
    assert not any(KEY[-20:] in text for text in shown)


def test_an_unencrypted_connection_gives_a_warning():
    """T20: for http to another machine; not for https, and not for this machine."""
    with pytest.warns(UserWarning, match="the key is sent unencrypted to example.org; use https"):
        Client("http://example.org", KEY).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Client("https://example.org", KEY).close()
        Client("http://localhost:8000", KEY).close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "ftp://example.org",
        "https://",
        "https://me:secret@example.org",
        "https://x/?a=1",
        "https://x/#a",
        "http://exa mple.org",
        "http://x:99999",
        7,
    ],
)
def test_an_invalid_url_is_refused(url):
    """A URL with a password is not shown."""
    with pytest.raises(InputError, match="the URL of a service looks like") as caught:
        Client(url, KEY)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"timeout": 0}, {"timeout": float("nan")}, {"timeout": 1e9}, {"retries": -1}, {"retries": 101}]
)
def test_settings_out_of_range_are_refused(settings):
    """The message for a timeout or a number of retries has its range."""
    with pytest.raises(InputError, match="must be"):
        Client("https://example.org", KEY, **settings)
