"""Decision diagrams over columns: one diagram for everything that is true for the same values, whatever it came from.

A diagram looks at one column: its line of values is cut in pieces, and each piece, and missing values, lead to a
diagram over later columns. Equal neighbours are one piece, and a column that decides nothing is left out. So by
induction over the columns two diagrams are the same exactly if they are true for the same rows (Bryant 1986, with
pieces of a line in the place of 0 and 1).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeAlias

from discreet.errors import WhereError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from discreet.query.line import Cut

Diagram: TypeAlias = int
"""Its number among `Diagrams`."""

FALSE: Diagram = 0
TRUE: Diagram = 1

HARDEST = 150_000
"""Pieces looked at before a filter is refused: a quarter of a second or so."""

_NOWHERE = sys.maxsize


class Diagrams:
    """Diagrams over the same columns, which are told by their place: 0, 1, ..."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, tuple[Cut, ...], tuple[Diagram, ...]]] = [
            (_NOWHERE, (), (FALSE, FALSE)),
            (_NOWHERE, (), (TRUE, TRUE)),
        ]
        self._numbers = {node: number for number, node in enumerate(self._nodes)}
        self._joined: dict[tuple[str, Diagram, Diagram], Diagram] = {}
        self._pieces = 0

    def place(self, diagram: Diagram) -> int:
        """The place of the column that a diagram looks at first; beyond all columns for TRUE and FALSE."""
        return self._nodes[diagram][0]

    def node(self, place: int, cuts: Sequence[Cut], children: Sequence[Diagram]) -> Diagram:
        """The diagram that looks at a column.

        Args:
            place: of the column; the children look at later ones.
            cuts: of its line, in ascending order.
            children: for each piece of the line, and at last for missing values: two more than there are cuts.
        """
        kept_cuts: list[Cut] = []
        kept = [children[0]]
        for cut, child in zip(cuts, children[1:-1], strict=True):
            if child != kept[-1]:
                kept_cuts.append(cut)
                kept.append(child)
        if not kept_cuts and kept[0] == children[-1]:
            return kept[0]
        node = (place, tuple(kept_cuts), (*kept, children[-1]))
        number = self._numbers.setdefault(node, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node)
        return number

    def both(self, a: Diagram, b: Diagram) -> Diagram:
        """*a* and *b*."""
        if a in (b, FALSE) or b == TRUE:
            return a
        if b == FALSE or a == TRUE:
            return b
        return self._join(self.both, min(a, b), max(a, b))

    def either(self, a: Diagram, b: Diagram) -> Diagram:
        """*a* or *b*."""
        if a in (b, TRUE) or b == FALSE:
            return a
        if b == TRUE or a == FALSE:
            return b
        return self._join(self.either, min(a, b), max(a, b))

    def without(self, a: Diagram, b: Diagram) -> Diagram:
        """*a* and not *b*."""
        if a in (b, FALSE) or b == TRUE:
            return FALSE
        if b == FALSE:
            return a
        return self._join(self.without, a, b)

    def all(self, diagrams: Sequence[Diagram]) -> Diagram:
        """All of them; TRUE if there are none."""
        return FALSE if FALSE in diagrams else self._fold(self.both, diagrams, TRUE)

    def any(self, diagrams: Sequence[Diagram]) -> Diagram:
        """At least one of them; FALSE if there are none."""
        return TRUE if TRUE in diagrams else self._fold(self.either, diagrams, FALSE)

    def _fold(
        self, join: Callable[[Diagram, Diagram], Diagram], diagrams: Sequence[Diagram], start: Diagram
    ) -> Diagram:
        """Joined in pairs, and the pairs in pairs: what has many pieces is gone through a few times only."""
        left = sorted(set(diagrams), key=self.place)
        while len(left) > 1:
            left = [join(a, b) for a, b in zip(left[::2], [*left[1::2], start], strict=False)]
        return left[0] if left else start

    def split(self, a: Diagram, b: Diagram) -> tuple[int, tuple[Cut, ...], list[tuple[Diagram, Diagram]]]:
        """What two diagrams lead to, by the pieces of the first column that either looks at.

        Returns:
            the column's place, the cuts of both, and pairs of diagrams for each piece, and at last for missing values.

        Raises:
            WhereError: too many pieces were looked at.
        """
        (place, cuts, children), (other_place, others, their_children) = self._nodes[a], self._nodes[b]
        self.count(len(cuts) + len(others) + 2)
        if place < other_place:
            return place, cuts, [(child, b) for child in children]
        if other_place < place:
            return other_place, others, [(a, child) for child in their_children]
        if cuts == others:
            return place, cuts, list(zip(children, their_children, strict=True))
        merged: list[Cut] = []
        pairs = [(children[0], their_children[0])]
        i = j = 0
        while i < len(cuts) or j < len(others):
            step = j == len(others) or (i < len(cuts) and cuts[i] <= others[j])
            step_there = i == len(cuts) or (j < len(others) and others[j] <= cuts[i])
            merged.append(cuts[i] if step else others[j])
            i, j = i + step, j + step_there
            pairs.append((children[i], their_children[j]))
        return place, tuple(merged), [*pairs, (children[-1], their_children[-1])]

    def count(self, pieces: int) -> None:
        """Bounds the work, which can grow beyond all bounds with the columns.

        Raises:
            WhereError: too many pieces were looked at.
        """
        self._pieces += pieces
        if self._pieces > HARDEST:
            raise too_hard()

    def _join(self, join: Callable[[Diagram, Diagram], Diagram], a: Diagram, b: Diagram) -> Diagram:
        key = (join.__name__, a, b)
        if key not in self._joined:
            place, cuts, pairs = self.split(a, b)
            self._joined[key] = self.node(place, cuts, [join(*pair) for pair in pairs])
        return self._joined[key]


def too_hard() -> WhereError:
    """What is raised for a filter whose one form would be too long, or too hard to find."""
    return WhereError(
        "it combines columns in too many ways; leave out columns or conditions, or use IN in the place of many ORs"
    )
