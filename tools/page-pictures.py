#!/usr/bin/env python3
"""Takes the pictures of a page that the documents show: docs/page.png (Explore) and docs/story.png
(a screen of the story). `make pictures` calls it. Needs Debian's chromium, chromium-driver and
python3-selenium.

  tools/page-pictures.py PAGE.html FOLDER
"""

import os
import sys

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

SCREEN = "weights"


def main(page, folder):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("headless=new", "no-sandbox", "hide-scrollbars", "force-prefers-reduced-motion"):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    try:
        for name, height, state in (("page", 880, {"tab": "explore"}),
                                    ("story", 785, {"tab": "story", "screen": SCREEN})):
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": False})
            browser.get("file://" + os.path.abspath(page))
            browser.execute_script("attn.change(arguments[0])", state)
            browser.save_screenshot(os.path.join(folder, f"{name}.png"))
    finally:
        browser.quit()


if __name__ == "__main__":
    main(*sys.argv[1:])
