"""Shared by the tests of the page: opens pages that the program wrote in headless Chromium, and
checks the rules for every page: no error in the console, no request."""

import atexit
import functools
import json
import os
import shutil
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from cli import CliTest  # noqa: E402

try:
    import numpy as np
    from selenium import webdriver
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select, WebDriverWait
except ImportError as missing:
    print("not run: needs Debian's python3-selenium, python3-numpy:", missing)
    sys.exit(0)

# The shell has no window to draw, and takes less CPU time than the whole browser. Its program, not
# the script of that name in /usr/bin: chromedriver would end the script and leave the shell.
SHELL = "/usr/lib/chromium/chromium-headless-shell"
CHROMIUM = shutil.which(SHELL) or shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    print("not run: needs Debian's chromium and chromium-driver")
    sys.exit(0)

TEXT = "Life is short, eat dessert last"


def start_browser(downloads):
    options = Options()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new",
        "--no-sandbox",  # root cannot use the sandbox
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--force-prefers-reduced-motion",
        "--window-size=1280,800",
    ):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": downloads})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(service=Service(DRIVER), options=options)
    browser.set_page_load_timeout(90)
    browser.set_script_timeout(120)  # seconds; the machine may be busy
    return browser


@functools.cache
def the_browser():
    """The browser of all tests of a file, and the folder of its downloads."""
    downloads = tempfile.mkdtemp(dir=os.path.abspath("."))
    atexit.register(shutil.rmtree, downloads, ignore_errors=True)
    browser = start_browser(downloads)
    atexit.register(browser.quit)
    return browser, downloads


class PageTest(CliTest):
    """Each test opens its own pages. The classes of a file share a browser, since starting one
    takes a second; each has a tab, and so a history, of its own."""

    @classmethod
    def setUpClass(cls):
        cls.browser, cls.downloads = the_browser()
        last = cls.browser.current_window_handle
        cls.browser.switch_to.new_window("tab")
        tab = cls.browser.current_window_handle
        cls.browser.switch_to.window(last)
        cls.browser.close()
        cls.browser.switch_to.window(tab)

    def setUp(self):
        super().setUp()
        self.size(1280, 800)

    def tearDown(self):
        self.expect_quiet()

    # ------------------------------------------------------------------------------- pages

    def size(self, width, height):
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def open(self, *args, name="page.html"):
        """The page of this command, and its trace from --json of the same command."""
        self.works(*args, "-o", name, "-o", "trace.json")
        self.load(self.path(name))
        return json.loads(self.bytes("trace.json"))

    def explain(self, *args, text=TEXT):
        return self.open("explain", *args, text)

    def lesson(self, name, *args):
        return self.open("lesson", name, *args)

    def load(self, path, tab="explore"):
        """Opens the page, and from the story its other tab unless `tab` says story."""
        self.expect_quiet()
        self.browser.get("file://" + path)
        self.opened = path
        WebDriverWait(self.browser, 60).until(
            lambda b: b.execute_script("return globalThis.attn !== undefined")
        )
        if tab == "explore":
            self.js("if (attn.page.state) attn.change({tab: 'explore', row: attn.page.state.row})")

    def expect_quiet(self):
        """Checks that the browser printed no message and requested only the page itself."""
        said = [e["message"] for e in self.browser.get_log("browser")]
        self.assertEqual(said, [])
        for entry in self.browser.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] != "Network.requestWillBeSent":
                continue
            url = event["params"]["request"]["url"]
            own = url.startswith("file://") and url.endswith(".html")
            self.assertTrue(own or url.startswith(("data:", "blob:")), url)

    def download(self, press, name):
        """Presses a button that saves a file of this name. Returns the file's bytes. Chromium
        creates the file empty, writes beside it, and renames last: only a file with bytes, and
        nothing beside it, is complete."""
        path = os.path.join(self.downloads, name)
        if os.path.exists(path):
            os.remove(path)
        self.browser.execute_cdp_cmd("Browser.setDownloadBehavior", {
            "behavior": "allow", "downloadPath": self.downloads})
        press()
        WebDriverWait(self.browser, 60).until(
            lambda b: os.listdir(self.downloads) == [name] and os.path.getsize(path) > 0,
            "%s was not saved" % name)
        with open(path, "rb") as f:
            saved = f.read()
        os.remove(path)
        return saved

    # ------------------------------------------------------------------- the contents of the page

    def js(self, script, *args):
        return self.browser.execute_script(script, *args)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def every(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def until(self, script, *args):
        """Waits until this JavaScript expression is true, for contents that are drawn a moment
        later."""
        return WebDriverWait(self.browser, 60, poll_frequency=0.05).until(
            lambda b: b.execute_script(script, *args)
        )

    def act(self, selector, action):
        """Calls the action with the element. If the page has drawn the element again meanwhile,
        then nothing has happened to it, and the action has another try."""
        for _ in range(100):
            try:
                return action(self.one(selector))
            except StaleElementReferenceException:
                time.sleep(0.05)
        return action(self.one(selector))

    def texts(self, selector):
        """The visible texts of these elements, as a reader sees them: by one request to the
        browser, where Selenium makes one for each element."""
        return self.js("const text = e => e.innerText ?? e.textContent;"  # SVG has no innerText
                       "return [...document.querySelectorAll(arguments[0])]"
                       ".map(e => e.checkVisibility() ? text(e).trim() : '')", selector)

    def click(self, selector):
        self.until("return document.querySelector(arguments[0]) !== null", selector)
        self.js("const fold = document.querySelector(arguments[0]).closest('details.more');"
                "if (fold) fold.open = true", selector)
        self.js("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        self.act(selector, lambda e: e.click())

    def keys(self, *keys):
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()

    def select(self, selector, value):
        self.act(selector, lambda e: Select(e).select_by_value(value))

    def set(self, selector, value, event):
        """Gives a control a value, then the event that a user's change of it causes."""
        self.js(
            "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event(arguments[2], {bubbles: true}))",
            selector,
            value,
            event,
        )

    def slide(self, selector, value):
        self.set(selector, value, "input")

    def cell(self, row, column):
        """Goes to a cell of the matrix with the keyboard."""
        self.js("document.getElementById('cell').focus()")
        chain = webdriver.ActionChains(self.browser)
        chain.key_down(Keys.CONTROL).send_keys(Keys.HOME).key_up(Keys.CONTROL).perform()
        self.keys(*[Keys.ARROW_DOWN] * row, *[Keys.ARROW_RIGHT] * column)

    def stage(self, number):
        self.js("document.activeElement.blur()")
        self.keys(str(number))

    def drawn(self):
        """The numbers in the cells of the matrix."""
        return self.texts("#matrix-body .digits")

    def table(self, figure):
        """The table of a figure, as rows of texts. Shows the picture again afterwards."""
        button = f"#{figure}-table"
        self.click(button)
        rows = self.js(
            "return [...document.querySelectorAll(arguments[0] + ' tr')]"
            ".map(r => [...r.children].map(c => c.textContent))",
            f"#{figure}-figure",
        )
        self.click(button)
        return rows

    def shown(self):
        """The shown matrix, from its table: numbers, with NaN for masked cells."""
        rows = self.table("matrix")[1:]
        number = {"hidden": np.nan, "-inf": -np.inf, "inf": np.inf}
        return np.array([[number[x] if x in number else float(x) for x in row[1:]] for row in rows])


def tensors(trace):
    return {
        s["name"]: np.array([float(x) for x in s["tensor"]["data"]]).reshape(s["tensor"]["shape"])
        for s in trace["steps"]
    }


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
