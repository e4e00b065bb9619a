"""The page of a service in a real browser, wide and narrow: an answer, "I don't know", and what is missing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.support.ui import Select

from chromium import NARROW, NARROWEST, WIDE, By, needs_chromium

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
sys.path.insert(0, str(Path(__file__).parent))
from served import Numbers, ask, images, served, wait_until

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def address():
    """A service whose cascade knows the answer for some images, and for others does not."""
    engine = Numbers(thresholds={0.9: 0.6})
    stages = [{"cut": {"all": 2}, "threshold": 0.7, "temperature": 1.0}]
    engine.about["cascade"] = {"stages": stages, "score": "entropy", "set_thresholds": {"0.9": 0.5}}
    with served(engine) as (address, _):
        yield address


@pytest.fixture(scope="module")
def files(address, tmp_path_factory):
    """An image that the cascade knows, and one that it does not, each with what the service says of it."""
    found, place = {}, tmp_path_factory.mktemp("images")
    for number, image in enumerate(images(40)):
        path = place / f"{number}.png"
        Image.fromarray(image[0]).save(path)
        said = json.loads(ask(address, "POST", "/predict?confidence=fitted", path.read_bytes())[2])
        found[said["answered"]] = path, said
    return found


def answer_of(browser, path=None, label=None):
    """What the page shows once an image was sent."""
    if path is not None:
        browser.find("#file").send_keys(str(path))
    if label is not None:
        Select(browser.find("#width")).select_by_visible_text(label)
    before = browser.find("#answer").text
    browser.find("button").click()
    wait_until(lambda: browser.find("#answer").text != before)
    return browser.find("#answer").text


@pytest.mark.parametrize("size", [WIDE, NARROW, NARROWEST], ids=str)
def test_the_page_says_what_the_service_says(browser, address, files, size):
    browser.show(f"http://{address}/", size)
    assert answer_of(browser) == "Choose an image first."
    path, said = files[True]
    shown = answer_of(browser, path, "as the fitted cascade decides").splitlines()
    assert shown[0] == f"{said['class']} · {100 * said['probability']:.1f} %"
    assert said["uncertainty"]["entropy"] == pytest.approx(
        float(shown[shown.index("entropy") + 1].split()[0]), abs=1e-3
    )
    path, said = files[False]
    shown = answer_of(browser, path).splitlines()
    assert shown[0] == "I don't know"
    assert said["class"] is None
    best = max(said["probabilities"], key=said["probabilities"].get)
    names = [row.text.splitlines()[0] for row in browser.driver.find_elements(By.CSS_SELECTOR, "li")]
    assert names[0] == best
    assert sorted(names) == ["a", "b", "c"]
    assert browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert [entry for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_width_and_what_is_no_image(browser, address, files, tmp_path):
    browser.show(f"http://{address}/")
    path, _ = files[True]
    x = np.asarray(Image.open(path))[None, None]
    probs = Numbers().answer(0, {"images": x})["probs"][0]
    assert answer_of(browser, path, "0.25").splitlines()[0] == f"{'abc'[probs.argmax()]} · {100 * probs.max():.1f} %"
    other = tmp_path / "words.png"
    other.write_text("no image")
    assert "image" in answer_of(browser, other)
    assert "error" in browser.find("#answer p").get_attribute("class")
