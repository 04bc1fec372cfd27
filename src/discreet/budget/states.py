"""The states of a reservation, as a table. An event that is not in it raises and changes nothing.

    HELD ── start ──> RUNNING ── settle ──> SETTLED     charged what the answer cost
      │                  └── forfeit, expire, lose ──> FORFEIT  data was queried: the worst case stays charged
      └── void, expire, lose ──> VOID                           no data was queried: all is free again

From `start` on the engine may see the query, so that it is unknown whether data was read: a failed run is never
refunded, or failures would reveal data for free. What was forfeited pays for a retry of the same release. `lose` ends
what a process left that died, or whose client has gone. Only `forfeit` counts towards a suspension: it follows from the
data or the engine, the others from a crash of the service or from the client.
"""

from __future__ import annotations

from enum import Enum

from discreet.budget.errors import LeaseLost
from discreet.budget.model import State
from discreet.errors import InvariantViolated


class Event(Enum):
    """What happens to a reservation; the values are the kinds of ledger lines."""

    START = "start"
    SETTLE = "settle"
    VOID = "void"
    FORFEIT = "forfeit"
    EXPIRE = "expire"
    LOSE = "lose"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.HELD, Event.START): State.RUNNING,
    (State.HELD, Event.VOID): State.VOID,
    (State.HELD, Event.EXPIRE): State.VOID,
    (State.HELD, Event.LOSE): State.VOID,
    (State.RUNNING, Event.SETTLE): State.SETTLED,
    (State.RUNNING, Event.FORFEIT): State.FORFEIT,
    (State.RUNNING, Event.EXPIRE): State.FORFEIT,
    (State.RUNNING, Event.LOSE): State.FORFEIT,
}

TERMINAL = frozenset({State.SETTLED, State.VOID, State.FORFEIT})

REACHED = {
    Event.START: State.RUNNING,
    Event.SETTLE: State.SETTLED,
    Event.VOID: State.VOID,
    Event.FORFEIT: State.FORFEIT,
}
"""The state that a requested event leads to. Requested again in that state, the event has happened already, and nothing
changes: a caller may repeat a request whose answer was lost."""


def transition(state: State, event: Event) -> State:
    """Return the state after *event*.

    Raises:
        InvariantViolated: it cannot happen in *state*.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvariantViolated(f"a reservation that is {state.value} cannot {event.value}") from None


def requested(state: State, event: Event) -> State:
    """Return the state after a caller requested *event*; *state* itself if it had happened already.

    Raises:
        LeaseLost: the reservation ended in another way: the caller is too late.
        InvariantViolated: it cannot happen in *state*.
    """
    if REACHED[event] is state:
        return state
    if state in TERMINAL:
        raise LeaseLost
    return transition(state, event)
