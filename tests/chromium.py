"""Chromium for the tests of pages, which are skipped where it is missing."""

import json
import shutil

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed")

from selenium import webdriver  # noqa: E402  (after the check above)
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402, F401

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
WIDE, NARROW, NARROWEST = (1440, 900), (390, 844), (320, 568)
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="there is no chromium and chromedriver: make browser installs them on Debian"
)


class Browser:
    """Chromium, with the few things that these tests do with it."""

    def __init__(self, profile):
        options = Options()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))

    def show(self, page, size=WIDE, scheme="light", media=""):
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.resize(size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [feature, still]})
        self.driver.get(page if isinstance(page, str) else page.as_uri())

    def resize(self, size):
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script, *given):
        return self.driver.execute_script(script, *given)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def text(self, key):
        return self.run("return document.querySelector(`[data-words='${arguments[0]}']`).textContent", key)

    def requests(self):
        """The addresses that were asked for since the page was shown."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [own["params"] for own in messages if own["method"] == "Network.requestWillBeSent"]
        return {own["request"]["url"] for own in sent}
