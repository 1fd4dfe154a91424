# SPDX-License-Identifier: Apache-2.0
"""Chromium without a screen, and what its pages asked for, said and looked like."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from cyborg.tests.fixtures.waiting import PATIENCE

#: Width and height of the window, in pixels.
SIZE = (1280, 1000)


@dataclass(frozen=True)
class Loaded:
    """An answer that the browser got."""

    url: str
    status: int


class Browser:
    """One window; ``base`` is the URL of Horizon."""

    def __init__(self, driver: webdriver.Chrome, base: str) -> None:
        self.driver = driver
        self.base = base

    def open(self, path: str) -> None:
        """Open a page of Horizon by its path."""
        self.driver.get(f"{self.base}{path}")

    @property
    def path(self) -> str:
        """The path of the page, with its query."""
        parts = urlsplit(self.driver.current_url)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    @property
    def text(self) -> str:
        """What a reader sees of the page."""
        return self.find("body").text

    def find(self, selector: str) -> WebElement:
        """The first element of a CSS selector, once it is there."""
        wait = WebDriverWait(self.driver, PATIENCE, 0.1)
        element: WebElement = wait.until(
            lambda driver: driver.find_element(By.CSS_SELECTOR, selector),
            f"{selector} on {self.driver.current_url}",
        )
        return element

    def all(self, selector: str) -> Sequence[WebElement]:
        """The elements of a CSS selector that are there now."""
        elements: Sequence[WebElement] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return elements

    def cells(self, table: str = "table.datatable") -> list[dict[str, str]]:
        """The rows of a table, by the headings of its columns."""
        headings = [cell.text.strip() for cell in self.all(f"{table} thead tr:last-child th")]
        rows = []
        for row in self.all(f"{table} tbody tr"):
            texts = [cell.text.strip() for cell in row.find_elements(By.CSS_SELECTOR, "td, th")]
            if len(texts) == len(headings):
                rows.append(dict(zip(headings, texts, strict=True)))
        return rows

    def fill(self, **fields: str) -> None:
        """Write into the fields of a form, by their names."""
        for name, text in fields.items():
            element = self.find(f".accelerators [name={name}]")
            if element.tag_name == "select":
                element.find_element(By.CSS_SELECTOR, f"option[value='{text}']").click()
            else:
                element.clear()
                element.send_keys(text)

    def press(self, selector: str) -> None:
        """Click on what leads to another page, and wait for that page."""
        self.driver.execute_script("window.isOldPage = true")
        self.find(selector).click()
        self.wait_for_new_page(selector)

    def wait_for_new_page(self, cause: str) -> None:
        """Wait until the page that has ``isOldPage`` is replaced."""
        wait = WebDriverWait(self.driver, PATIENCE, 0.1)
        wait.until(
            lambda driver: driver.execute_script(
                "return !window.isOldPage && document.readyState === 'complete'"
            ),
            f"the page after {cause}",
        )

    def submit(self) -> None:
        """Send the form of the page."""
        self.press(".accelerator-form input[type=submit]")

    @property
    def messages(self) -> list[str]:
        """What Horizon says about what was done."""
        shown = self.driver.execute_script(
            "return [...document.querySelectorAll('#main_content .messages .alert, "
            "#main_content > .messages .alert')].map(one => one.textContent)"
        )
        return [" ".join(text.split()) for text in shown]

    def loaded(self) -> Iterator[Loaded]:
        """Yield the answers since the last call."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.responseReceived":
                response = message["params"]["response"]
                yield Loaded(response["url"], response["status"])

    def console(self) -> list[str]:
        """Return the errors that pages wrote since the last call."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE"
        ]

    def screenshot(self, file: Path) -> None:
        """Keep a picture of the page, at the width of the window, of a long page the beginning."""
        height = self.driver.execute_script(
            "const body = document.getElementById('content_body');"
            "const whole = document.documentElement.scrollHeight;"
            "return Math.max(whole, body ? body.scrollHeight + 60 : 0)"
        )
        self.driver.set_window_size(SIZE[0], max(SIZE[1] // 2, min(int(height) + 20, 1300)))
        self.driver.save_screenshot(str(file))
        self.driver.set_window_size(*SIZE)

    def fits(self, selector: str) -> bool:
        """Whether an element ends within the window, so that one need not scroll sideways."""
        edge = "return document.querySelector(arguments[0]).getBoundingClientRect().right"
        return bool(self.script(edge, selector) <= SIZE[0])

    def script(self, text: str, *values: Any) -> Any:
        """Run JavaScript in the page, and return what it returns."""
        return self.driver.execute_script(text, *values)


@contextmanager
def started(base: str, directory: Path) -> Iterator[Browser]:
    """Run a browser that keeps its files in a directory."""
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for word in (
        "--headless=new",
        # Processes of a container have no namespaces of their own, and little shared memory.
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        f"--user-data-dir={directory / 'profile'}",
        f"--window-size={SIZE[0]},{SIZE[1]}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    service = Service("/usr/bin/chromedriver", log_output=str(directory / "chromedriver.log"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver, base)
    finally:
        driver.quit()
