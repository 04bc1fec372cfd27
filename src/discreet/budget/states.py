"""What may become of a reservation. A table; whatever is not in it raises and changes nothing.

    HELD ── start ──> RUNNING ── settle ──> SETTLED     charged what the answer cost
      │                  └── forfeit, expire ──> FORFEIT  data was asked: the worst case stays charged
      └── void, expire ──> VOID                           no data was asked: all is free again

From `start` on the engine may see the question, so nobody can know any more that no data was touched: a failed run is
never refunded, or failing would tell about the data. What was forfeited pays for a retry of the same release.
"""

from __future__ import annotations

from enum import Enum

from discreet.budget.errors import LeaseLost
from discreet.budget.model import State
from discreet.errors import InvariantViolated


class Event(Enum):
    """What happens to a reservation; the values are the kinds of ledger entries."""

    START = "start"
    SETTLE = "settle"
    VOID = "void"
    FORFEIT = "forfeit"
    EXPIRE = "expire"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.HELD, Event.START): State.RUNNING,
    (State.HELD, Event.VOID): State.VOID,
    (State.HELD, Event.EXPIRE): State.VOID,
    (State.RUNNING, Event.SETTLE): State.SETTLED,
    (State.RUNNING, Event.FORFEIT): State.FORFEIT,
    (State.RUNNING, Event.EXPIRE): State.FORFEIT,
}
"""Everything that may happen."""

TERMINAL = frozenset({State.SETTLED, State.VOID, State.FORFEIT})
"""Nothing happens to these any more."""

REACHED = {
    Event.START: State.RUNNING,
    Event.SETTLE: State.SETTLED,
    Event.VOID: State.VOID,
    Event.FORFEIT: State.FORFEIT,
}
"""Where an event leads that a caller asks for. Asked again in that state it has happened already: a caller who never
heard the answer may repeat it, and nothing changes."""


def transition(state: State, event: Event) -> State:
    """The state after *event*.

    Raises:
        InvariantViolated: it cannot happen in *state*.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvariantViolated(f"a reservation that is {state.value} cannot {event.value}") from None


def requested(state: State, event: Event) -> State:
    """The state after a caller requested *event*; *state* itself if it had happened already.

    Raises:
        LeaseLost: the reservation ended in another way: the caller is too late.
        InvariantViolated: it cannot happen in *state*.
    """
    if REACHED[event] is state:
        return state
    if state in TERMINAL:
        raise LeaseLost
    return transition(state, event)
