"""The accuracy benchmark: what it measures, and that its page shows what was measured."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from benchmarks import accuracy, accuracy_page
from papers.experiment import Setting
from papers.tables import Tables


def test_every_method_is_measured_alike(tmp_path):
    """All rows have the same keys, and a quick run makes a page and a picture."""
    setting = Setting(Tables(real=tmp_path), smoke=True)
    cells = [cell for cell in accuracy.cells(setting) if cell["table"] == "linkedin-articles/20"]
    rows = [row for cell in cells for row in accuracy.measure(setting, cell | {"trials": 1})]
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert {str(row["method"]).split()[0] for row in rows} == {"auto", "head", "pcr", "bound", "plume"}
    assert "linkedin-articles/20" in accuracy_page.say(rows)
    assert isinstance(accuracy_page.draw(rows), Figure)


def test_the_page_shows_the_numbers_that_were_measured():
    """docs/accuracy.md follows from docs/accuracy.csv; `python -m benchmarks.accuracy --page` writes it."""
    page = (accuracy.ROOT / "docs" / "accuracy.md").read_text()
    assert page == accuracy.with_results(page, accuracy.read())


def test_rows_that_are_kept_are_written_as_they_were(tmp_path):
    """`python -m benchmarks.accuracy --auto` measures one method again."""
    accuracy.write_numbers(accuracy.read(), tmp_path)
    assert (tmp_path / "accuracy.csv").read_bytes() == (accuracy.ROOT / "docs" / "accuracy.csv").read_bytes()


class TestPromises:
    """What the documentation says of a release's accuracy holds in docs/accuracy.csv."""

    cells = tuple(cell for cell in accuracy_page.cells_of(accuracy.read()) if cell.table not in accuracy_page.EXTREME)

    def test_few_counts_are_beyond_the_relative_error(self):
        """At most 6 % on average; at most 10 % in four cells of five, and never above 25 %."""
        beyond = [cell.value("auto", "beyond") for cell in self.cells]
        large = [cell.value("auto", "beyond") for cell in self.cells if cell.value("auto", "released") >= 30]
        assert sum(beyond) / len(beyond) <= 0.06
        assert sum(share <= 0.1 for share in large) >= 0.8 * len(large)
        assert max(large) <= 0.25

    @pytest.mark.parametrize("table", sorted({cell.table for cell in cells}))
    def test_intervals_cover_on_every_table(self, table):
        """The 95 % intervals hold the true count for at least 94 % of a table's released counts, at every target."""
        for target in accuracy.TARGETS:
            assert accuracy_page.covered(accuracy_page.cells_of(accuracy.read(), target), table) >= 0.94

    @pytest.mark.parametrize("table", sorted(accuracy_page.EXTREME.keys() - {"twenty-heavy"}))
    def test_intervals_cover_on_extreme_tables(self, table):
        """For at least 93 %; not on a table where noise hides twenty users with most of the items each."""
        assert accuracy_page.covered(accuracy_page.cells_of(accuracy.read()), table) >= 0.93

    def test_one_item_per_user_has_twice_the_counts_of_gaussian_noise_with_a_bound_of_one(self):
        """One round of Laplace noise is chosen there; Plume, with the exact curve, knows the bound."""
        for cell in accuracy_page.cells_of(accuracy.read()):
            if cell.table in ("one-item", "linkedin-titles", "reddit-posts-domain"):
                assert cell.value("auto", "by_light") == 1
                assert cell.value("auto") >= 2 * cell.value(cell.best_plume(exact=True))

    def test_releases_have_more_accurate_counts_than_pcr_and_plume(self):
        """At least 2.5 times as many as the better one (geometric mean), and nowhere less than 0.9."""
        ratios = [cell.ratio(head=False) for cell in self.cells]
        assert len(ratios) == 17 * len(accuracy.EPSILONS)
        assert accuracy_page.geometric_mean(ratios) >= 2.5
        assert min(ratios) >= 0.9

    def test_releases_have_more_accurate_counts_than_the_head_too(self):
        """1.59 times the best of all (geometric mean); less than 0.9 on at most 5 % of tables and epsilons."""
        ratios = [cell.ratio() for cell in self.cells]
        assert accuracy_page.geometric_mean(ratios) >= 1.59
        assert sum(ratio < 0.9 for ratio in ratios) <= 0.05 * len(ratios)

    def test_the_head_has_twice_the_accurate_counts_of_pcr(self):
        """Where PCR has 20 or more; at least 1.98 times, and twice as many in 60 of 63 tables and epsilons."""
        ratios = [cell.value("head") / cell.value("pcr") for cell in self.cells if cell.value("pcr") >= 20]
        assert len(ratios) == 63
        assert min(ratios) >= 1.98
        assert sum(ratio >= 2 for ratio in ratios) >= 60
        beyond = [cell.value("head", "beyond") for cell in self.cells]
        assert sum(beyond) / len(beyond) <= 0.06
