"""What analysts can do, without any HTTP: ask, estimate, look. How a question is answered is in `answering`.

Everybody gets a view of the warehouse that ends where her grants end. Whatever is asked is read, resolved and planned
within that view, so that nothing beyond it can show.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from discreet.errors import EngineError, InputError
from discreet.release.keys import DerivedKeys
from discreet.service.answering import Run
from discreet.service.asking import wanted
from discreet.service.problems import NotFound
from discreet.service.serializers import budget_report, dataset_detail, estimate_of, history_entry
from discreet.wire.questions import DatasetList, DatasetSummary, HistoryPage

if TYPE_CHECKING:
    from discreet.budget.report import Report
    from discreet.service.answering import Given, Sent
    from discreet.service.auth.identity import Identity
    from discreet.service.parts import Parts
    from discreet.warehouse import Warehouse
    from discreet.wire.questions import BudgetReport, DatasetDetail, Estimate, Question


class Desk:
    """Serves analysts. Usable from several threads; nothing here waits in an event loop.

    Args:
        parts: of the service.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._manager = parts.manager
        self._seals = DerivedKeys(parts.secret)

    def query(self, asker: Identity, sent: Sent) -> Given:
        """Answer a question at the expense of the asker's account.

        Raises:
            InputError: something in it is not allowed; nothing was charged.
            NotFound: it names something that there is not, or that is not granted.
            BudgetShort: an account on the path cannot pay the worst case.
            RequestInFlight: the same request is being answered.
            EngineError: the data cannot be asked; nothing was charged.
            RunFailed: something failed after the data was asked; it is forfeited.
            DiscreetError: see `discreet.release.answer.answer`.
        """
        return Run(self._parts, self._seals, asker.analyst_account(), sent).answer(self._view(asker))

    def estimate(self, asker: Identity, question: Question) -> Estimate:
        """What a question could cost, and whether that fits; no data is touched, nothing is held.

        Raises:
            DiscreetError: as `query`, before anything is reserved.
        """
        account, view = asker.analyst_account(), self._view(asker)
        settings = self._parts.settings
        asked = wanted(question, view, settings.defaults, settings.limits)
        plan = asked.plan(view)
        version, table = self._parts.warehouse.context(asked.dataset)
        paid = version is not None and self._manager.entitled(account, self._seals.release_key(plan, table, version))
        return estimate_of(plan, asked.dataset, version, self._path(account), paid=paid)

    def budget(self, asker: Identity) -> BudgetReport:
        """How the asker's account stands, and what is left of those above it."""
        own, *parents = self._path(asker.analyst_account())
        return budget_report(own, parents)

    def standing(self, account: str) -> Report:
        """How an account stands."""
        return self._manager.get(account)

    def datasets(self, asker: Identity) -> DatasetList:
        """What the asker may ask about."""
        catalog = self._view(asker).catalog
        return DatasetList(
            datasets=[
                DatasetSummary(name=name, description=dataset.description)
                for name, dataset in sorted(catalog.datasets.items())
            ]
        )

    def dataset(self, asker: Identity, name: str) -> DatasetDetail:
        """What the asker may ask about one dataset.

        Raises:
            NotFound: there is none of that name, or it is not granted.
        """
        catalog = self._view(asker).catalog
        try:
            found = catalog.find(name)
        except InputError as error:
            raise NotFound(str(error)) from None
        version: str | None = None
        with contextlib.suppress(EngineError):  # what may be asked is known, whether its engine is there or not
            version, _ = self._parts.warehouse.context(found)
        return dataset_detail(found, catalog.datasets[found], self._parts.settings.limits, version)

    def history(self, asker: Identity, before: int | None, most: int) -> HistoryPage:
        """What the asker's account has paid for, newest first.

        Args:
            asker: who looks.
            before: the `next` of the page before, or None.
            most: answers on a page, at least 1.
        """
        paid = self._manager.history(asker.analyst_account(), before, most + 1)
        page = paid[:most]
        return HistoryPage(
            releases=[history_entry(one) for one in page], next=page[-1].number if len(paid) > len(page) else None
        )

    def release(self, asker: Identity, id: str) -> bytes:  # noqa: A002 - as everywhere
        """The stored document of an answer that the asker's account has paid for.

        Raises:
            NotFound: it has not, whether there is such an answer or not.
        """
        account, key = asker.analyst_account(), _key_of(id)
        stored = self._manager.release(key) if self._manager.entitled(account, key) else None
        if stored is None:
            raise NotFound
        return stored.result

    def _view(self, asker: Identity) -> Warehouse:
        return self._parts.warehouse.viewed(self._parts.grants.catalog_for(asker.analyst_account()))

    def _path(self, account: str) -> list[Report]:
        return [self._manager.get(member.id) for member in self._manager.path(account)]


def _key_of(id_: str) -> bytes:
    """The release key of an id; one of no release if it is none."""
    try:
        key = bytes.fromhex(id_)
    except ValueError:
        key = b""
    return key if len(key) == 32 and key.hex() == id_ else bytes(32)
