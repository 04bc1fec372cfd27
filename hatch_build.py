"""Refuses to build a distribution without the files that `make assets` fetches."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AssetsHook(BuildHookInterface[Any]):
    """Checks that the assets of the web page are there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - as the interface
        """Raise FileNotFoundError without them, unless the install is editable, as that of `make setup`."""
        script = "src/discreet/service/pages/assets/vendor/htmx.min.js"
        if version != "editable" and not (Path(self.root) / script).exists():
            raise FileNotFoundError(
                f"{script} is missing, without which the web page has no live prices: run `make assets`"
            )
