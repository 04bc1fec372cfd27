"""Sources of random bits: labels, keys, and injective encodings."""

from __future__ import annotations

import hashlib
import hmac
import itertools
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InputError, InvariantViolated
from discreet.noise import KeyedBits, SystemBits, encode

SECRET = bytes(range(32))
CONTEXT = ("which books", 10, Fraction(1, 3), None, True, b"\x00\xff")

# By openssl: dgst -sha256 -mac HMAC over the encoding, then enc -aes-256-ctr of zeros with a zero counter.
VECTORS = [
    (SECRET, CONTEXT, "race", "7428ff25f5a7bf3dd61b0d18c61e4d43a037ce1b39164719c81fe976188b648e"),
    (SECRET, CONTEXT, "race/0/1", "d771fd13c9ea4dbd8623735d43e9cfc974a0cb40dee4f8a139397b7e2726647d"),
    (bytes(range(100, 150)), "Zürich", "counts/up", "6e9c6cbd67c784b1201a8a4b3dcf900a099955b5f59118c8f37b0a5a9e525e6b"),
]

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-3, 3),
        st.fractions(),
        st.sampled_from([Fraction(0), Fraction(1), Fraction(-1, 2)]),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.binary(),
    ),
    lambda parts: st.lists(parts, max_size=4).map(tuple),
    max_leaves=12,
)

CONFUSABLE = [
    None,
    *(False, 0, Fraction(0), "0", b"0", "", b"", ()),
    *(True, 1, Fraction(1), "1", b"1", "1/1", (1,), ((1,),), ("1",), (True,)),
    *(("a", "b"), ("ab",), ("ab", ""), ("", "ab"), ("a", ("b",)), (("a",), "b"), (("a", "b"),), "ab"),
    *(-1, "-1", 10, (1, 0), ("1", "0"), Fraction(1, 2), (1, 2), "1/2", Fraction(-1, 2), "é", "e\u0301", "é".encode()),
    *("n", (None,), (None, None), "None"),
    encode(("a", "b")),
    (encode("a"), encode("b")),
    encode("a").decode(),
]


def decode(text):
    """Decode by the rules of the docstring, and return the value and the remaining bytes."""
    tag, size, rest = text[:1], int.from_bytes(text[1:9], "big"), text[9:]
    payload, rest = rest[:size], rest[size:]
    assert len(payload) == size
    if tag == b"t":
        parts = []
        while payload:
            part, payload = decode(payload)
            parts.append(part)
        return tuple(parts), rest
    read = {
        b"n": lambda _: None,
        b"b": lambda p: {b"1": True, b"0": False}[p],
        b"i": int,
        b"q": lambda p: Fraction(*map(int, p.split(b"/"))),
        b"s": bytes.decode,
        b"y": lambda p: p,
    }
    return read[tag](payload), rest


def confused(encoding):
    """Return the pairs of CONFUSABLE that *encoding* cannot distinguish."""
    return [(a, b) for a, b in itertools.combinations(CONFUSABLE, 2) if encoding(a) == encoding(b)]


def without_lengths(value):
    """A planted defect: tags without lengths."""
    return b"t" + b"".join(map(without_lengths, value)) if isinstance(value, tuple) else repr(value).encode()


def without_types(value):
    """A planted defect: lengths without types."""
    text = b"".join(map(without_types, value)) if isinstance(value, tuple) else str(value).encode()
    return len(text).to_bytes(8, "big") + text


@given(VALUES)
def test_an_encoding_can_be_decoded(value):
    """Injectivity: a decoder written from the docstring returns the value with its types and no remaining bytes."""
    back, rest = decode(encode(value))
    assert repr(back) == repr(value)
    assert rest == b""


def test_values_that_look_alike_are_encoded_differently():
    """True, 1, "1", b"1", (1,) and the like differ; encodings without lengths or without types confuse them."""
    assert confused(encode) == []
    assert ((("a",), "b"), (("a", "b"),)) in confused(without_lengths)
    assert (1, "1") in confused(without_types)


def test_the_encoding_is_the_documented_one():
    """A tag, eight bytes of length, and the payload."""
    assert encode(("é", -12)) == b"t" + bytes([0] * 7 + [23]) + b"s" + bytes([0] * 7 + [2]) + b"\xc3\xa9" + (
        b"i" + bytes([0] * 7 + [3]) + b"-12"
    )
    assert encode(Fraction(-6, 4)) == b"q" + bytes([0] * 7 + [4]) + b"-3/2"
    assert encode("\ud800") == b"s" + bytes([0] * 7 + [3]) + b"\xed\xa0\x80"  # half of a pair, as JSON can hold it


@pytest.mark.parametrize("value", [0.5, ["a"], {"a": 1}, np.int64(1), object(), 1j, bytearray(b"a"), ("a", (0.5,))])
def test_other_types_are_refused(value):
    """A float prints differently for equal numbers, and a list is mutable: TypeError, at any depth."""
    named = type(value[1][0] if isinstance(value, tuple) else value).__name__
    with pytest.raises(TypeError, match=f"a context holds text, bytes, whole numbers, fractions, not {named}"):
        encode(value)


@pytest.mark.parametrize("source", [SystemBits, lambda: KeyedBits(SECRET, CONTEXT)], ids=["system", "keyed"])
class TestEverySource:
    """Properties of both sources."""

    def test_it_returns_the_requested_number_of_64_bit_words(self, source):
        """The shape is (n,) of unsigned 64-bit integers, also for n = 0."""
        bits = source()
        for n in (0, 1, 2, 1000):
            words = bits.uint64(f"label {n}", n)
            assert words.shape == (n,)
            assert words.dtype == np.uint64

    def test_a_label_used_twice_raises(self, source):
        """No bits protect two values, even if the first draw was empty."""
        bits = source()
        bits.uint64("once", 2)
        bits.uint64("empty", 0)
        bits.uint64("other", 2)
        for label in ("once", "empty"):
            with pytest.raises(InvariantViolated, match=label):
                bits.uint64(label, 1)

    def test_all_64_bits_are_used_and_balanced(self, source):
        """Every bit is set in half of 40,000 words, within seven standard deviations."""
        words = source().uint64("balance", 40_000)
        for bit in range(64):
            ones = int((words >> np.uint64(bit) & np.uint64(1)).sum())
            assert abs(ones - 20_000) < 7 * 100

    def test_repr_shows_neither_secret_nor_context(self, source):
        """The repr has the name of the class only."""
        assert repr(source()) in ("SystemBits()", "KeyedBits(...)")


def test_two_system_draws_differ():
    """Another label or another object gives other bits."""
    bits = SystemBits()
    draws = {bits.uint64("a", 2).tobytes(), bits.uint64("b", 2).tobytes(), SystemBits().uint64("a", 2).tobytes()}
    assert len(draws) == 3


def test_equal_secret_context_and_label_give_equal_bits():
    """Earlier draws and the number of words do not change the bits."""
    one, other = KeyedBits(SECRET, CONTEXT), KeyedBits(bytearray(SECRET), tuple(CONTEXT))
    other.uint64("another label", 7)
    assert one.uint64("a", 50).tolist() == other.uint64("a", 100)[:50].tolist()


def test_another_secret_context_or_label_gives_other_bits():
    """Each of the three changes the stream."""
    draws = [
        KeyedBits(secret, context).uint64(label, 2).tobytes()
        for secret in (SECRET, SECRET + b"\x01", bytes(32))
        for context in (None, "a", ("a",), ("a", 1), ("a", True), b"a")
        for label in ("a", "b", "", "a/0/1")
    ]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize(("secret", "context", "label", "expected"), VECTORS, ids=[label for *_, label, _ in VECTORS])
def test_keyed_bits_are_the_known_answers(secret, context, label, expected):
    """Test vectors by openssl: HMAC-SHA256, AES-256-CTR, little-endian words; equal on every machine."""
    stream = bytes.fromhex(expected)
    words = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, 32, 8)]
    assert KeyedBits(secret, context).uint64(label, 4).tolist() == words


@given(st.binary(min_size=32, max_size=80), VALUES, st.text(st.characters(exclude_categories=["Cs"])))
def test_keyed_bits_are_aes_256_ctr_under_an_hmac_of_context_and_label(secret, context, label):
    """The construction written out, with the length-prefixed message spelled byte by byte."""

    def field(tag, payload):
        return tag + len(payload).to_bytes(8, "big") + payload

    message = field(b"t", field(b"s", b"discreet-bits-1") + field(b"y", encode(context)) + field(b"s", label.encode()))
    key = hmac.new(secret, message, hashlib.sha256).digest()
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(b"\x00" * 16)).encryptor()
    stream = encryptor.update(b"\x00" * 40) + encryptor.finalize()
    drawn = KeyedBits(secret, context).uint64(label, 5)
    assert drawn.tolist() == [int.from_bytes(stream[i : i + 8], "little") for i in range(0, 40, 8)]


@pytest.mark.parametrize("size", [0, 1, 16, 31])
def test_a_short_secret_is_refused(size):
    """A secret of fewer than 32 bytes is refused, and the message does not show it."""
    with pytest.raises(InputError, match="at least 32 bytes") as raised:
        KeyedBits(b"k" * size, None)
    assert "kkk" not in str(raised.value)


@pytest.mark.parametrize("parts", [[7], [1, 2, 4], [2, 5], [3, 0, 4]])
def test_words_drawn_in_parts_are_those_of_one_draw(parts):
    """Each part starts where the last one ended, also in the middle of a block of the cipher."""
    bits, start, found = KeyedBits(SECRET, CONTEXT), 0, []
    for n in parts:
        found += bits.uint64("race", n, start).tolist()
        start += n
    assert found == KeyedBits(SECRET, CONTEXT).uint64("race", 7).tolist()


@pytest.mark.parametrize("bits", [KeyedBits(SECRET, CONTEXT), SystemBits()], ids=["keyed", "system"])
def test_no_word_is_drawn_twice_and_none_is_skipped(bits):
    """A part that overlaps an earlier one, or leaves a gap, is refused."""
    with pytest.raises(InvariantViolated, match="drawn before"):
        bits.uint64("other", 2, 1)
    bits.uint64("x", 4)
    for start in (0, 3, 5):
        with pytest.raises(InvariantViolated, match="drawn before"):
            bits.uint64("x", 1, start)
    assert len(bits.uint64("x", 1, 4)) == 1


@pytest.mark.parametrize("parts", [[3 * 2**20 + 1], [2**20] * 3 + [1]], ids=["at once", "in blocks"])
def test_a_long_stream_never_repeats(parts):
    """Its words are the whole key stream of AES-256-CTR, with one counter from the first block to the last."""
    bits = KeyedBits(SECRET, CONTEXT)
    starts = itertools.accumulate(parts, initial=0)
    words = np.concatenate([bits.uint64("race", n, start) for n, start in zip(parts, starts, strict=False)])
    message = encode(("discreet-bits-1", encode(CONTEXT), "race"))
    key = hmac.digest(SECRET, message, hashlib.sha256)
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    assert words.tobytes() == cipher.update(bytes(8 * sum(parts)))
