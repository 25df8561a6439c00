"""A student's path through a ladder, by clicks and keys in a headless Chromium: find the packet that was lost.

    page.py PAGE PSN SCREENSHOT     PAGE is a ladder of a capture in which the packet with this PSN was lost

Exit status 0 if it was found and everything on the way works; what was not is on standard error. The browser has no network.
"""

import pathlib
import sys

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,900",
                     "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)


class Page:
    def __init__(self, driver):
        self.driver = driver

    def at(self, name):
        return self.driver.find_element(By.ID, name)

    def text(self, name):
        return self.at(name).text

    def until(self, what, condition):
        # What is drawn anew while it is looked at is looked at again.
        gone = (StaleElementReferenceException, NoSuchElementException)
        WebDriverWait(self.driver, 20, ignored_exceptions=gone).until(lambda _: condition(), what)

    def press(self, *keys):
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def press_and_go(self, key):
        """Presses a key that chooses another step, and waits for it: a step is drawn as chosen only with the next frame."""
        was = self.chosen()
        self.press(key)
        self.until(f"{key} goes to another step", lambda: self.chosen() not in ([], was))

    def chosen(self):
        """The chosen steps that are drawn. By one script: steps are drawn anew at any time."""
        return self.driver.execute_script("return [...document.querySelectorAll('.step.chosen')].map(step => Number(step.id.slice(1)))")

    def in_sight(self):
        """A step in the middle of what is drawn: the middle of its row in the window, and its label."""
        return self.driver.execute_script("""
            const all = [...document.querySelectorAll('.step')], step = all[Math.floor(all.length / 2)];
            const box = step.querySelector('.under').getBoundingClientRect();
            return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2), step.getAttribute('aria-label')];""")


def main(path, psn, shot):
    driver = browser()
    try:
        driver.get(pathlib.Path(path).resolve().as_uri())
        page = Page(driver)
        # The legend says that one was lost; a click on it goes there.
        lost = driver.find_element(By.CSS_SELECTOR, '#legend button[data-kind="lost"]')
        assert "1" in lost.text, lost.text
        lost.click()
        page.until("the lost packet is shown", lambda: f"psn {psn:06x}" in page.text("panel-title"))
        assert "lost on its way" in page.text("panel-about"), page.text("panel-about")
        assert "asked for it again" in page.text("fields"), page.text("fields")
        page.until("it is chosen", lambda: len(page.chosen()) == 1)
        place = page.chosen()
        page.until("the others are dim", lambda: driver.find_elements(By.CSS_SELECTOR, ".step.dim"))
        driver.save_screenshot(shot)
        lost.click()
        page.until("all are shown again", lambda: not driver.find_elements(By.CSS_SELECTOR, ".step.dim"))

        # The same by keys alone: the first notable step from the top.
        page.at("view").click()
        page.press(Keys.HOME, "n")
        page.until("n goes to it", lambda: page.chosen() == place)
        page.press("n")
        page.until("and on", lambda: page.chosen() and page.chosen() != place)
        page.press("p")
        page.until("and back", lambda: page.chosen() == place)

        # The same by a search for a field; its repetition is the other hit.
        page.press("/", f"psn {psn}")
        page.until("hits are counted", lambda: page.text("hits").split()[:1] not in ([], ["0"]))
        hits = int(page.text("hits").split()[0])
        assert 2 <= hits <= 4, page.text("hits")
        page.press(Keys.ENTER)
        page.until("Enter goes to a hit", lambda: driver.find_elements(By.CSS_SELECTOR, ".step.chosen.hit"))
        page.press(Keys.ESCAPE)
        page.until("Escape ends it", lambda: page.text("hits") == "")
        page.press("/", "no such thing")
        page.until("no hit", lambda: page.text("hits").startswith("0 of"))
        page.press(Keys.ESCAPE)

        # Pointing at a step shows its fields; a click keeps them; groups fold and stay so.
        page.until("Escape gives the keys back", lambda: driver.switch_to.active_element.get_attribute("id") == "view")
        x, y, wanted = page.in_sight()
        mouse = ActionBuilder(driver)
        mouse.pointer_action.move_to_location(x, y)
        mouse.perform()
        page.until("pointing shows it", lambda: page.text("panel-title") == wanted)
        page.until("its fields are there", lambda: "dest_qp" in page.text("fields"))
        mouse = ActionBuilder(driver)
        mouse.pointer_action.move_to_location(x, y).click()
        mouse.perform()
        page.until("a click chooses it", lambda: len(page.chosen()) == 1 and page.text("panel-title") == wanted)
        group = '#fields details[data-path="/bth"]'
        page.press(Keys.ARROW_RIGHT)
        page.until("a click on it", lambda: driver.find_element(By.CSS_SELECTOR, group + " > summary").click() is None)
        page.until("it folds", lambda: not driver.find_element(By.CSS_SELECTOR, group).get_property("open"))
        page.at("view").click()
        page.press_and_go("j")
        page.until("and stays so", lambda: not driver.find_element(By.CSS_SELECTOR, group).get_property("open"))

        # Zoom and scale keep what was chosen in sight.
        page.press_and_go("n")
        before = page.chosen()
        for key in ("+", "+", "-", "-", "-", "-", "0", "t", "+", "+", "t"):
            page.press(key)
            page.until(f"{key} keeps it", lambda: page.chosen() == before)
        page.press("?")
        page.until("? opens the help", lambda: page.at("help").get_property("open"))
        page.press(Keys.ESCAPE)

        # What the address says is shown at once.
        driver.get("about:blank")
        driver.get(pathlib.Path(path).resolve().as_uri() + f"#{place[0] + 1}")
        page.until("the address chooses", lambda: page.chosen() == place)
        log = [line for line in driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
        assert not log, log
    finally:
        driver.quit()


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
