"""The command line.

Results go to standard output, notes and progress to standard error. Exit codes: 0; 2 for invalid input and exhausted
budgets; 3 for failures of an engine or a service; 130 after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
from pathlib import Path
from typing import NoReturn

import click

from discreet._version import __version__
from discreet.cli.admin import admin
from discreet.cli.advise import advise, convert
from discreet.cli.catalog import catalog
from discreet.cli.disclose import disclose
from discreet.cli.ledger import ledger
from discreet.cli.mcp import mcp
from discreet.cli.query import budget, query, rehearse
from discreet.cli.release import plan, release, top
from discreet.cli.running import running
from discreet.cli.serve import init, key, serve
from discreet.errors import BudgetExceeded, DiscreetError, InputError

_INSTEAD = {
    "--mean": "--average",
    "--avg": "--average",
    "--k": "-k",
    "--estimate": "discreet plan",
    "--plan": "discreet plan",
    "discreet query --plan": "--estimate",
    "discreet admin import --dry-run": "the command without --apply",
}
"""What there is in place of options that other commands or programs have."""

INPUT = 2
ENGINE = 3
INTERRUPTED = 130


class _InOrder(click.Group):
    """Lists commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as in click
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="discreet")
def discreet() -> None:
    """Differentially private top-k and counts over items that need not be listed in advance.

    Every row of a table belongs to one user; a release reveals next to nothing about any single user.
    """


for _command in (
    top,
    release,
    plan,
    running,
    catalog,
    convert,
    advise,
    init,
    serve,
    query,
    rehearse,
    budget,
    mcp,
    admin,
    key,
    ledger,
    disclose,
):
    discreet.add_command(_command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: the command line; by default that of the process.
    """
    warnings.showwarning = _show_warning
    _avoid_slow_sort(Path("/proc/cpuinfo"))
    try:
        sys.exit(discreet.main(arguments, prog_name="discreet", standalone_mode=False) or 0)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "discreet"
        if isinstance(error, click.NoSuchOption):
            name = error.option_name
            if instead := _INSTEAD.get(f"{command} {name}") or _INSTEAD.get(name):
                error = click.UsageError(f"There is no option {name}: use {instead}")
        _fail(f"{error.format_message()} (see {command} --help)", INPUT)
    except (InputError, BudgetExceeded) as error:
        _fail(str(error), INPUT)
    except (OverflowError, ZeroDivisionError):
        _fail("a number is too large or too small to compute with", INPUT)
    except (OSError, UnicodeError) as error:
        _fail(f"the result cannot be written: {getattr(error, 'strerror', None) or 'wrong characters'}", INPUT)
    except DiscreetError as error:
        _fail(str(error), ENGINE)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; nothing was written", INTERRUPTED)
    finally:
        gc.freeze()  # the search for cycles among all objects, before the process ends, would take 50 ms


def _avoid_slow_sort(processors: Path) -> None:
    """Let numpy sort without AVX-512 on AMD's Zen 4, the only processors of family 25 that have it: it is slow there.

    Args:
        processors: the file in which Linux describes them; other systems have none.
    """
    if "numpy" in sys.modules or {"NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"} & os.environ.keys():
        return
    with contextlib.suppress(OSError, ImportError), processors.open() as file:
        first = file.read(4096)
        if "AuthenticAMD\ncpu family\t: 25\n" not in first or " avx512f " not in first:
            return
        from importlib.metadata import distribution

        # A numpy that was built for this processor needs these instructions, and could not be imported without them.
        if "manylinux" in (distribution("numpy").read_text("WHEEL") or ""):
            os.environ["NPY_DISABLE_CPU_FEATURES"] = "X86_V4 AVX512_ICL"


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"discreet: {message}", err=True)
    sys.exit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning of the library as a note."""
    click.echo(f"note: {message}", err=True)
