"""Write releases to the terminal, to files and as plots, and show progress."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from discreet.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from discreet.release import Release


_FORMATS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".txt": "table", "": "table"}


@dataclass(frozen=True, slots=True)
class Output:
    """The format and files to which a release is written.

    Args:
        form: table, csv, json or parquet.
        force: True to overwrite.
    """

    form: str
    output: Path | None
    plot: Path | None
    force: bool
    quiet: bool

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """Return the output for the options of a command; raise `InputError` for an unknown ending."""
        output, plot = (None if options[name] is None else Path(options[name]) for name in ("output", "plot"))
        form = options["form"] or _FORMATS.get("" if output is None else output.suffix.lower())
        if form is None:
            raise InputError(
                f"the ending of {str(output)!r} chooses no format; end it in .csv, .json, .parquet or .txt"
            )
        return cls(form, output, plot, options["force"], options["quiet"])

    def check(self, *, counts: bool) -> None:
        """Check, before any data is read, that the output and the plot can be written.

        Args:
            counts: True if there will be counts to plot.

        Raises:
            InputError: a file exists, cannot be written, or has the wrong ending; or matplotlib is missing.
        """
        if self.form == "parquet" and self.output is None:
            raise InputError("parquet is not for terminals; name a file with --output")
        if self.plot is not None:
            if not counts:
                raise InputError("labels without counts cannot be plotted")
            check_plot(self.plot, force=self.force)
        if self.output is not None:
            check_writable(self.output, force=self.force)
        if self.output is not None and self.plot is not None and self.output.resolve() == self.plot.resolve():
            raise InputError("the output and the plot cannot be the same file")

    def write(self, release: Release) -> None:
        """Write the release, the plot and the notes."""
        if self.output is None:
            click.echo(self._text(release), nl=False)
        elif self.form == "parquet":
            release.to_parquet(self.output)
        else:
            from discreet.release.files import write_text

            write_text(self._text(release), self.output)
        if self.plot is not None:
            release.plot(self.plot)
        if not self.quiet:
            click.echo("\n".join(notes(release)), err=True)

    def write_rows(self, table: pa.Table, no_interval: tuple[str, ...] = ()) -> None:
        """Write the rows of a statement; CSV and JSON mark the columns of noisy numbers without an interval."""
        from discreet.release.files import write_atomically, write_text
        from discreet.release.postprocess import with_no_interval
        from discreet.release.result import plain_value, python_values
        from discreet.release.tables import text_table
        from discreet.wire.document import write_table

        if self.form in {"csv", "json"}:
            table = with_no_interval(table, no_interval)
        if self.form in {"csv", "parquet"}:
            content = write_table(table, "csv" if self.form == "csv" else "parquet")
            if self.output is None:
                click.echo(content, nl=False)
            else:
                write_atomically(self.output, lambda part: part.write_bytes(content))
            return
        values = [map(plain_value, python_values(column)) for column in table.columns]
        rows = list(zip(*values, strict=True))
        text = text_table(table.column_names, [["" if cell is None else str(cell) for cell in row] for row in rows])
        if self.form == "json":
            named = [dict(zip(table.column_names, row, strict=True)) for row in rows]
            text = json.dumps(named, ensure_ascii=False, indent=2) + "\n"
        if self.output is None:
            click.echo(text, nl=False)
        else:
            write_text(text, self.output)

    def _text(self, release: Release) -> str:
        match self.form:
            case "csv":
                return release.to_csv()
            case "json":
                return release.to_json()
            case _:
                return str(release)


def check_plot(path: Path, *, force: bool) -> None:
    """Check that a plot can be written to a file.

    Raises:
        InputError: as in `check_writable`; or the ending is no format of plots, or matplotlib is missing.
    """
    from discreet.release.files import require
    from discreet.release.plot import check_ending

    check_ending(path)
    require("matplotlib", "--plot")
    check_writable(path, force=force)


def check_writable(path: Path, *, force: bool) -> None:
    """Check that a file can be written.

    Raises:
        InputError: the file exists (unless *force*) or is not a regular file, or its folder is missing or not writable.
    """
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder; name a file")
    if os.path.lexists(path) and not path.is_file():
        raise InputError(f"{str(path)!r} is not a regular file; name one that is, or one that does not exist")
    if path.exists() and not force:
        raise InputError(f"{str(path)!r} exists; --force overwrites it")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")
    try:
        # Permissions alone do not show that a file system is read-only or that root may write.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError:
        raise InputError(f"the folder {str(path.parent)!r} does not allow writing {path.name!r}") from None


def notes(release: Release) -> list[str]:
    """Return the notes below a release; the last says what was promised, and what of it was spent."""
    guarantee = release.guarantee
    k = release.query.k
    share = f"{len(release)}" if k is None else f"{len(release)} of {k}"
    segment_columns = release.query.request.each
    items = "item" if share == "1" else "items"
    if segment_columns and k is not None:
        share = f"{len(release)}"
        items = f"items, at most {k} of each {' and '.join(segment_columns)},"
    lines = [f"{share} {items} by {release.mechanism} in {release.seconds:.2f} s"]
    if release.why is not None:
        chose = "" if release.chosen is None else f"{release.mechanism} chose {release.chosen}: "
        lines.append(f"{chose}{release.why}")
    if release.shared_error is not None:
        lines.append(
            f"a part of the noise is the same in all numbers (standard error {release.shared_error:.3g}): differences "
            "are more precise for it, and a total of many numbers is less precise than a query of its own"
        )
    if k is not None and not release.complete:
        lines.append("others, if there are any, do not stand out enough from the noise; a larger epsilon may find more")
    kind = "computational differential privacy" if guarantee.computational else "differential privacy"
    promised = f"epsilon = {guarantee.epsilon:.4g} and delta = {guarantee.delta:.3g}"
    spent = f"epsilon = {release.spent_epsilon:.4g}" if release.spent_epsilon < guarantee.epsilon else "all"
    lines.append(
        f"this answer keeps {kind} with {promised} for every {guarantee.unit}; it spent {spent} of that "
        f"({release.charged})"
    )
    return lines


class Progress:
    """A progress bar on standard error, shown after a second; call it with the finished share, from 0 to 1."""

    def __init__(self, label: str, *, shown: bool) -> None:
        self._label = label
        self._shown = shown and sys.stderr.isatty()
        self._start = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, share: float) -> None:
        """Show that *share* of the work is done."""
        if not self._shown or time.monotonic() - self._start < 1:  # most queries end before a bar is of use
            return
        if self._bar is None:
            self._bar = click.progressbar(length=1000, label=self._label, file=sys.stderr)
            self._bar.__enter__()
        self._bar.update(round(1000 * share) - self._bar.pos)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)
