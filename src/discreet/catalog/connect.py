"""The engine of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.catalog.model import Catalog
    from discreet.engines.base import Engine


def open_dataset(catalog: Catalog, name: str, environment: Mapping[str, str]) -> Engine:
    """The engine of a dataset, which is to be closed.

    Args:
        catalog: declares it.
        name: of the dataset, as the catalog has it.
        environment: the variables in which passwords are.

    Raises:
        InputError: there is no such table, or a password is missing.
        EngineError: the engine cannot be reached.
    """
    from discreet.engines.opening import open_engine

    dataset = catalog.datasets[name]
    if dataset.engine is None:
        return open_engine(dataset.source, table=dataset.table, view=dataset.view)
    settings = catalog.engines[dataset.engine]
    return open_engine(
        settings.url,
        table=dataset.table,
        view=dataset.view,
        password=read_password(settings.password_env, environment),
        timeout_seconds=settings.timeout_seconds,
    )


def read_password(variable: str | None, environment: Mapping[str, str]) -> str | None:
    """The password that *variable* holds, or None if there is no variable.

    Raises:
        InputError: it is not set, or empty.
    """
    if variable is None:
        return None
    if not environment.get(variable):
        raise InputError(f"the environment variable {variable!r}, which should hold the password, is not set")
    return environment[variable]
