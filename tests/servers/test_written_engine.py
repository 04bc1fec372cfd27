"""The engine in the documentation on writing engines passes the engine suite."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_PAGE = (Path(__file__).parents[2] / "docs" / "engines" / "write-an-engine.md").read_text("utf-8")
_ENGINE, _SUITE = re.findall(r"^```python\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)
_module = type(sys)("discreet_feather")
exec(_ENGINE, _module.__dict__)  # noqa: S102 - what the page shows
sys.modules["discreet_feather"] = _module
exec(_SUITE)  # noqa: S102
