"""Fixtures: a service for each test."""

from __future__ import annotations

import contextlib

import pytest

from discreet.service.answering import pool

from .browser import Browser
from .deployment import Deployment, Service, fake_runtime

CHECKPOINTS = '[checkpoints]\nfile = "checkpoints.log"\nsigning_key_file = "checkpoints.key"'


@pytest.fixture(scope="session", autouse=True)
def _patience():
    """Let workers, which have the lowest priority, wait for a busy machine; their CPU time stays limited."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "MAX_SECONDS", 600.0)
        yield


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """Return a deployment that tests only copy."""
    return Deployment(tmp_path_factory.mktemp("template") / "deployment")


@pytest.fixture
def deployment(template, tmp_path):
    """Return a deployment with ann and bob of sales and the usual settings."""
    return template.copy_to(tmp_path / "deployment")


@pytest.fixture
def service(deployment):
    """Return a service on that deployment, whose clock stands still."""
    with Service(deployment, runtime=fake_runtime(deployment.clock)) as opened:
        yield opened


@pytest.fixture
def services(tmp_path):
    """Open services with other settings."""
    with contextlib.ExitStack() as stack:

        def make(name="other", *, tracer=None, **settings):
            deployment = Deployment(tmp_path / name, **settings)
            return stack.enter_context(Service(deployment, tracer, fake_runtime(deployment.clock)))

        yield make


@pytest.fixture
def service_with_checkpoints(services):
    """Return a service with checkpoints whose maintenance runs only when a test calls it."""
    return services(rest=CHECKPOINTS)


@pytest.fixture
def ann(service):
    """Return the browser of an analyst."""
    browser = Browser(service)
    assert browser.log_in(service.keys["ann"]).status_code == 303
    return browser


@pytest.fixture
def officer(service):
    """Return the browser of a privacy officer."""
    browser = Browser(service)
    assert browser.log_in(service.keys["officer"]).status_code == 303
    return browser
