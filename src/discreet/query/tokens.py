"""Text in tokens, and what the readers of filters and of statements share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from discreet.errors import SQLError, WhereError

_TOKENS = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>--|/\*)
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+")
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?![\w.]))
  | (?P<name>[^\W\d]\w*)
  | (?P<operator><>|!=|<=|>=|=|<|>)
  | (?P<mark>[(),.;*])
  | (?P<minus>-)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word of a text.

    Args:
        kind: text, quoted (a name), number, name (also a keyword), operator, mark, minus, or end, behind the last.
        text: as it is written.
        position: 0-based offset in the whole text.
    """

    kind: str
    text: str
    position: int

    @property
    def word(self) -> str:
        """The keyword this could be."""
        return self.text.upper() if self.kind == "name" and self.text.isascii() else self.text


def tokenize(
    text: str, error: type[WhereError | SQLError], longest: int, marks: str, hints: Mapping[str, str]
) -> tuple[Token, ...]:
    """*text* in tokens, with an `end` behind them.

    Args:
        text: at most *longest* characters.
        error: what is raised.
        longest: in characters.
        marks: which marks there are.
        hints: what is said about a character that begins no token; under "" what is said about all others.

    Raises:
        WhereError | SQLError: the text is too long, or something in it is no token.
    """
    given: object = text
    if not isinstance(given, str):
        raise error(f"it must be text, not {given!r}")
    if len(text) > longest:
        raise error(f"it may have {longest:,} characters at most")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise error("it holds half a character")
    if "\0" in text:  # PostgreSQL cannot be sent it
        raise error("the character NUL is not allowed", text.index("\0"))
    tokens = []
    for match in _TOKENS.finditer(text):
        kind, found = match.lastgroup or "other", match[0]
        if kind == "comment":
            raise error("comments are not allowed", match.start())
        if kind == "other" or (kind == "mark" and found not in marks):
            unclosed = "the text is not closed with a quote" if found in "'\"" else None
            raise error(unclosed or hints.get(found, hints[""]), match.start())
        if kind != "space":
            tokens.append(Token(kind, found, match.start()))
    return (*tokens, Token("end", "", len(text)))


class Reader:
    """Recursive descent over tokens, one method a rule of a grammar.

    Args:
        tokens: of the whole text.
        reserved: keywords that are no names unless they are quoted.
        start: the first token to read.

    Attributes:
        next: the token to read next, counted from 0.
    """

    error: ClassVar[type[WhereError | SQLError]]

    def __init__(self, tokens: tuple[Token, ...], reserved: Collection[str], start: int = 0) -> None:
        self.next = start
        self._tokens = tokens
        self._reserved = reserved

    def finish(self, expected: str) -> None:
        """Refuse whatever is left."""
        if self._peek().kind != "end":
            raise self._refuse(f"expected {expected}")

    def _peek(self, ahead: int = 0) -> Token:
        """The next token, or one behind it; the end has no other behind it."""
        return self._tokens[min(self.next + ahead, len(self._tokens) - 1)]

    def _accept(self, word: str) -> bool:
        token = self._peek()
        accepted = token.word == word and token.kind in {"name", "mark", "minus"}
        self.next += accepted
        return accepted

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._refuse(f"expected {word}")

    def _name(self, expected: str) -> str:
        """A name, bare or quoted."""
        token = self._peek()
        if token.kind == "quoted":
            self.next += 1
            return token.text[1:-1].replace('""', '"')
        if token.kind != "name" or token.word in self._reserved:
            raise self._refuse(f"expected {expected}")
        self.next += 1
        return token.text

    def _refuse(self, message: str) -> WhereError | SQLError:
        token = self._peek()
        return self.error(f"{message}, not {token.text!r}" if token.text else message, token.position)
