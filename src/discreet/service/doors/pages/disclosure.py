"""Disclosures as files: HTML, JSON, and YAML for the registry of deployments."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping

from discreet.service.doors.pages import text
from discreet.wire.disclosure import Disclosure, to_yaml

_TEMPLATES = text.open_templates()
_STYLE = (text.TEMPLATES / "disclosure.css").read_text("utf-8")
STYLE_HASH = f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
"""The source of the style of `to_html` in a content security policy."""


def to_html(disclosure: Disclosure) -> str:
    """Return a disclosure as a page that needs no other file."""
    privacy = disclosure.privacy
    words = None
    if privacy is not None:
        answers = "this answer alone" if disclosure.kind == "answer" else "all answers together"
        words = text.guarantee_in_words(privacy.epsilon, privacy.delta, answers)
    return _TEMPLATES.get_template("disclosure.html").render(disclosure=disclosure, words=words, style=_STYLE)


DISCLOSURE_FORMS: Mapping[str, Callable[[Disclosure], str]] = {
    "html": to_html,
    "json": lambda disclosure: disclosure.model_dump_json(indent=2) + "\n",
    "yaml": lambda disclosure: to_yaml(disclosure.registry_entry()),
}
"""The function that writes each form; that of YAML raises `InputError` if the settings lack what the entry needs."""
