"""The settings of the service, read from a TOML file: `discreet.toml`.

The file holds no secrets: it names files or environment variables that do (`discreet.service.stores`).
"""

import ipaddress
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from discreet.catalog.fields import Number, SettingsTable, Text, Variable, invalid, refuse, secret_in
from discreet.catalog.loader import Finding, TomlError, read_toml, schema_of, validation_errors
from discreet.errors import InputError
from discreet.query.pricing import PRESETS, PerUnit
from discreet.secrets import is_local
from discreet.wire.administration import Role, StoreKind
from discreet.wire.disclosure import Deployment


def _path(value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - any TOML value
    if not isinstance(value, str | Path):
        raise invalid("must be text in quotes")
    if not str(value).strip() or "\0" in str(value):
        raise invalid("must be the path of a file")
    return Path(value) if info.context is None else info.context / value


File = Annotated[Path, BeforeValidator(_path)]


def _epsilon(value: Any) -> float:  # noqa: ANN401 - any TOML value
    if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
        raise invalid("must be a number")
    if not math.isfinite(value) or not 1e-6 <= value <= 100:
        raise invalid("must be from 0.000001 to 100")
    return float(value)


Epsilon = Annotated[float, BeforeValidator(_epsilon)]
EpsilonPer = Annotated[
    Number, refuse(lambda value: not Fraction(1, 10**6) <= value <= 100, "must be from 0.000001 to 100")
]
Delta = Annotated[
    Number, refuse(lambda value: not Fraction(1, 10**18) <= value <= Fraction(1, 10), "must be from 1e-18 to 0.1")
]


def _proxy(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise invalid("must be an address such as 10.0.0.5 or a network such as 10.0.0.0/8") from None
    return text


def _store(url: str, info: ValidationInfo) -> str:
    kind, _, rest = url.partition(":")
    if kind == "sqlite" and rest.strip() and not rest.startswith("//"):
        return url if info.context is None else f"sqlite:{info.context / rest}"
    if kind not in {"postgresql", "postgres"} or not rest.startswith("//") or secret_in(url):
        raise invalid(
            "must be sqlite:FILE, or a URL without a password such as postgresql://discreet@db:5432/budgets; "
            "password_env names the environment variable that holds it"
        )
    return url


def _is_insecure(url: str) -> bool:
    """Return False if a URL is https, or http on this machine, without a password, a query or a fragment."""
    parts = urlsplit("" if secret_in(url) else url)
    near = parts.scheme == "http" and is_local(parts.hostname)
    return not (parts.scheme == "https" or near) or not parts.hostname or bool(parts.query or parts.fragment)


Proxy = Annotated[str, AfterValidator(_proxy)]
StoreUrl = Annotated[Text, AfterValidator(_store)]
IssuerUrl = Annotated[
    Text,
    refuse(_is_insecure, "must be the https URL of an issuer, such as https://login.example.org/realms/work"),
]
CentreName = Annotated[
    Text,
    refuse(
        lambda name: not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name),
        "must have up to 64 letters a to z, digits, dots, dashes and underscores",
    ),
]
PeerUrl = Annotated[
    Text,
    refuse(_is_insecure, "must be an https URL, such as https://discreet.dublin.example.org"),
    AfterValidator(lambda url: url.rstrip("/")),
]
EndpointUrl = Annotated[
    Text,
    refuse(
        lambda url: secret_in(url) or urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname,
        "must be a URL without a password, such as http://collector:4318/v1/traces",
    ),
]


_WAYS = "needs epsilon and delta, or epsilon_per, delta_per and information, or a preset, and no two of these"


class ServiceSettings(SettingsTable):
    """The address of the service, and its limits."""

    catalog: File = Field(
        default=Path("catalog.toml"), validate_default=True, description="The catalog of what analysts may query."
    )
    host: Text = Field(
        default="127.0.0.1", description="Address to listen at; by default only this machine can connect."
    )
    port: int = Field(default=8080, ge=0, le=65_535, description="Port to listen at; 0 for any free one.")
    metrics_port: int | None = Field(
        default=None, ge=1, le=65_535, description="A separate port for /metrics; by default it is served with the API."
    )
    workers: int = Field(default=1, ge=1, le=64, description="Processes; more than one need a PostgreSQL store.")
    max_body_bytes: int = Field(
        default=65_536, ge=1_024, le=16_777_216, description="Maximum size of a request's body, in bytes."
    )
    max_concurrent_queries: int = Field(
        default=16, ge=1, le=1_000, description="Maximum number of queries at once; half of them for one account."
    )
    max_dataset_memory: int | None = Field(
        default=None,
        ge=64,
        le=67_108_864,
        description="MiB that DuckDB takes for all queries of a dataset before it writes to disk; "
        "by default 80 % of the machine's memory.",
    )
    max_statement_workers: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Maximum number of processes that compute statements from answers, of up to 300 MB each; half of "
        "them for one account.",
    )
    requests_per_minute: int = Field(
        default=600, ge=0, le=1_000_000, description="Maximum number of requests per key and minute; 0 for no limit."
    )
    release_grid_ms: int = Field(
        default=0,
        ge=0,
        le=60_000,
        description="Send responses only at multiples of this many milliseconds; 0 sends them at once.",
    )
    trino: bool = Field(
        default=True, description="Answer clients of Trino, such as JDBC and Superset, at /v1/statement."
    )
    shutdown_seconds: int = Field(
        default=30,
        ge=0,
        le=3_600,
        description="Seconds that running queries have to finish when the service is stopped.",
    )
    trusted_proxies: tuple[Proxy, ...] = Field(
        default=(), strict=False, description="Addresses of proxies whose headers about the client are trusted."
    )
    hosts: tuple[Text, ...] = Field(
        default=(),
        strict=False,
        description="Names by which other machines reach the service, without ports; clients of Trino get addresses of "
        "pages with one of these, or of this machine.",
    )
    tls_certificate: File | None = Field(
        default=None, description="The certificate chain in PEM, for HTTPS without a proxy; needs tls_key_file."
    )
    tls_key_file: File | None = Field(
        default=None, description="The private key of the certificate, in PEM; closed to others."
    )
    without_proxy: bool = Field(
        default=False,
        description="Listen outside of this machine without a proxy: without TLS, and without limits of connections, "
        "headers and slow clients.",
    )

    @model_validator(mode="after")
    def _check(self) -> "ServiceSettings":
        if (self.tls_certificate is None) != (self.tls_key_file is None):
            raise invalid("needs both tls_certificate and tls_key_file, or neither")
        if not (is_local(self.host) or self.trusted_proxies or self.without_proxy):
            raise invalid(
                "host lets other machines connect, so a proxy with TLS must limit what clients do: name its address in "
                "trusted_proxies; or set without_proxy = true (--without-proxy), and keys travel unencrypted, and "
                "nothing limits connections, headers and slow clients"
            )
        return self


class Store(SettingsTable):
    """The store of budgets, releases and the ledger."""

    url: StoreUrl = Field(
        default="sqlite:budget.db",
        validate_default=True,
        description="sqlite:FILE for one process, postgresql://... for several; never with a password.",
    )
    password_env: Variable | None = Field(
        default=None, description="The environment variable that holds the password of the database."
    )

    @property
    def file(self) -> Path | None:
        """Return the file of an SQLite store; None for PostgreSQL."""
        return Path(self.url.removeprefix("sqlite:")) if self.url.startswith("sqlite:") else None

    @property
    def kind(self) -> StoreKind:
        """Return the kind of the store."""
        return "postgresql" if self.file is None else "sqlite"


class NoiseSettings(SettingsTable):
    """The secret that noise is derived from; with it the noise can be removed."""

    key_file: File | None = Field(
        default=None, description="The file with the secret, at least 32 bytes; closed to others than owner and group."
    )
    key_env: Variable | None = Field(
        default=None,
        description="The environment variable that holds the secret in hexadecimal digits, instead of key_file.",
    )

    @model_validator(mode="after")
    def _check(self) -> "NoiseSettings":
        if (self.key_file is None) == (self.key_env is None):
            raise invalid("needs either key_file or key_env" + (", not both" if self.key_file else ""))
        return self


class Checkpoints(SettingsTable):
    """The file of signed checkpoints, by which an older copy of the store is recognized."""

    file: File = Field(description="The file of checkpoints; keep it on another disk than the store.")
    signing_key_file: File = Field(description="The file with the 32 bytes of the signing key.")


class Defaults(SettingsTable):
    """Privacy parameters of queries that state none: for a whole answer, or for each unit."""

    preset: Literal["linkedin"] | None = Field(default=None, description="The name of published privacy parameters.")
    epsilon: Epsilon | None = Field(default=None, description="Epsilon of a whole answer.")
    delta: Delta | None = Field(default=None, description="Delta of a whole answer.")
    epsilon_per: EpsilonPer | None = Field(
        default=None, description="Epsilon of one unit of information, instead of epsilon and delta."
    )
    delta_per: Delta | None = Field(
        default=None, description="Delta of one call over an unknown domain; needs epsilon_per."
    )
    information: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Maximum number of units of an answer without LIMIT; needs epsilon_per.",
    )

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, table: Any) -> Any:  # noqa: ANN401 - any TOML value
        if not isinstance(table, dict):
            return table
        names = set(table) & {"preset", "epsilon", "delta", "epsilon_per", "delta_per", "information"}
        if names not in ({"preset"}, {"epsilon", "delta"}, {"epsilon_per", "delta_per", "information"}):
            raise invalid(_WAYS)
        per = PRESETS.get(table["preset"]) if isinstance(table.get("preset"), str) else None
        if per is None:
            return table
        exactly = {"epsilon_per": per.epsilon_per, "delta_per": per.delta_per}
        as_toml = {name: Decimal(value.numerator) / value.denominator for name, value in exactly.items()}
        return {**table, **as_toml, "information": per.information}

    @model_validator(mode="after")
    def _check(self) -> "Defaults":
        try:
            self.per  # noqa: B018 - evaluated for its errors
        except InputError as error:
            raise invalid(str(error)) from None
        return self

    @property
    def per(self) -> PerUnit | None:
        """Return the price of a unit, or None if the default price is an epsilon and a delta."""
        if self.epsilon_per is None or self.delta_per is None or self.information is None:
            return None
        return PerUnit(self.epsilon_per, self.delta_per, self.information)


class Limits(SettingsTable):
    """Limits of one query; the limits of its dataset apply, too."""

    max_k: int = Field(default=10_000, ge=1, le=10_000_000, description="The largest k of a top k.")
    max_head_limit: int = Field(default=1_000_000, ge=1, le=10_000_000, description="The largest head limit.")
    max_epsilon: Epsilon = Field(default=10.0, description="The largest epsilon.")
    max_delta: Delta = Field(
        default=Fraction(1, 10**6),
        description="The largest delta; one query must not take much of the delta that accounts share.",
        json_schema_extra={"default": 1e-6},
    )


class Oidc(SettingsTable):
    """An OpenID issuer whose tokens are accepted beside API keys."""

    issuer: IssuerUrl = Field(description="URL of the issuer, as in the claim iss of its tokens.")
    audience: Text = Field(description="The value that the claim aud of a token must hold.")
    account_claim: Text = Field(
        default="sub", description="The claim that names the account of an analyst; a.b is looked up in nested objects."
    )
    roles_claim: Text | None = Field(
        default=None, description="The claim that lists roles; without it every token has the role analyst."
    )
    roles: Annotated[Mapping[Text, Role], AfterValidator(MappingProxyType)] = Field(
        default_factory=dict,
        validate_default=True,
        description="Roles of this service, by the issuer's names for them; other names are ignored.",
    )
    client_id: Text | None = Field(
        default=None, description="The client id for logins in a browser; without it users paste a token."
    )
    client_secret_env: Variable | None = Field(
        default=None,
        description="The environment variable that holds the client's secret; without it the client is public.",
    )
    scope: Text = Field(
        default="openid", description="Scopes requested at login, separated by spaces; must include openid."
    )

    @model_validator(mode="after")
    def _check(self) -> "Oidc":
        if self.client_id is None and self.client_secret_env is not None:
            raise invalid("client_secret_env needs client_id")
        if "openid" not in self.scope.split():
            raise invalid("scope must have openid among its words, such as openid groups")
        if (self.roles_claim is None) != (not self.roles):
            raise invalid("needs roles_claim and roles, or neither: then every token has the role analyst")
        return self


class DataCentre(SettingsTable):
    """This data centre, and the other data centres that share its budgets."""

    name: CentreName = Field(description="Name of this data centre; must never change.")
    peers: Annotated[
        Mapping[CentreName, PeerUrl],
        AfterValidator(MappingProxyType),
    ] = Field(min_length=1, description="URLs of the services of the other data centres, by name.")
    key_file: File | None = Field(
        default=None, description="The file with the key that all data centres share; an older key may follow it."
    )
    key_env: Variable | None = Field(
        default=None, description="The environment variable that holds the key, instead of key_file."
    )
    ca_file: File | None = Field(
        default=None, description="CA certificates for TLS to the peers, if no public authority signed theirs."
    )

    @model_validator(mode="after")
    def _check(self) -> "DataCentre":
        if (self.key_file is None) == (self.key_env is None):
            raise invalid("needs either key_file or key_env" + (", not both" if self.key_file else ""))
        if self.name in self.peers:
            raise invalid("peers must not name this data centre itself")
        return self


class Mcp(SettingsTable):
    """Tools for agents at /mcp, over the Model Context Protocol; without this section there are none."""

    max_unasked_share: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="The largest share of the remaining budget that an agent's query may take without the consent of "
        "a person: 0 asks about each query, 1 about none.",
    )


class Logs(SettingsTable):
    """The log on standard output."""

    format: Literal["json", "console"] = Field(
        default="json", description="json for JSON lines, console for aligned columns."
    )


class Traces(SettingsTable):
    """The collector of traces."""

    endpoint: EndpointUrl = Field(description="URL of the OTLP collector, over HTTP.")


class Settings(SettingsTable):
    """All settings of the service."""

    service: ServiceSettings = Field(default_factory=ServiceSettings, description="Address and limits of the service.")
    store: Store = Field(default_factory=Store, description="Where budgets, releases and the ledger are kept.")
    noise: NoiseSettings = Field(description="The secret that noise is derived from.")
    checkpoints: Checkpoints | None = Field(default=None, description="Signed checkpoints of the ledger.")
    defaults: Defaults = Field(
        default_factory=lambda: Defaults.model_validate({"epsilon": 1, "delta": Decimal("1e-8")}),
        description="Privacy parameters of queries that state none.",
    )
    limits: Limits = Field(default_factory=Limits, description="Limits of one query.")
    oidc: Oidc | None = Field(default=None, description="An OpenID issuer to trust.")
    datacentre: DataCentre | None = Field(default=None, description="Other data centres that share the budgets.")
    mcp: Mcp | None = Field(default=None, description="Tools for agents, over MCP.")
    disclosure: Deployment | None = Field(
        default=None, description="What only people know, for documents that are published."
    )
    logs: Logs = Field(default_factory=Logs, description="Format of the log.")
    traces: Traces | None = Field(default=None, description="The collector to which traces are sent.")

    @model_validator(mode="after")
    def _check(self) -> "Settings":
        if self.service.workers > 1 and self.store.file is not None:
            raise invalid("service.workers must be 1 with an SQLite store, which one process has at a time")
        if self.service.workers > 1 and self.service.metrics_port is not None:
            raise invalid("service.metrics_port needs service.workers = 1, because each process counts for itself")
        if self.defaults.epsilon is not None and self.defaults.epsilon > self.limits.max_epsilon:
            raise invalid("defaults.epsilon must be at most limits.max_epsilon")
        if self.defaults.delta is not None and self.defaults.delta > self.limits.max_delta:
            raise invalid("defaults.delta must be at most limits.max_delta")
        return self


class SettingsError(TomlError):
    """A settings file that cannot be used."""

    content = "settings"


def load_settings(path: str | Path, overrides: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    """Read a settings file.

    Args:
        path: a TOML file. Paths in it are relative to its folder.
        overrides: settings that replace those of the section service in the file.

    Raises:
        SettingsError: the file does not exist or is not TOML, or a setting is not valid.
    """
    try:
        # Defaults of omitted sections have paths too, which are relative to the file's folder.
        document = {"service": {}, "store": {}, **read_toml(Path(path))}
    except InputError as error:
        raise SettingsError(path, [Finding("", str(error))]) from None
    if overrides and isinstance(document["service"], dict):
        document["service"] = {**document["service"], **overrides}
    try:
        return Settings.model_validate(document, context=Path(path).absolute().parent)
    except ValidationError as error:
        mistakes = validation_errors(error, _locate)
    raise SettingsError(path, mistakes)  # outside of `except`: pydantic's error must not be chained


def settings_schema() -> dict[str, Any]:
    """Return the JSON schema of settings files, for editors."""
    return schema_of(Settings)


def _locate(location: tuple[int | str, ...]) -> tuple[type[SettingsTable], list[str]]:
    """Return the model of the TOML table of a setting, and the setting's path in the file; see `validation_errors`."""
    place = [str(part) for part in location if part != "[key]"]
    if len(place) < 2:
        return Settings, place
    section = Settings.model_fields[place[0]].annotation
    kinds = (
        kind for kind in (section, *get_args(section)) if isinstance(kind, type) and issubclass(kind, SettingsTable)
    )
    return next(kinds), place
