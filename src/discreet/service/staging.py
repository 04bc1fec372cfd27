"""Several files that come to be together: all of them or none."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def staged(folder: Path, names: Sequence[str], *, aside: str | None) -> Iterator[Path]:
    """A hidden folder to write files into, which are moved to *folder* when the context ends well.

    Args:
        folder: where they are to be; it is made if it is missing.
        names: of all files that may come to be, in the order in which they are moved. What was not written is left out.
        aside: the name of a folder in *folder* that files which are there already are moved into; None if there must
            be none.

    Raises:
        InputError: a file is there already, or cannot be written.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if aside is None:
            refuse_existing(folder, names)
        stage = Path(tempfile.mkdtemp(dir=folder, prefix=".discreet-"))
    except OSError as error:
        raise InputError(f"{str(folder)!r} cannot be written: {(error.strerror or 'no access').lower()}") from None
    try:
        yield stage
        _move(stage, folder, names, None if aside is None else folder / aside)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):  # somebody else put something there
                folder.rmdir()
        raise
    shutil.rmtree(stage, ignore_errors=True)


def refuse_existing(folder: Path, names: Sequence[str]) -> None:
    """Raise if one of the files is there.

    Raises:
        InputError: it is.
    """
    there = [name for name in names if os.path.lexists(folder / name)]
    if there:
        raise InputError(f"{', '.join(map(repr, there))} in {str(folder)!r} would be replaced; --force puts it aside")


def _move(stage: Path, folder: Path, names: Sequence[str], aside: Path | None) -> None:
    """Move what was staged, or leave everything as it was."""
    done: list[tuple[Path, Path]] = []
    try:
        if aside is None:
            refuse_existing(folder, names)
        else:
            there = [name for name in names if os.path.lexists(folder / name)]
            if there:
                aside.mkdir()
            for name in there:
                done.append(_moved(folder / name, aside / name))
        for name in names:
            if (stage / name).exists():
                done.append(_moved(stage / name, folder / name))
    except BaseException as error:
        for source, target in reversed(done):
            target.rename(source)
        if aside is not None and aside.is_dir() and not any(aside.iterdir()):
            aside.rmdir()
        if isinstance(error, OSError):
            wrong = (error.strerror or "no access").lower()
            raise InputError(f"{str(folder)!r} cannot be written: {wrong}") from None
        raise


def _moved(source: Path, target: Path) -> tuple[Path, Path]:
    source.rename(target)
    return source, target
