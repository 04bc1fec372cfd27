"""Footers of Parquet files as no writer that installs today would write them: parsed, changed and written again.

A footer is a struct of Thrift's compact protocol. A struct is read as a dict of (type, value) by the number of a field
in parquet.thrift, and a list as (type of its elements, values).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Struct = dict[int, tuple[int, Any]]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT = *range(1, 11), 12
SCHEMA, ROW_GROUPS, CREATED_BY, COLUMN_ORDERS = 2, 4, 6, 7
CONVERTED_TYPE, LOGICAL_TYPE = 6, 10
STATISTICS = 12
OLD_MAX, OLD_MIN, NULL_COUNT, MAX, MIN = 1, 2, 3, 5, 6
_OLD_WRITER = b"parquet-mr version 1.8.3 (build aef7230e114214b7cc962a8f3fc5aeed6ce80828)"


def change(path: Path, edit: Callable[[Struct], None]) -> None:
    """Apply *edit* to the footer of a file."""
    raw = path.read_bytes()
    start = len(raw) - 8 - struct.unpack("<I", raw[-8:-4])[0]
    footer = _Reader(raw, start).value(STRUCT)
    edit(footer)
    written = _written(STRUCT, footer)
    path.write_bytes(raw[:start] + written + struct.pack("<I", len(written)) + b"PAR1")


def chunks(footer: Struct) -> Iterator[tuple[str, Struct]]:
    """Yield the column chunks of all row groups: the path of the column, and its metadata."""
    for group in footer[ROW_GROUPS][1][1]:
        for chunk in group[1][1][1]:
            metadata = chunk[3][1]
            yield b".".join(metadata[3][1][1]).decode(), metadata


def make_old(path: Path) -> None:
    """Give a file the statistics that parquet-mr wrote before version 1.10.

    They are the fields `min` and `max`, in the order of signed bytes for text and of signed integers for unsigned ones.
    """
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(n) for n in range(file.num_row_groups)]

    def edit(footer: Struct) -> None:
        footer[CREATED_BY] = (BINARY, _OLD_WRITER)
        footer.pop(COLUMN_ORDERS, None)
        of_groups = iter([group for group in groups for _ in group.column_names])
        for name, metadata in chunks(footer):
            held = [value for value in next(of_groups).column(name).to_pylist() if value is not None]
            if not held or metadata.get(STATISTICS) is None:
                continue
            old = {field: metadata[STATISTICS][1][field] for field in (NULL_COUNT,) if field in metadata[STATISTICS][1]}
            if isinstance(held[0], str):
                encoded = sorted((value.encode() for value in held), key=lambda text: [(b ^ 128) for b in text])
                old |= {OLD_MIN: (BINARY, encoded[0]), OLD_MAX: (BINARY, encoded[-1])}
            elif MIN in metadata[STATISTICS][1]:
                old |= {OLD_MIN: metadata[STATISTICS][1][MIN], OLD_MAX: metadata[STATISTICS][1][MAX]}
            metadata[STATISTICS] = (STRUCT, old)

    change(path, edit)


class _Reader:
    def __init__(self, raw: bytes, place: int) -> None:
        self._raw = raw
        self._place = place

    def value(self, kind: int) -> Any:
        match kind:
            case 1 | 2:
                return None
            case 3:
                return self._bytes(1)[0]
            case 4 | 5 | 6:
                number = self._number()
                return (number >> 1) ^ -(number & 1)
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._number())
            case 9 | 10:
                head = self._bytes(1)[0]
                size = self._number() if head >> 4 == 15 else head >> 4
                element = head & 15
                # An element that is a boolean takes a byte; as a field it is in the header.
                return element, [self.value(BYTE if element in {TRUE, FALSE} else element) for _ in range(size)]
            case 12:
                return self._struct()
        raise ValueError(kind)

    def _struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._bytes(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.value(I16)
            fields[number] = (head & 15, self.value(head & 15))
        return fields

    def _bytes(self, size: int) -> bytes:
        self._place += size
        return self._raw[self._place - size : self._place]

    def _number(self) -> int:
        number = shift = 0
        while True:
            byte = self._bytes(1)[0]
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number


def _written(kind: int, value: Any) -> bytes:
    match kind:
        case 1 | 2:
            return b""
        case 3:
            return bytes([value])
        case 4 | 5 | 6:
            return _varint(value << 1 if value >= 0 else (-value << 1) - 1)
        case 7:
            return bytes(value)
        case 8:
            return _varint(len(value)) + value
        case 9 | 10:
            element, values = value
            written = b"".join(_written(BYTE if element in {TRUE, FALSE} else element, each) for each in values)
            return (
                bytes([min(len(values), 15) << 4 | element])
                + (_varint(len(values)) if len(values) >= 15 else b"")
                + written
            )
        case 12:
            fields = b"".join(
                bytes([type_]) + _written(I16, number) + _written(type_, held)
                for number, (type_, held) in sorted(value.items())
            )
            return fields + b"\0"
    raise ValueError(kind)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])
