"""What is published about privacy: one model of an account, a dataset or an answer, and its entry in a public registry.

The registry is the one of deployments of differential privacy that OpenDP keeps. `Disclosure.registry_entry` fills the
fields of its schema, and `to_yaml` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from discreet._version import __version__
from discreet.catalog.fields import SettingsTable, Text
from discreet.errors import InputError
from discreet.mechanisms import MECHANISMS
from discreet.query.json import from_dict
from discreet.query.sql import to_sql
from discreet.wire.queries import Privacy, Reply


class Deployment(SettingsTable):
    """What only people know about the deployment, for documents that are published."""

    name: Text = Field(description="The name of what is published.")
    curators: tuple[Text, ...] = Field(strict=False, min_length=1, description="The organisations that publish it.")
    region: Text = Field(description="The region that the data is about, or whose laws apply.")
    description: Text = Field(description="What is published, in a few sentences.")
    intended_use: Text = Field(description="What it is meant to be used for.")
    justification: Text = Field(description="Why the parameters were chosen, and who decided.")


class DisclosedDataset(Reply):
    """A dataset and the users whose rows it holds."""

    name: str
    description: str | None
    user: str = Field(description="The column that identifies the protected unit.")
    columns: list[str] = Field(description="The columns that may be queried.")
    changes: bool = Field(description="True if rows are added or deleted over time.")


class DisclosedAccount(Reply):
    """An account without parents, which every query below it is charged to."""

    account: str
    limit: str = Field(description="The limit, in the unit in which it was set.")
    period: str
    enforced: bool = Field(description="False if the account is only observed: then it promises nothing.")


class MechanismUse(Reply):
    """A mechanism and the number of answers that it gave."""

    name: str
    description: str
    answers: int


class Disclosure(Reply):
    """What an account, a dataset or an answer reveals about each user, and how that is ensured; without any count."""

    kind: Literal["account", "dataset", "answer"]
    subject: str = Field(description="The name of the account or dataset, or the id of the answer.")
    written: str = Field(description="When this was written.")
    version: str = Field(description="Version of Discreet.")
    deployment: Deployment | None = Field(description="What the operator states; null if the settings do not.")
    datasets: list[DisclosedDataset]
    question: str | None = Field(default=None, description="The query of an answer.")
    privacy: Privacy | None = Field(description="The guarantee for each user; null if there is none.")
    period: str = Field(description="The time that the guarantee is about.")
    accounts: list[DisclosedAccount] = Field(default=[], description="The accounts that the guarantee adds up.")
    answers: int = Field(description="Number of different answers so far.")
    first_answer: str | None
    last_answer: str | None
    mechanisms: list[MechanismUse]
    composition: str = Field(description="The theorem by which the losses of several answers are added.")
    post_processing: str
    exclusions: list[str] = Field(description="Rows and values that are left out or clipped before noise is added.")
    unprotected: list[str] = Field(description="Quantities that noise does not protect.")
    access: list[str] = Field(description="Who may query, and who may change limits.")
    implementation: list[str] = Field(description="Sampling, arithmetic and timing.")
    checkpoint: str | None = Field(
        default=None, description="SHA-256 of the last signed checkpoint of the ledger; null if there is none."
    )
    limits: list[str] = Field(description="Known limits of the guarantee.")

    def registry_entry(self) -> dict[str, Any]:
        """Return the entry for the registry, a draft of tier 3.

        Raises:
            InputError: the settings do not state what only people know.
        """
        stated = self.deployment
        if stated is None:
            raise InputError("the entry of the registry needs the section disclosure in the settings of the service")
        privacy = self.privacy
        several = self.kind != "answer"
        published = (self.first_answer or self.written)[:10]
        name = stated.name if several else f"{stated.name}, answer {self.subject[:12]}"
        parameters = {} if privacy is None else privacy.model_dump(include={"epsilon", "delta", "rho"})
        users = "; ".join(f"{dataset.name}: one value of {dataset.user}" for dataset in self.datasets)
        counted = "; ".join(
            f"{dataset.name}: {dataset.description or ', '.join(dataset.columns)}" for dataset in self.datasets
        )
        used = "\n".join(
            f"- {mechanism.name} ({mechanism.answers} answers): {mechanism.description}"
            for mechanism in self.mechanisms
        )
        return {
            "url_slug": re.sub(r"[\W_]+", "-", f"{name} {' '.join(stated.curators)} {published[:4]}".lower()),
            "status": "Draft",
            "tier": 3,
            "deployment": {
                "basic": {
                    "name": name,
                    "data_curators": list(stated.curators),
                    "intended_use": stated.intended_use,
                    "data_product_type": "Interactive API" if several else "Summary statistics",
                    "data_product_region": stated.region,
                    "description": stated.description,
                    "publication_date": published,
                },
                "dp_variant": {
                    "variant_name": "Approximate DP",
                    "data_domain": f"Tables whose rows belong to users. {counted}",
                    "unprotected_quantities": _lines(self.unprotected),
                },
                "privacy_loss": {
                    "privacy_unit": f"User, with all rows ({users})",
                    "privacy_unit_details": f"Neighbours are {privacy.neighbours}."
                    if privacy is not None
                    else "No guarantee: an account is only observed.",
                    "privacy_parameters": parameters,
                    "privacy_parameters_details": f"{self.period}. delta-approximate rho-zCDP, converted to epsilon "
                    f"and delta."
                    if privacy is not None
                    else "No guarantee.",
                },
                "deployment_model": {
                    "model_name": "Central",
                    "model_name_details": "The service reads the rows and adds the noise.",
                    "actors": _lines(self.access),
                    "release_type": "Many releases" if several else "One release",
                    "release_type_details": self.period,
                    "data_source_type": "Dynamic" if any(dataset.changes for dataset in self.datasets) else "Static",
                    "access_type": "Interactive" if several else "Non-interactive",
                    "access_type_details": _lines(
                        [
                            *(f"{account.account}: {account.limit} {account.period}" for account in self.accounts),
                            (
                                "Queries are charged to the account of the analyst and to all above it, so that the "
                                "guarantee holds if all analysts collude."
                            ),
                        ]
                    ),
                },
                "accounting": {"post_processing": self.post_processing, "composition": self.composition},
                "implementation": {
                    "preprocessing_and_hyperparameter_tuning": _lines(self.exclusions),
                    "mechanisms": f"{used}\n{_lines([*self.implementation, f'Discreet {self.version}.'])}".strip(),
                    "justification": stated.justification,
                },
                "administrative": {"notes": _lines(self.limits), "registry_authors": list(stated.curators)},
            },
        }


def _lines(texts: list[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def to_yaml(value: Mapping[str, Any]) -> str:
    """Return a mapping of texts, numbers, lists of texts and such mappings as YAML.

    Texts are in double quotes, whose escapes are those of JSON, so that none is read as a date or another type.
    """

    def lines(value: Mapping[str, Any], indent: str) -> Iterator[str]:
        for name, part in value.items():
            if isinstance(part, dict) and part:
                yield f"{indent}{name}:"
                yield from lines(part, f"{indent}  ")
            elif isinstance(part, list):
                yield f"{indent}{name}:"
                yield from (f"{indent}  - {_scalar(element)}" for element in part)
            else:
                yield f"{indent}{name}: {_scalar(part)}"

    return "\n".join(lines(value, "")) + "\n"


def _scalar(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows characters that YAML does not
    if isinstance(value, float) and "." not in text:
        text = text.replace("e", ".0e")  # parsers of YAML 1.1 read 1e-08 as text
    return re.sub("[\x80-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]", lambda one: f"\\u{ord(one[0]):04x}", text)


# ------------------------------------------------------------------------------------------------------ texts

COMPOSITION = (
    "Adaptive composition in zero-concentrated differential privacy, for approximate zCDP: rho and delta of answers "
    "add up, also when each query depends on earlier answers. A privacy filter refuses the first query that could "
    "exceed the limit (Whitehouse, Ramdas, Rogers and Wu 2023, Theorem 1), and an answer that returns fewer items than "
    "its worst case is charged less (Rogers et al. 2021). The sum is converted to epsilon and delta by Proposition 12 "
    "of Canonne, Kamath and Steinke 2020."
)
ALONE = (
    "None: the guarantee is that of this answer alone. Other answers about the same users add to it: rho and delta of "
    "answers add up in zero-concentrated differential privacy."
)
POST_PROCESSING = (
    "Sorting, joining and filtering of answers, quantiles, ratios and charts are computed from noisy answers, never "
    "from rows. Noisy counts are not rounded up to 0: small ones may be negative."
)
UNPROTECTED = (
    "Names and types of columns, and all labels that are listed in advance.",
    (
        "The queries themselves: items, filters with their constants, k, bounds, epsilon and delta, and when they were "
        "asked."
    ),
    "The version of the data, whether a dataset is available, and how long an answer takes.",
    "Facts about groups of users, which are what is published, and what a label says that many users have.",
)
NOISE = (
    (
        "Noise is drawn from exact discrete distributions with integer arithmetic, so that floating-point errors do "
        "not weaken the guarantee; costs are rounded up, limits down."
    ),
    (
        "Engines get generated queries, never text of analysts: no value of a row decides whether there is an answer, "
        "or which error."
    ),
)
LIMITS = (
    (
        "Groups of m users are protected less: by m^2 times rho. A person with several values of the user column is "
        "several users."
    ),
    "Everything else that is published about the same users adds to what is revealed.",
    "There has been no external audit of the software.",
)


def mechanisms_used(answers: Mapping[str, int]) -> list[MechanismUse]:
    """Return the mechanisms by their names and numbers of answers, the most used first."""
    ordered = sorted(answers.items(), key=lambda mechanism: (-mechanism[1], mechanism[0]))
    return [MechanismUse(name=name, description=_described(name), answers=count) for name, count in ordered]


_DESCRIPTIONS = {
    "light": "One round of Laplace noise on every item, where each user adds a bounded amount; returns those above a "
    "threshold.",
    "capped": "Laplace noise on every count of a listed domain, where a user counts less beyond a number of items.",
    "scaled": "Gaussian noise on every count of a listed domain, where users with many items count less.",
    "shared": "Noise on every count of a listed domain, where users count in full and all counts share a part of the "
    "noise.",
    "listed+sum": "Noise on every sum of a listed domain; each user's sum is clipped.",
    "running": "Correlated Gaussian noise on the users so far of each item, by day; returns items above a threshold.",
}
"""Descriptions of what `auto` chooses and of what no query names, by the names in stored answers."""


def _described(name: str) -> str:
    ranking = name.removesuffix("+sum")
    if name in _DESCRIPTIONS:
        return _DESCRIPTIONS[name]
    if ranking not in MECHANISMS:
        return "A mechanism of another version."
    description = " ".join((MECHANISMS[ranking].__doc__ or "").partition("\n\n")[0].split())
    return description if ranking == name else f"{description} Then noise on the sums, in which each user's is clipped."


def mechanism_of(document: Mapping[str, Any]) -> str:
    """Return the name of the mechanism of an answer: the one that auto chose."""
    return str(document.get("chosen") or document["mechanism"])


def release_sheet(document: Mapping[str, Any], written: str, deployment: Deployment | None = None) -> Disclosure:
    """Return what is published beside an answer.

    Args:
        document: the JSON of a release, of a service or of the library.
        written: the time, for the sheet.

    Raises:
        InputError: *document* is not the JSON of a release.
    """
    try:
        query = document["query"]
        privacy = Privacy.model_validate(document["privacy"])
        user = query["user"]
        select = from_dict(document["question"]) if "question" in document else None
        items = [*query.get("each", []), *query["items"]]
        version = document.get("data_version")
        exclusions = [f"Rows without a value of {user} are left out."]
        if items and not query.get("keep_missing", False):
            exclusions.append("Rows without a label are left out.")
        if query["groups_per_user"] is not None:
            exclusions.append(f"At most {query['groups_per_user']} groups of each user count; of more, random ones do.")
        if query["rows_per_user_and_item"] > 1:
            exclusions.append(f"At most {query['rows_per_user_and_item']} rows of each user and item count.")
        if query.get("bounds") is not None:
            bounds = query["bounds"]
            exclusions.append(f"What each user adds to a sum is clipped to {bounds['low']} to {bounds['high']}.")
        if query["filtered"]:
            exclusions.append("Rows outside the filter are left out.")
        return Disclosure(
            kind="answer",
            subject=document.get("id", "of the library"),
            written=written,
            version=__version__,
            deployment=deployment,
            datasets=[
                DisclosedDataset(
                    name=document.get("dataset", "the table"), description=None, user=user, columns=items, changes=False
                )
            ],
            question=None if select is None else to_sql(select),
            privacy=privacy,
            period="This answer alone" if version is None else f"This answer alone, of data version {version}",
            answers=1,
            first_answer=None,
            last_answer=None,
            mechanisms=mechanisms_used({mechanism_of(document): 1}),
            composition=ALONE,
            post_processing=POST_PROCESSING,
            exclusions=exclusions,
            unprotected=list(UNPROTECTED),
            access=[],
            implementation=list(NOISE),
            limits=[*key_limit(privacy), *LIMITS],
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError("this is not the JSON of an answer") from None


def key_limit(privacy: Privacy | None) -> list[str]:
    """Return the limit that follows from keyed noise, if *privacy* rests on it."""
    keyed = "The noise is derived from a key: the guarantee holds against all who do not have that key."
    return [keyed] if privacy is not None and privacy.computational else []
