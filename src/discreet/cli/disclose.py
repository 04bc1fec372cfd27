"""`discreet disclose`: what is published about the privacy of an account, a dataset or an answer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode

import click

from discreet.cli.admin import request_json
from discreet.cli.output import check_writable
from discreet.cli.serve import require_service
from discreet.errors import InputError, file_error

if TYPE_CHECKING:
    from discreet.wire.disclosure import Disclosure

_FORMS: dict[str, Literal["html", "json", "yaml"]] = {".html": "html", ".htm": "html", ".json": "json", ".yaml": "yaml"}


@click.command()
@click.argument("answer", required=False)
@click.option("--account", metavar="NAME", help="An account without parents.  [default: the only one]")
@click.option("--dataset", metavar="NAME", help="A dataset of the service, instead of an account.")
@click.option("--url", envvar="DISCREET_URL", show_envvar=True, help="URL of the service.")
@click.option("--key-file", metavar="FILE", help="File with an officer's key.  [default: the variable DISCREET_KEY]")
@click.option("--format", "form", type=click.Choice(["html", "json", "yaml"]), help="[default: json]")
@click.option("--output", metavar="FILE", help="Write to FILE; .html, .json or .yaml chooses the format.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def disclose(
    answer: str | None,
    account: str | None,
    dataset: str | None,
    url: str | None,
    key_file: str | None,
    form: Literal["html", "json", "yaml"] | None,
    output: str | None,
    *,
    force: bool,
) -> None:
    """Write a disclosure for auditors and registers.

    Of an account or a dataset of a service: unit, guarantee, period, mechanisms, composition, exclusions, access
    control and known limits, on one page that prints well, as JSON, or as YAML for the registry of deployments. Or of
    ANSWER, the JSON file of a single answer.
    """
    require_service()
    if answer is not None and (account is not None or dataset is not None):
        raise InputError("a disclosure is of the answer in a file, or of an account or a dataset; name one of them")
    if output is not None:
        form = form or _FORMS.get(Path(output).suffix.lower())
        if form is None:
            raise InputError("a disclosure is written to a file that ends in .html, .json or .yaml; or give --format")
        check_writable(Path(output), force=force)
    disclosure = _of_answer(Path(answer)) if answer else _of_service(url, key_file, account, dataset)

    from discreet.service.doors.pages.disclosure import DISCLOSURE_FORMS

    text = DISCLOSURE_FORMS[form or "json"](disclosure)
    if output is None:
        click.echo(text, nl=False)
        return
    from discreet.release.files import write_text

    write_text(text, output)


def _of_answer(path: Path) -> Disclosure:
    from discreet.wire.disclosure import release_sheet

    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"there is no file {str(path)!r} with an answer; an account is named by --account, a dataset by --dataset"
        ) from None
    except OSError as error:
        raise file_error(path, "read", error) from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InputError(f"{str(path)!r} is not the JSON of an answer")
    return release_sheet(document, datetime.now(UTC).isoformat(timespec="seconds"))


def _of_service(url: str | None, key_file: str | None, account: str | None, dataset: str | None) -> Disclosure:
    from discreet.wire.disclosure import Disclosure

    if url is None:
        raise InputError("name the JSON file of an answer; or give --url or DISCREET_URL, the service of the account")
    names = {name: value for name, value in (("account", account), ("dataset", dataset)) if value is not None}
    response = request_json({"url": url, "key_file": key_file}, "GET", f"disclosure?{urlencode(names)}")
    return Disclosure.model_validate(response)
