"""Kinds of settings of the service: each says what is wrong with a value in the words of the one who writes it.

Paths begin at the folder of the settings file, which is the context that settings are read in.
"""

import ipaddress
import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from discreet.catalog.settings import Number, Text, mistake, secret_in

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def _path(value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - whatever the file holds
    if not isinstance(value, str | Path):
        raise mistake("must be text in quotes")
    if not str(value).strip() or "\0" in str(value):
        raise mistake("must be the path of a file")
    return Path(value) if info.context is None else info.context / value


File = Annotated[Path, BeforeValidator(_path)]


def _between(low: Fraction, high: Fraction, said: str) -> AfterValidator:
    def check(value: Fraction) -> Fraction:
        if not low <= value <= high:
            raise mistake(f"must be from {said}")
        return value

    return AfterValidator(check)


def _epsilon(value: Any) -> float:  # noqa: ANN401 - whatever the file holds
    if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
        raise mistake("must be a number")
    if not math.isfinite(value) or not 1e-6 <= value <= 100:
        raise mistake("must be from 0.000001 to 100")
    return float(value)


Epsilon = Annotated[float, BeforeValidator(_epsilon)]
EpsilonPer = Annotated[Number, _between(Fraction(1, 10**6), Fraction(100), "0.000001 to 100")]
Delta = Annotated[Number, _between(Fraction(1, 10**18), Fraction(1, 10), "1e-18 to 0.1")]


def _proxy(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise mistake("must be an address such as 10.0.0.5 or a network such as 10.0.0.0/8") from None
    return text


def _store(url: str, info: ValidationInfo) -> str:
    kind, _, rest = url.partition(":")
    if kind == "sqlite" and rest.strip() and not rest.startswith("//"):
        return url if info.context is None else f"sqlite:{info.context / rest}"
    if kind not in {"postgresql", "postgres"} or not rest.startswith("//") or secret_in(url):
        raise mistake(
            "must be sqlite:FILE, or a URL without a password such as postgresql://discreet@db:5432/budgets; "
            "password_env names the environment variable that holds it"
        )
    return url


def _issuer(url: str) -> str:
    parts = urlsplit("" if secret_in(url) else url)
    near = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (parts.scheme == "https" or near) or not parts.hostname or parts.query or parts.fragment:
        raise mistake("must be the https URL of an issuer, such as https://login.example.org/realms/work")
    return url


def _centre(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise mistake("must have up to 64 letters a to z, digits, dots, dashes and underscores")
    return name


def _peer(url: str) -> str:
    parts = urlsplit("" if secret_in(url) else url)
    near = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (parts.scheme == "https" or near) or not parts.hostname or parts.query or parts.fragment:
        raise mistake("must be an https URL, such as https://discreet.dublin.example.org")
    return url.rstrip("/")


def _endpoint(url: str) -> str:
    parts = urlsplit("" if secret_in(url) else url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise mistake("must be a URL without a password, such as http://collector:4318/v1/traces")
    return url


Proxy = Annotated[str, AfterValidator(_proxy)]
StoreUrl = Annotated[Text, AfterValidator(_store)]
IssuerUrl = Annotated[Text, AfterValidator(_issuer)]
CentreName = Annotated[Text, AfterValidator(_centre)]
PeerUrl = Annotated[Text, AfterValidator(_peer)]
EndpointUrl = Annotated[Text, AfterValidator(_endpoint)]
