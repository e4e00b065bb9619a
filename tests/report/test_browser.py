"""Pages in a real browser: the slider by keyboard and mouse, wide and narrow, light and dark, on paper."""

import pytest

from chromium import NARROW, NARROWEST, WIDE, ActionChains, By, Keys, needs_chromium
from nestling import commands

pytestmark = needs_chromium


@pytest.fixture(scope="session")
def pages(page, pruned, foreign, searched, tmp_path_factory):
    """A page of each kind."""
    out = tmp_path_factory.mktemp("pages")
    for name, folders in (("pruned", [pruned]), ("foreign", [foreign]), ("compared", [searched, foreign, pruned])):
        commands.report(folders, out=out / f"{name}.html", limit=30, samples=0)
    return {"run": page} | {name: out / f"{name}.html" for name in ("pruned", "foreign", "compared")}


@pytest.fixture
def networks(browser, page):
    browser.show(page)
    return browser.run("return JSON.parse(document.getElementById('data').textContent).networks")


def check_shown(browser, number, networks):
    """The page shows the network of that number, wherever it shows one."""
    words = networks[number]["words"]
    assert browser.run("return document.getElementById('budget').value") == str(number)
    assert {key: browser.text(key) for key in words if key in SHOWN} == {key: words[key] for key in SHOWN}
    panels = browser.run(
        "return [...document.querySelectorAll('[data-network]')].filter(own => own.checkVisibility())"
        ".map(own => own.dataset.network)"
    )
    assert panels == [str(number)] * 3
    widths = browser.run("return [...document.querySelectorAll('.fill')].map(own => parseFloat(own.style.width))")
    assert widths == pytest.approx([100 * share for share in networks[number]["layers"]], abs=0.01)
    assert browser.find("#budget").get_attribute("aria-valuetext") == words["budget"]


SHOWN = ("budget", "accuracy", "ece", "auroc", "macs", "params", "bytes", "latency_ms", "extract", "layer-0", "layer-1")


def test_the_slider_by_keyboard(browser, networks):
    browser.find("#budget").send_keys(Keys.HOME)
    check_shown(browser, 0, networks)
    browser.press(Keys.ARROW_RIGHT)
    check_shown(browser, 1, networks)
    browser.press(Keys.ARROW_UP, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    check_shown(browser, 0, networks)
    browser.press(Keys.END)
    check_shown(browser, len(networks) - 1, networks)
    assert networks[0]["words"]["accuracy"] != networks[-1]["words"]["accuracy"]


def test_the_slider_by_mouse(browser, networks):
    slider = browser.find("#budget")
    ActionChains(browser.driver).move_to_element_with_offset(slider, 4 - slider.size["width"] // 2, 0).click().perform()
    check_shown(browser, 0, networks)
    ActionChains(browser.driver).move_to_element_with_offset(slider, slider.size["width"] // 2 - 4, 0).click().perform()
    check_shown(browser, len(networks) - 1, networks)


def test_a_click_on_a_point_chooses_its_network(browser, networks):
    browser.find("[data-cost='macs'] [data-choose='1'] .target").click()
    check_shown(browser, 1, networks)
    ring = browser.run(
        "const own = document.querySelector('[data-cost=macs] .cursor-ring').getBoundingClientRect();"
        "const point = document.querySelector('[data-cost=macs] [data-choose=\"1\"] .mark').getBoundingClientRect();"
        "const middle = (box) => [box.x + box.width / 2, box.y + box.height / 2];"
        "return middle(own).map((place, axis) => place - middle(point)[axis]);"
    )
    assert ring == pytest.approx([0, 0], abs=1.0)


def test_blocks_that_are_kept_are_filled(browser, networks):
    for key, number in ((Keys.HOME, 0), (Keys.END, len(networks) - 1)):
        browser.find("#budget").send_keys(key)
        kept, widths = browser.run(
            "const strips = [...document.querySelectorAll('[data-widths]')];"
            "return [strips.map(own => own.querySelectorAll('.kept').length),"
            f"strips.map(own => Number(own.dataset.widths.split(' ')[{number}]))]"
        )
        assert kept == widths


def test_the_cost_on_the_axis_can_be_chosen(browser, page):
    browser.show(page)
    browser.find("#by-macs").send_keys(Keys.ARROW_RIGHT)
    rows = browser.driver.find_elements(By.CSS_SELECTOR, "[data-cost]")
    assert [row.get_attribute("data-cost") for row in rows if row.is_displayed()] == ["params"]
    assert "parameters" in browser.find("[data-cost=params]").text


def test_everything_is_reached_by_keyboard(browser, page):
    """Tab comes to the links, the slider, the choice and each table, in the order of the page, and is seen there."""
    browser.show(page)
    visited = []
    for _ in range(80):
        browser.press(Keys.TAB)
        about = browser.run(
            "const own = document.activeElement, bar = document.querySelector('.slider');"
            "const box = own.getBoundingClientRect(), above = bar.getBoundingClientRect();"
            "return [own.tagName, own.id, getComputedStyle(own).outlineStyle, box.top, box.bottom, innerHeight,"
            " bar.contains(own) || above.top > 0 ? 0 : above.bottom]"
        )
        tag, name, outline, top, bottom, height, covered = about
        if tag == "BODY":
            break
        visited.append(name or tag)
        assert outline == "solid", f"{visited} has no focus that can be seen"
        assert bottom > covered, f"{visited} is covered"
        assert top < height, visited
    assert visited[:6] == ["A", "A", "A", "A", "A", "budget"]
    assert "by-macs" in visited
    assert visited.count("SUMMARY") >= 8


def test_numbers_are_opened_by_keyboard(browser, page):
    browser.show(page)
    summary = browser.find("#size summary")
    summary.send_keys(Keys.ENTER)
    assert browser.find("#size details").get_attribute("open")
    assert browser.find("#size details table").is_displayed()


@pytest.mark.parametrize("name", ["run", "pruned", "foreign", "compared"])
def test_nothing_goes_wrong_and_nothing_is_fetched(browser, pages, name):
    browser.show(pages[name])
    if name != "pruned":
        browser.find("#budget").send_keys(Keys.HOME)
    assert browser.driver.get_log("browser") == []
    assert {url for url in browser.requests() if not url.startswith("data:")} == {pages[name].as_uri()}
    assert browser.run("return window.hacked") is None


@pytest.mark.parametrize("size", [WIDE, (1000, 800), NARROW, NARROWEST], ids=str)
@pytest.mark.parametrize("name", ["run", "pruned", "foreign", "compared"])
def test_no_page_is_wider_than_its_window(browser, pages, name, size):
    browser.show(pages[name], size)
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]


OVERLAPS = """
const pairs = [];
for (const svg of document.querySelectorAll("svg[role=img]")) {
  if (!svg.checkVisibility()) continue;
  const boxes = [...svg.querySelectorAll("text")].map(own => [own.textContent, own.getBoundingClientRect()]);
  boxes.forEach(([a, one], i) => boxes.slice(i + 1).forEach(([b, two]) => {
    const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
    const along = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
    if (across > 0.5 && along > 2) pairs.push(`${svg.textContent.slice(0, 40)}: ${a} | ${b}`);
  }));
}
return pairs;
"""


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=str)
@pytest.mark.parametrize("name", ["run", "pruned", "compared"])
def test_labels_do_not_overlap(browser, pages, name, size):
    browser.show(pages[name], size)
    assert browser.run(OVERLAPS) == []


FAINT = """
const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const ground = (own) => {
  for (let at = own; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0.99) return colour;
  }
  return [255, 255, 255];
};
const found = new Set();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const own = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !own.checkVisibility() || own.closest("script, style, title")) continue;
  const style = getComputedStyle(own);
  const ink = channels(own.closest("svg") ? style.fill : style.color);
  const [a, b] = [light(ink), light(ground(own))].sort((x, y) => y - x);
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < 4.5) found.add(`${own.tagName}.${own.className.baseVal ?? own.className}: ${contrast.toFixed(2)}`);
}
return [...found];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "compared"])
def test_text_can_be_read_in_light_and_dark(browser, pages, name, scheme):
    browser.show(pages[name], scheme=scheme)
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    shade = sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(",")))
    assert shade > 600 if scheme == "light" else shade < 150
    assert browser.run(FAINT) == []


ANSWERS = {
    "size": [".tiles", ".panels:not([hidden])"],
    "sure": [".columns svg[role=img]"],
    "learned": [".orders"],
    "out": ["pre"],
}


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_is_answered_within_a_screen(browser, page, question):
    """Its link leads to the heading, below the slider, and what answers it is in view with it."""
    browser.show(page)
    browser.find(f".summary a[href='#{question}']").click()
    heading, *bottoms = browser.run(
        "const [name, ...selectors] = arguments[0], section = document.getElementById(name);"
        "const bar = document.querySelector('.slider').getBoundingClientRect();"
        "return [section.querySelector('h2').getBoundingClientRect().top - bar.bottom,"
        " ...selectors.map(own => innerHeight - section.querySelector(own).getBoundingClientRect().bottom)]",
        [question, *ANSWERS[question]],
    )
    assert heading >= 0
    assert min(bottoms) >= 0


def test_on_paper_everything_is_open_and_light(browser, page):
    browser.show(page, scheme="dark", media="print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not browser.find("#budget").is_displayed()
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return document.querySelectorAll('details:not([open])').length") == 0
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.querySelectorAll('details[open]').length") == 0


def test_names_of_strangers_are_shown_as_text(browser, pages):
    browser.show(pages["foreign"])
    assert "<script>window.hacked=1" in browser.find("body").text
    assert browser.find("h1").text == "<b>run & co"


def test_the_budget_of_a_comparison(browser, pages):
    browser.show(pages["compared"])
    networks = browser.run("return JSON.parse(document.getElementById('data').textContent).networks")
    browser.find("#budget").send_keys(Keys.HOME)
    keys = [key for key in networks[0]["words"] if key.startswith("cell-")]
    assert {key: browser.text(key) for key in keys} == {key: networks[0]["words"][key] for key in keys}
    assert "-" in [networks[0]["words"][key] for key in keys]
