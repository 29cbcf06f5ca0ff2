"""The chat at / in headless Chromium: a person asks, stops, asks again and edits. Skipped without a browser."""

import json
import os
import shutil
import sys
import unittest
from pathlib import Path

try:
    import selenium  # noqa: F401
except ImportError:
    if sys.executable != "/usr/bin/python3" and Path("/usr/bin/python3").exists() and __name__ == "__main__":
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])

from support import PATIENCE, SANITIZED, TEMPLATE, ChatServer, Server

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait
except ImportError:
    webdriver = None

HAVE_BROWSER = webdriver and shutil.which("chromium") and shutil.which("chromedriver")


class Pages(unittest.TestCase):
    def test_a_model_without_a_template_has_the_page_that_continues_texts(self):
        with Server() as server:
            self.assertIn("v1/completions", server.ask("GET", "/")[2])
        with ChatServer() as server:
            status, header, page = server.ask("GET", "/")
        self.assertEqual((status, header["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("v1/chat/completions", page)
        demand = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
        with ChatServer(template=demand + TEMPLATE) as server:
            self.assertEqual(server.ask("GET", "/")[2], page, "a template may demand a system message")
        self.assertNotIn("//", page.split("<script>")[0].replace("<!DOCTYPE", ""), "the page loads nothing from elsewhere")


@unittest.skipUnless(HAVE_BROWSER and not SANITIZED, "Chromium, its driver or selenium is missing")
class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ChatServer().__enter__()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)
        options = webdriver.ChromeOptions()
        for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=390,844"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.browser = webdriver.Chrome(options=options)
        cls.addClassCleanup(cls.browser.quit)

    def setUp(self):
        self.browser.get(f"http://127.0.0.1:{self.server.port}/")
        self.browser.find_element(By.TAG_NAME, "summary").click()
        self.fill(temperature="0", max_tokens="12", top_p="1")

    def fill(self, **values):
        for name, value in values.items():
            box = self.browser.find_element(By.ID, name)
            box.clear()
            box.send_keys(value)

    def wait(self, true):
        return WebDriverWait(self.browser, 30 * PATIENCE).until(lambda _: true())

    def ask(self, text):
        self.browser.find_element(By.ID, "question").send_keys(text, Keys.ENTER)
        self.wait(lambda: self.browser.find_elements(By.CSS_SELECTOR, ".assistant .again, .error"))
        self.wait(lambda: self.browser.find_element(By.ID, "go").is_enabled())

    def said(self):
        """(role, text) of each message."""
        return [(part.get_attribute("class"), part.find_element(By.TAG_NAME, "div").get_attribute("textContent"))
                for part in self.browser.find_elements(By.TAG_NAME, "article")]

    def wanted(self, *messages, **keys):
        body = {"messages": [{"role": role, "content": text} for role, text in messages], "temperature": 0, "max_tokens": 12, **keys}
        answer = self.server.ask("POST", "/v1/chat/completions", json.dumps(body), Content_Type="application/json")[2]
        return answer["choices"][0]["message"]["content"]

    def test_a_conversation(self):
        self.ask("Who are you?")
        first = self.wanted(("user", "Who are you?"))
        self.assertEqual(self.said(), [("user", "Who are you?"), ("assistant", first)])
        self.ask("Where?")
        second = self.wanted(("user", "Who are you?"), ("assistant", first), ("user", "Where?"))
        self.assertEqual(self.said()[2:], [("user", "Where?"), ("assistant", second)])
        errors = [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        self.assertEqual(errors, [])

    def test_a_system_message_counts_and_shift_enter_begins_a_line(self):
        self.fill(system="There was a wood.")
        self.browser.find_element(By.ID, "question").send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL)
        self.ask("two")
        self.assertEqual(self.said()[0], ("user", "one\ntwo"))
        self.assertEqual(self.said()[1][1], self.wanted(("system", "There was a wood."), ("user", "one\ntwo")))

    def test_again_and_edit(self):
        self.ask("Who are you?")
        answer = self.said()[1]
        self.browser.find_element(By.CSS_SELECTOR, ".again").click()
        self.wait(lambda: len(self.said()) == 2 and self.browser.find_elements(By.CSS_SELECTOR, ".again"))
        self.assertEqual(self.said()[1], answer)
        self.browser.find_element(By.XPATH, "//button[text()='Edit']").click()
        self.assertEqual(self.said(), [])
        box = self.browser.find_element(By.ID, "question")
        self.assertEqual(box.get_attribute("value"), "Who are you?")
        box.clear()
        self.ask("Where?")
        self.assertEqual(self.said(), [("user", "Where?"), ("assistant", self.wanted(("user", "Where?")))])

    def test_a_click_on_a_word_shows_which_others_were_likely(self):
        self.ask("Who are you?")
        words = self.browser.find_elements(By.CSS_SELECTOR, ".assistant span")
        word = next(word for word in words if word.text.strip())
        word.click()
        lines = self.browser.find_element(By.ID, "candidates").text.splitlines()
        self.assertEqual(len(lines), 8)
        self.assertEqual([json.loads(line.split(" %  ")[1].rstrip("█ ")) for line in lines if line.startswith(">")],
                         [word.get_attribute("textContent")])

    def test_stop_keeps_what_has_come(self):
        self.fill(max_tokens="400", temperature="0.7", seed="1")
        self.browser.find_element(By.ID, "question").send_keys("Tell me all.", Keys.ENTER)
        self.wait(lambda: len(self.browser.find_elements(By.CSS_SELECTOR, ".assistant span")) > 2)
        self.browser.execute_script("document.getElementById('stop').click()")
        self.wait(lambda: self.browser.find_element(By.ID, "go").is_enabled())
        self.assertEqual([role for role, _ in self.said()], ["user", "assistant"])
        self.assertEqual(self.browser.find_elements(By.CSS_SELECTOR, ".error"), [])

    def test_what_is_written_is_no_html_and_what_is_wrong_is_said(self):
        self.ask("<img src=x onerror=document.title='broken'>")
        self.assertEqual(self.browser.find_elements(By.TAG_NAME, "img"), [])
        self.fill(max_tokens="100000")
        self.browser.find_element(By.ID, "question").send_keys("More", Keys.ENTER)
        self.wait(lambda: self.browser.find_elements(By.CSS_SELECTOR, ".error"))
        self.assertIn("100000", self.browser.find_element(By.CSS_SELECTOR, ".error").text)
        self.assertEqual(self.browser.title, "Staircase")

    def test_nothing_is_wider_than_a_phone(self):
        self.ask("w" * 200)
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"),
                             self.browser.execute_script("return document.documentElement.clientWidth"))


if __name__ == "__main__":
    unittest.main()
