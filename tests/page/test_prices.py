"""The requests of the query form, with answers that come late, in another order, or never."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import httpx
import pytest

TOP = (
    "SELECT article, COUNT(DISTINCT reader)\nFROM reads\nGROUP BY article\n"
    "ORDER BY COUNT(DISTINCT reader) DESC\nLIMIT 10"
)
DAYS = "SELECT day, COUNT(DISTINCT reader)\nFROM reads\nGROUP BY day"


class Late:
    """Holds requests for prices back until they are released, in any order."""

    def __init__(self, page, pattern=r"/ask\?") -> None:
        self._page, self._held = page, []
        self.aborted = []
        page.on("requestfailed", lambda request: self.aborted.append(request.url))
        page.route(re.compile(pattern), self._hold)

    def _hold(self, route):
        self._held.append(route)

    def wait(self, count=1):
        """Wait until *count* requests are held."""
        for _ in range(500):
            if len(self._held) >= count:
                return
            self._page.wait_for_timeout(10)
        raise AssertionError(f"{len(self._held)} requests came, not {count}")

    def release(self, which=0):
        """Send a held request on, and return it."""
        route = self._held.pop(which)
        if route.request.url not in self.aborted:
            route.continue_()
        return route.request


@pytest.fixture
def ann(visit):
    """Return a visitor at the form of a query, with its price."""
    visitor = visit("analyst", f"/ask?{urlencode({'sql': TOP, 'epsilon': '1'})}")
    visitor.page.wait_for_selector("#price")
    return visitor


@pytest.fixture
def page(ann):
    """Return the page of the visitor."""
    return ann.page


def charged(served, page):
    """Return epsilon of the answer on the page, as the API has it."""
    name = re.search(r"/answers/(\w+)", page.url)[1]
    headers = {"Authorization": f"Bearer {served.keys['analyst']}"}
    return httpx.get(f"{served.url}/v1/releases/{name}", headers=headers).json()["query"]["epsilon"]


def test_an_epsilon_that_is_typed_while_an_answer_of_the_builder_comes_is_kept_and_charged(page, served):
    """The late answer has the epsilon of its request, 1; the field holds .5, which is priced and charged."""
    late = Late(page)
    page.uncheck("#item-1")
    page.check("#item-2")
    late.wait(2)
    page.focus("#epsilon")
    page.keyboard.press("Control+A")
    late.release(1)
    page.wait_for_url("**item=country**")
    assert page.evaluate("document.activeElement.id") == "epsilon"
    page.keyboard.type(".5")
    assert page.input_value("#epsilon") == ".5"
    page.unroute_all()
    page.wait_for_url("**epsilon=.5**")
    assert page.input_value("#epsilon") == ".5"
    assert "country" in page.input_value("#sql")
    page.click("#go")
    page.wait_for_url("**/answers/*")
    assert charged(served, page) == 0.5


def test_typing_ends_the_request_before_and_the_last_one_has_both_changes(page):
    """The builder's change is still part of the request that follows the epsilon."""
    late = Late(page)
    page.fill("#k", "7")
    late.wait()
    page.fill("#epsilon", "0.3")
    late.wait(2)
    assert len(late.aborted) == 1
    assert "epsilon=1&" in late.aborted[0] + "&"
    late.release(1)
    page.wait_for_url("**epsilon=0.3**")
    assert page.input_value("#sql") == TOP.replace("10", "7")
    assert page.input_value("#k") == "7"


def test_what_is_asked_is_what_the_builder_holds_even_before_its_answer_comes(page):
    """A click on Ask waits for the SQL of the last change."""
    late = Late(page)
    page.fill("#k", "3")
    page.click("#go", no_wait_after=True)
    late.wait()
    late.release()
    page.unroute_all()
    page.wait_for_url("**/answers/*")
    assert page.locator("#answer tbody tr").count() == 3


def test_sql_that_is_typed_and_a_field_that_is_changed_at_once_are_both_kept(page):
    """The SQL is priced first, and fills the builder around the changed field."""
    late = Late(page)
    page.fill("#sql", DAYS)
    page.check("#item-2")
    late.wait()
    late.release()
    late.wait()
    late.release()
    page.wait_for_url("**item=country&item=day**")
    assert page.input_value("#sql").startswith("SELECT country, day,")
    assert page.is_checked("#item-2")
    assert not page.is_checked("#item-1")


def test_the_cursor_stays_in_a_field_of_a_part_that_is_replaced(page):
    """The answer to typed SQL replaces the builder, in which the user types already."""
    late = Late(page)
    page.fill("#sql", TOP.replace("10", "9"))
    late.wait()
    page.focus("#k")
    page.keyboard.press("End")
    page.keyboard.type("0")
    late.release()
    late.wait()
    assert page.evaluate("document.activeElement.id") == "k"
    assert page.input_value("#k") == "100"
    late.release()
    page.wait_for_url("**k=100&**")
    assert page.input_value("#sql") == TOP.replace("10", "100")


def test_another_dataset_has_a_builder_of_its_own_and_keeps_epsilon(page):
    """The address follows, and a reload shows the same."""
    page.fill("#epsilon", "0.2")
    page.focus("#dataset")
    page.select_option("#dataset", "slow")
    page.wait_for_url("**dataset=slow**")
    assert "FROM slow" in page.input_value("#sql")
    assert page.locator("#builder >> text=minutes").count() == 0
    assert page.evaluate("document.activeElement.id") == "dataset"
    page.reload()
    assert "FROM slow" in page.input_value("#sql")
    assert page.input_value("#epsilon") == "0.2"


def test_without_an_answer_nothing_that_was_typed_is_lost(ann, page, served):
    """The page says so, for prices and for the question itself, which can be asked again."""
    page.route(re.compile("/ask"), lambda route: route.abort())
    page.fill("#sql", DAYS)
    page.wait_for_selector("text=The service did not answer")
    page.click("#go")
    page.wait_for_selector("text=The service did not answer")
    assert page.input_value("#sql") == DAYS
    assert page.is_enabled("#go")
    page.unroute_all()
    page.fill("#epsilon", "0.6")
    page.wait_for_url("**epsilon=0.6**")
    page.wait_for_selector("text=The service did not answer", state="hidden")
    page.click("#go")
    page.wait_for_url("**/answers/*")
    assert charged(served, page) == 0.6
    assert ann.errors == ["Failed to load resource: net::ERR_FAILED"] * 3
    ann.errors.clear()


def test_a_refusal_is_shown_in_the_form_and_a_field_changed_meanwhile_is_kept(page):
    """The question that was sent is not changed by what is typed while its answer is computed."""
    page.fill("#epsilon", "20")
    page.wait_for_url("**epsilon=20**")
    page.wait_for_selector("#cost >> text=Epsilon must be at most 4")
    late = Late(page, "/ask$")
    page.click("#go", no_wait_after=True)
    page.wait_for_selector("#waiting:visible")
    page.fill("#epsilon", "0.1")
    late.wait()
    assert "epsilon=20" in late.release().post_data
    page.wait_for_url("**epsilon=0.1**")
    assert page.input_value("#epsilon") == "0.1"
    page.wait_for_selector("#cost >> text=of the budget, at most")


def test_without_scripts_every_step_is_a_page(visit, served):
    """The question is a form."""
    visitor = visit(None, java_script_enabled=False)
    visitor.page.goto(served.url)
    visitor.page.fill("#token", served.keys["analyst"])
    visitor.page.click("text=Log in >> nth=-1")
    visitor.page.fill("#sql", TOP.replace("10", "4"))
    visitor.page.click("#go")
    assert visitor.page.locator("#answer tbody tr").count() == 4
