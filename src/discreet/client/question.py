"""A question as it is sent."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypedDict

from discreet.errors import InputError
from discreet.query.query import Select
from discreet.query.query_json import as_dict
from discreet.wire.questions import read_question

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.mechanisms import NoiseName
    from discreet.query.query import MechanismChoice


class Options(TypedDict, total=False):
    """What may be said beside a question; what is not, the service chooses.

    Attributes:
        epsilon: the most that the answer may have, with delta.
        delta: goes with epsilon; text such as "1e-8" is taken exactly.
        epsilon_per: of one unit of information: every item and every count costs one. Not with epsilon.
        information: the most units of information, for questions without LIMIT; goes with epsilon_per.
        relative_error: what most counts should stay within where as many as can be had are asked for.
        counts: False for labels only.
        mechanism: by name.
        noise: "gaussian" or "laplace".
        head_limit: how many items to read from the engine.
    """

    epsilon: float | None
    delta: float | str | Fraction | None
    epsilon_per: float | str | Fraction | None
    information: int | None
    relative_error: float | str | Fraction | None
    counts: bool
    mechanism: MechanismChoice | None
    noise: NoiseName | None
    head_limit: int | None


def body_of(question: str | Mapping[str, Any] | Select, options: Options) -> bytes:
    """The body of a request: always the same bytes for the same question.

    Args:
        question: a SELECT, its JSON form, or `discreet.Select`.
        options: beside it; None as if it were not there.

    Raises:
        InputError: it is no question, or an option is none or has the wrong type. Nothing was sent.
    """
    match question:
        case str():
            asked: dict[str, Any] = {"sql": question}
        case Select():
            asked = {"query": as_dict(question)}
        case dict():
            asked = {"query": question}
        case _:
            raise InputError("a question is a SELECT as text, its JSON form as a dictionary, or a discreet.Select")
    given = {name: _written(value) for name, value in options.items() if value is not None}
    try:
        body = json.dumps(asked | given).encode()
    except (TypeError, ValueError, RecursionError):
        raise InputError("a question holds what JSON has: text, numbers, true, false, null, lists, objects") from None
    read_question(body)
    return body


def _written(value: object) -> object:
    return str(value) if isinstance(value, Fraction) else value
