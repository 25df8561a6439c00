"""Looks for the broken rule in a report, by clicks in a headless Chromium.

    page.py PAGE     PAGE is a report in which PAGE.BAD.1 fails: an RNR NAK comes in place of a NAK; PAGE.GOOD.1 passes

Exit status 0 if it is found and everything on the way works; what was not is on standard error. The browser has no network.
"""

import pathlib
import sys

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

# A busy machine draws late.
PATIENCE = 60


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,900",
                     "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)


def main(path):
    driver = browser()
    try:
        driver.get(pathlib.Path(path).resolve().as_uri())

        def until(what, condition):
            WebDriverWait(driver, PATIENCE).until(lambda _: condition(), what)

        def found(selector):
            return driver.find_elements(By.CSS_SELECTOR, selector)

        # The summary and the table of themes say that something is wrong, and where.
        until("the summary counts it", lambda: "1 failed (must)" in driver.find_element(By.ID, "summary").text)
        theme = found("table.themes tr.fail a")
        assert [link.text for link in theme] == ["PAGE.BAD"], [link.text for link in theme]
        theme[0].click()
        until("the link goes to the theme", lambda: driver.current_url.endswith("#theme-PAGE.BAD"))

        # A broken rule is unfolded, a kept one is not.
        bad, good = driver.find_element(By.ID, "PAGE.BAD.1"), driver.find_element(By.ID, "PAGE.GOOD.1")
        assert bad.get_property("open") and not good.get_property("open")
        assert "refused for good" in bad.find_element(By.CSS_SELECTOR, "summary").text

        # What was expected beside what came.
        wrong = bad.find_elements(By.CSS_SELECTOR, "table.contrast tr.wrong")
        cells = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in wrong]
        assert cells == [["syndrome", "0x63", "0x2c"]], cells

        # The ladder is drawn, with both packets in it.
        drawing = bad.find_element(By.CSS_SELECTOR, "svg")
        until("the ladder is drawn", lambda: drawing.size["width"] > 100 and drawing.size["height"] > 50)
        text = drawing.get_attribute("textContent")
        for part in ("RC SEND only", "RNR NAK timer 12", "expected: RC ACK"):
            assert part in text, f"no {part!r} in {text!r}"

        # Every packet unfolds into its fields, from the IP header to the last.
        packets = bad.find_elements(By.CSS_SELECTOR, "details.packet")
        assert len(packets) == 2, len(packets)
        for packet, fields in zip(packets, ({"ttl", "opcode", "psn", "dest_qp", "data"}, {"ttl", "opcode", "syndrome", "msn"})):
            table = packet.find_element(By.CSS_SELECTOR, "table")
            assert not table.is_displayed(), "a packet is folded at first"
            packet.find_element(By.CSS_SELECTOR, "summary").click()
            until("a click unfolds it", table.is_displayed)
            names = {cell.text for cell in table.find_elements(By.CSS_SELECTOR, "th")}
            assert fields <= names, f"{fields - names} missing in {names}"

        # A rule that is kept unfolds, too.
        good.find_element(By.CSS_SELECTOR, "summary").click()
        until("a click unfolds the other case", lambda: good.find_element(By.CSS_SELECTOR, "svg").is_displayed())
        log = [line for line in driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
        assert not log, log
    finally:
        driver.quit()


main(sys.argv[1])
