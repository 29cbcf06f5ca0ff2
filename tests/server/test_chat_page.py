"""The pages at / in headless Chromium: a person asks, stops, asks again and edits, also at the wrong moment. Servers
and proxies fail. Skipped without a browser."""

import json
import os
import random
import shutil
import sys
import unittest
from pathlib import Path

try:
    import selenium  # noqa: F401
except ImportError:
    if sys.executable != "/usr/bin/python3" and Path("/usr/bin/python3").exists() and __name__ == "__main__":
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])

from scripted_server import CONTEXT, CUT, LENGTH, STOP, WAIT, ScriptedServer, html, refusal
from support import PATIENCE, ROOT, SANITIZED, TEMPLATE, ChatServer, Server, recommending

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait
except ImportError:
    webdriver = None

HAVE_BROWSER = webdriver and shutil.which("chromium") and shutil.which("chromedriver")
browser = None  # one for all tests


def setUpModule():
    if not HAVE_BROWSER or SANITIZED:
        return
    global browser
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options)
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}  # Chromium's windows are wider
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    unittest.addModuleCleanup(browser.quit)


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
class Page(unittest.TestCase):
    def get(self, name):
        return browser.find_element(By.ID, name)

    def fill(self, **values):
        for name, value in values.items():
            self.get(name).clear()
            self.get(name).send_keys(value)

    def open_options(self, are=True):
        browser.execute_script("document.querySelector('details').open = arguments[0]", are)

    def wait(self, true):
        return WebDriverWait(browser, 30 * PATIENCE, poll_frequency=0.02).until(lambda _: true())

    def idle(self):
        self.wait(lambda: not self.get("stop").is_enabled())

    def press(self, name, which=0.99):
        """A button of that name which can be seen, if there is one: the first for 0, the last below 1."""
        browser.execute_script("""
            const all = [...document.querySelectorAll("button")]
              .filter(one => one.textContent === arguments[0] && one.checkVisibility());
            all[Math.floor(arguments[1] * all.length)]?.click()""", name, which)

    def require_controls(self, buttons, fields):
        """The page has no others: each that is new needs a story in which it has an effect."""
        found = browser.execute_script("""return ["button", "input, textarea"].map(kind =>
            [...document.querySelectorAll(kind)].map(one => kind === "button" ? one.textContent : one.id))""")
        self.assertEqual([set(names) for names in found], [buttons, fields])

    def require_no_wider_than_window(self):
        wide = browser.execute_script("""
            return [...document.querySelectorAll("html, footer, #text, #candidates")]
              .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.outerHTML.slice(0, 80))""")
        self.assertEqual(wide, [])

    def shown(self, besides=".replaced"):
        """(role, text) of each message that counts."""
        return [tuple(message) for message in browser.execute_script("""
            return [...document.querySelectorAll("article")]
              .filter(one => one.checkVisibility() && !one.matches(arguments[0]))
              .map(one => [one.classList[0], one.querySelector("div").textContent])""", besides)]


class Recommendations(Page):
    def test_the_fields_begin_with_what_the_model_recommends(self):
        names = ("temperature", "top_p", "min_p")

        def fields(**settings):
            with recommending(**settings) as server:
                browser.get(f"http://127.0.0.1:{server.port}/")
                self.wait(lambda: self.get("model").text == "talker")
                return [self.get(name).get_property("value") for name in names]

        self.assertEqual(fields(), ["0.7", "0.9", "0"])
        self.assertEqual(fields(temperature=1, top_p=0.95), ["1", "0.95", "0"])
        self.assertEqual(fields(do_sample=False, temperature=0.8, min_p=0.05), ["0", "0.9", "0.05"])

    def test_a_field_that_was_changed_stays(self):
        late = "window.fetch = (fetch => async (...all) => { await new Promise(go => window.go = go); return fetch(...all); })(fetch)"
        script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": late})
        with recommending(temperature=1.5, top_p=0.95) as server:
            browser.get(f"http://127.0.0.1:{server.port}/")
            browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
            self.open_options()
            self.fill(temperature="0.25")
            browser.execute_script("go()")
            self.wait(lambda: self.get("model").text == "talker")
            self.assertEqual([self.get(name).get_property("value") for name in ("temperature", "top_p")], ["0.25", "0.95"])


class Chat(Page):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ChatServer())

    def setUp(self):
        browser.get(f"http://127.0.0.1:{self.server.port}/")
        self.open_options()
        self.fill(temperature="0", max_tokens="12", top_p="1")

    def ask(self, text):
        self.get("question").send_keys(text, Keys.ENTER)
        self.idle()

    def wanted(self, *messages, **keys):
        body = {"messages": [{"role": role, "content": text} for role, text in messages], "temperature": 0, "max_tokens": 12, **keys}
        answer = self.server.ask("POST", "/v1/chat/completions", json.dumps(body), Content_Type="application/json")[2]
        return answer["choices"][0]["message"]["content"]

    def test_a_conversation(self):
        self.ask("Who are you?")
        first = self.wanted(("user", "Who are you?"))
        self.assertEqual(self.shown(), [("user", "Who are you?"), ("assistant", first)])
        self.ask("Where?")
        second = self.wanted(("user", "Who are you?"), ("assistant", first), ("user", "Where?"))
        self.assertEqual(self.shown()[2:], [("user", "Where?"), ("assistant", second)])
        errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        self.assertEqual(errors, [])

    def test_a_system_message_counts_and_shift_enter_begins_a_line(self):
        self.fill(system="There was a wood.")
        self.get("question").send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL)
        self.ask("two")
        said = [("system", "There was a wood."), ("user", "one\ntwo")]
        self.assertEqual(self.shown(), [*said, ("assistant", self.wanted(*said))])

    def test_again_and_edit(self):
        self.ask("Who are you?")
        answer = self.shown()[1]
        self.press("Again")
        self.idle()
        self.assertEqual(self.shown()[1], answer)
        self.press("Edit")
        self.assertEqual(self.shown(), [])
        self.assertEqual(self.get("question").get_attribute("value"), "Who are you?")
        self.get("question").clear()
        self.ask("Where?")
        self.assertEqual(self.shown(), [("user", "Where?"), ("assistant", self.wanted(("user", "Where?")))])

    def test_a_click_on_a_word_shows_which_others_were_likely(self):
        self.ask("Who are you?")
        words = browser.find_elements(By.CSS_SELECTOR, ".assistant span")
        word = next(word for word in words if word.text.strip())
        word.click()
        lines = self.get("candidates").text.splitlines()
        self.assertEqual(len(lines), 8)
        self.assertEqual([json.loads(line.split(" %  ")[1].rstrip("█ ")) for line in lines if line.startswith(">")],
                         [word.get_attribute("textContent")])

    def test_stop_keeps_what_has_come_of_as_many_tokens_as_fit(self):
        self.assertEqual(self.get("max_tokens").get_attribute("max"), "512")
        self.fill(max_tokens="", temperature="0.7", seed="1")
        self.get("question").send_keys("Tell me all.", Keys.ENTER)
        self.wait(lambda: len(browser.find_elements(By.CSS_SELECTOR, ".assistant span")) > 2)
        self.press("Stop")
        self.idle()
        self.assertEqual([role for role, _ in self.shown()], ["user", "assistant"])
        self.assertEqual(browser.find_elements(By.CSS_SELECTOR, ".error"), [])

    def test_what_is_written_is_no_html_and_what_is_wrong_is_said(self):
        self.ask("<img src=x onerror=document.title='broken'>")
        self.assertEqual(browser.find_elements(By.TAG_NAME, "img"), [])
        self.fill(max_tokens="512")
        self.ask("More")
        self.assertIn("512 tokens", browser.find_element(By.CSS_SELECTOR, ".error").text)
        self.assertEqual(browser.title, "Staircase")

    def test_a_new_conversation_ends_the_answer_at_the_server(self):
        self.fill(max_tokens="")
        self.get("question").send_keys("Tell me all.", Keys.ENTER)
        self.wait(lambda: len(browser.find_elements(By.CSS_SELECTOR, ".assistant span")) > 2)
        self.press("New conversation")
        self.wait(lambda: self.server.load() == (0, 0))

    def test_an_answer_that_is_cut_off_says_after_how_many_tokens(self):
        self.ask("Who are you?")
        self.assertEqual(browser.find_element(By.CSS_SELECTOR, ".note").text, "The answer was cut off after 12 tokens.")

    def test_nothing_is_wider_than_a_phone(self):
        self.ask("w" * 200)
        self.require_no_wider_than_window()


class Stories(Page):
    """What goes wrong at the worst moment. Each request must send what the page shows, also the one after the story."""

    @classmethod
    def setUpClass(cls):
        cls.server = ScriptedServer(ROOT / "common/server/chat.html")
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.server.forget()
        browser.get(f"http://127.0.0.1:{self.server.port}/")

    def tearDown(self):
        self.server.forget()
        self.get("question").clear()
        self.ask("And then?", "The end.", STOP)
        self.assertEqual(self.shown()[-2:], [("user", "And then?"), ("assistant", "The end.")])

    def begin(self, press, *reply):
        """Presses something that asks. The answer waits before its first token."""
        count = len(self.server.requests)
        self.server.replies.put((WAIT, *reply))
        press()
        self.wait(lambda: len(self.server.requests) > count)
        self.check_request()

    def check_request(self):
        sent, shown = self.server.requests[-1].messages(), self.shown()
        if shown[-1] == ("assistant", ""):  # the answer on its way
            shown.pop()
        self.assertEqual(sent, shown)
        turns = [role for role, _ in sent if role != "system"]
        self.assertEqual(turns, (["user", "assistant"] * len(turns))[:len(turns) // 2 * 2 + 1])
        self.assertTrue(all(text.strip() for _, text in sent), sent)

    def go(self, index=-1):
        self.server.requests[index].go()

    def say(self, text):
        self.get("question").send_keys(text, Keys.ENTER)

    def begin_to_ask(self, text, *reply):
        self.begin(lambda: self.say(text), *reply)

    def ask(self, text, *reply):
        self.begin_to_ask(text, *reply)
        self.go()
        self.idle()

    def comes(self, text):
        self.wait(lambda: self.shown()[-1] == ("assistant", text))

    def box(self):
        return self.get("question").get_attribute("value")

    def failure(self):
        return self.get("failure").text

    def test_a_new_conversation_while_an_answer_streams(self):
        self.begin_to_ask("One?", "1", WAIT, "late", STOP)
        self.go()
        self.comes("1")
        self.get("question").send_keys("Two?")
        self.begin(lambda: browser.execute_script("""  // the question comes before the page hears the end of the answer
            document.getElementById("fresh").click();
            document.getElementById("go").click()"""), "2", WAIT, "!", STOP)
        self.go(0)
        self.go()
        self.comes("2")
        self.assertTrue(self.get("stop").is_enabled())
        self.go()
        self.idle()
        self.assertEqual(self.shown(), [("user", "Two?"), ("assistant", "2!")])

    def test_a_new_conversation_before_the_first_token(self):
        self.ask("One?", "1", STOP)
        self.begin_to_ask("Two?", "late", STOP)
        self.press("New conversation")
        self.go()
        self.assertEqual((self.shown(), self.box()), ([], ""))
        self.assertFalse(self.get("stop").is_enabled())

    def test_a_new_conversation_after_an_error_and_while_editing(self):
        self.ask("One?", refusal(429, "Come later."))
        self.press("New conversation")
        self.assertEqual((self.failure(), self.box()), ("", "One?"))
        self.get("question").clear()
        self.ask("One?", "1", STOP)
        self.press("Edit")
        self.press("New conversation")
        self.assertEqual((self.shown(), self.box(), self.get("editing").is_displayed()), ([], "", False))
        self.assertFalse(self.get("fresh").is_enabled(), "there is nothing to leave")

    def test_stop_before_the_first_token(self):
        self.begin_to_ask("One?", "late", STOP)
        self.press("Stop")
        self.idle()
        self.assertEqual((self.shown(), self.box()), ([], "One?"))
        self.assertIn("Stopped.", self.failure())
        self.ask("", "1", STOP)
        self.assertEqual((self.shown(), self.box(), self.failure()), ([("user", "One?"), ("assistant", "1")], "", ""))

    def test_stop_in_the_middle_keeps_what_has_come(self):
        self.begin_to_ask("One?", "1, ", "2", WAIT, "late", STOP)
        self.go()
        self.comes("1, 2")
        self.press("Stop")
        self.idle()
        self.assertEqual(self.shown(), [("user", "One?"), ("assistant", "1, 2")])
        self.assertEqual(browser.find_element(By.CSS_SELECTOR, ".note").text, "Stopped.")

    def test_after_an_error_the_message_can_be_sent_again_and_changed(self):
        self.ask("One?", "1", STOP)
        self.ask("Two?", refusal(400, "It is too long."))
        self.assertEqual(self.shown(), [("user", "One?"), ("assistant", "1")])
        self.assertEqual((self.failure(), self.box()), ("It is too long. Your message is back in the box.", "Two?"))
        self.ask("", refusal(400, "It is too long."))
        self.ask(Keys.BACKSPACE + "!", "2", STOP)
        self.assertEqual(self.shown()[2:], [("user", "Two!"), ("assistant", "2")])
        self.assertEqual((self.failure(), self.box()), ("", ""))

    def test_the_server_is_gone(self):
        self.ask("One?", "1", STOP)
        self.server.stop()
        try:
            self.say("Two?")
            self.wait(self.failure)
            self.assertEqual((self.shown(), self.box()), ([("user", "One?"), ("assistant", "1")], "Two?"))
            self.assertIn("The connection to the server failed.", self.failure())
            self.press("Again")
            self.wait(lambda: "The earlier answer is still here." in self.failure())
            self.assertEqual((self.shown(), self.box()), ([("user", "One?"), ("assistant", "1")], "Two?"))
            self.press("Edit")
            self.assertEqual(self.failure(), "", "the box holds another message now")
            self.say(" Or two?")
            self.wait(lambda: "One? Or two?" in self.box())
            self.press("Cancel")
            self.assertEqual((self.shown(), self.box()), ([("user", "One?"), ("assistant", "1")], "Two?"))
        finally:
            self.server.start()
        self.ask("", "2", STOP)
        self.assertEqual(self.shown(), [("user", "One?"), ("assistant", "1"), ("user", "Two?"), ("assistant", "2")])

    def test_again_keeps_the_answer_until_there_is_another(self):
        self.ask("One?", "1", STOP)
        for reply in ((html(502),), (STOP,), ("piece", CUT), ("piece", {"error": {"message": "No memory."}}), ("piece",)):
            self.begin(lambda: self.press("Again"), *reply)
            self.go()
            self.idle()
            self.assertEqual((self.shown(), self.box()), ([("user", "One?"), ("assistant", "1")], ""))
            self.assertIn("The earlier answer is still here.", self.failure())
        self.begin(lambda: self.press("Again"), "late", STOP)
        self.press("Stop")
        self.idle()
        self.assertEqual(self.shown(), [("user", "One?"), ("assistant", "1")])
        self.begin(lambda: self.press("Again"), "2", WAIT, "late", STOP)
        self.go()
        self.comes("2")
        self.press("Stop")
        self.idle()
        self.assertEqual(self.shown(), [("user", "One?"), ("assistant", "2")])
        self.begin(lambda: self.press("Again"), "3", STOP)
        self.assertEqual(self.shown(), [("user", "One?"), ("assistant", "")])
        self.go()
        self.idle()
        self.assertEqual((self.shown(), self.failure()), ([("user", "One?"), ("assistant", "3")], ""))

    def test_an_edit_replaces_what_follows_once_it_is_answered(self):
        for number in "123":
            self.ask(f"{number}?", number, STOP)
        before = self.shown()
        self.get("question").send_keys("A draft")
        self.press("Edit", 0.5)
        self.assertEqual((self.shown(), self.box()), (before[:2], "2?"))
        self.press("Edit", 0)
        self.assertEqual((self.shown(), self.box()), ([], "1?"))
        self.press("Cancel")
        self.assertEqual((self.shown(), self.box()), (before, "A draft"))
        self.press("Edit", 0.5)
        self.ask("?", html(502))
        self.assertEqual((self.shown(), self.box()), (before[:2], "2??"))
        self.press("Cancel")
        self.assertEqual((self.shown(), self.box()), (before, "A draft"))
        self.press("Edit", 0.5)
        self.ask("!", "two", STOP)
        self.assertEqual((self.shown(), self.box()), ([*before[:2], ("user", "2?!"), ("assistant", "two")], "A draft"))

    def test_what_is_typed_ahead_is_kept(self):
        self.begin_to_ask("One?", refusal(503, "w" * 200))
        self.get("question").send_keys("Two?")
        self.go()
        self.idle()
        self.assertEqual(self.box(), "One?")
        self.require_no_wider_than_window()
        self.ask("", "1", STOP)
        self.assertEqual(self.box(), "Two?")

    def test_everything_is_pressed_while_an_answer_comes(self):
        self.ask("One?", "1", STOP)
        self.begin_to_ask("Two?", "2", WAIT, "!", STOP)
        for last in ("", "2"):
            self.say("Three?")
            for name in ("Send", "Again", "Edit"):
                self.assertFalse([one for one in browser.find_elements(By.XPATH, f"//button[text()='{name}']")
                                  if one.is_displayed() and one.is_enabled()], name)
            self.assertEqual(self.shown(), [("user", "One?"), ("assistant", "1"), ("user", "Two?"), ("assistant", last)])
            self.go()
            self.comes("2" if last == "" else "2!")
        self.idle()
        self.assertEqual((len(self.server.requests), self.box()), (2, "Three?Three?"))

    def test_a_stream_that_ends_too_early_is_no_complete_answer(self):
        for reply, note in (((CUT,), "The connection to the server failed."),
                            ((), "The connection ended before the answer was complete."),
                            (({"error": {"message": "No memory."}},), "No memory.")):
            self.begin_to_ask("One?", "1", WAIT, *reply)
            self.go()
            self.comes("1")
            self.go()
            self.idle()
            self.assertEqual(self.shown()[-1], ("assistant", "1"))
            self.assertEqual(browser.find_elements(By.CSS_SELECTOR, ".note")[-1].text, note)

    def test_a_connection_that_breaks_after_the_end_of_an_answer(self):
        self.begin_to_ask("One?", "1", LENGTH, WAIT, CUT)
        self.go()
        self.wait(lambda: browser.find_element(By.CSS_SELECTOR, ".note").text)
        self.go()
        self.idle()
        self.assertEqual(self.shown(), [("user", "One?"), ("assistant", "1")])
        self.assertEqual(browser.find_element(By.CSS_SELECTOR, ".note").text,
                         "The answer was cut off after 1 token: the context is full.")

    def test_a_proxy_answers_with_a_page_of_its_own(self):
        for reply, said in ((html(502), "Status 502 Bad Gateway came instead of an answer."),
                            (html(200), "Status 200 OK came instead of an answer."),
                            ((503, "application/json", '{"detail": "no"}'), "Status 503 Service Unavailable came instead"),
                            ((404, "application/json", "null"), "Status 404 Not Found came instead"),
                            ((500, "application/json", ""), "Status 500 Internal Server Error came instead")):
            self.ask("One?", reply)
            self.assertIn(said, self.failure())
            self.assertEqual((self.shown(), self.box()), ([], "One?"))
            self.get("question").clear()

    def test_an_empty_answer_is_no_turn(self):
        for reply in ((STOP,), ("\n", STOP)):
            self.ask("One?", *reply)
            self.assertEqual((self.shown(), self.box()), ([], "One?"))
            self.assertIn("The answer is empty.", self.failure())
            self.get("question").clear()

    def test_an_answer_is_as_long_as_the_context_allows(self):
        self.ask("One?", "1", "2", LENGTH)
        self.assertIsNone(self.server.requests[-1].body["max_tokens"])
        self.assertEqual(browser.find_element(By.CSS_SELECTOR, ".note").text,
                         "The answer was cut off after 2 tokens: the context is full.")
        self.open_options()
        self.fill(max_tokens=str(CONTEXT + 1))
        self.say("Two?")
        self.assertEqual((self.box(), self.failure()), ("Two?", ""), "more than the context is not sent")
        self.get("question").clear()
        for most, words in ((2, ("1", "2")), (1, ("1",))):
            self.fill(max_tokens=str(most))
            self.ask("Two?", *words, LENGTH)
            self.assertEqual(self.server.requests[-1].body["max_tokens"], most)
            self.assertEqual(browser.find_elements(By.CSS_SELECTOR, ".note")[-1].text,
                             f"The answer was cut off after {most} token{'s' * (most > 1)}.")

    def test_an_event_without_a_choice_adds_nothing(self):
        """A proxy may add the count of tokens, as OpenAI does when it is asked to."""
        self.ask("One?", "1", {"choices": [], "usage": {"completion_tokens": 1}}, "2", STOP)
        self.assertEqual((self.shown()[-1], self.failure()), (("assistant", "12"), ""))

    def test_each_option_is_sent_and_an_invalid_one_is_refused(self):
        keys = {"max_tokens": 7, "temperature": 0.25, "top_p": 0.5, "min_p": 0.125, "seed": -3}
        for name, bad in (("max_tokens", "0"), ("temperature", "-"), ("top_p", "2"), ("min_p", "-1"), ("seed", "9007199254740993"),
                          ("seed", "1.5"), ("key", "ключ")):
            self.open_options()
            self.fill(**{name: bad})
            self.open_options(False)
            self.say("One?")
            self.assertEqual((self.shown(), self.box(), self.failure()), ([], "One?", ""), (name, bad))
            self.assertTrue(self.get(name).is_displayed(), "the options are opened")
            self.get("question").clear()
            self.open_options()
            self.fill(**{name: str(keys.get(name, ""))})
        self.fill(key="a key", **{key: str(value) for key, value in keys.items()})
        self.ask("One?", "1", STOP)
        self.assertEqual(self.server.requests[-1].body | keys, self.server.requests[-1].body)
        self.assertEqual((self.server.requests[-1].authorization, len(self.server.requests)), ("Bearer a key", 1))
        self.require_controls({"New conversation", "Cancel", "Send", "Stop", "Edit", "Again"}, {"question", "system", "key", *keys})

    def test_a_template_demands_a_system_message(self):
        self.ask("One?", refusal(400, "messages: begin with a system message"))
        self.assertIn("begin with a system message", self.failure())
        self.open_options()
        self.get("system").send_keys("  Be brief.")
        self.assertEqual(self.shown(), [("system", "  Be brief.")])
        self.ask("", "1", STOP)
        self.assertEqual(self.shown(), [("system", "  Be brief."), ("user", "One?"), ("assistant", "1")])
        self.fill(system=" ")
        self.ask("Two?", "2", STOP)
        self.assertEqual(self.shown()[0], ("user", "One?"), "blanks are no system message")

    def test_indentation_is_sent_and_a_blank_message_is_not(self):
        self.say("  ")
        self.assertFalse(self.get("go").is_enabled())
        code = "    if x:\n        y\n"
        for line in code.splitlines(keepends=True):
            self.get("question").send_keys(line.rstrip("\n"), Keys.SHIFT, Keys.ENTER, Keys.NULL)
        self.ask("", "1", STOP)
        self.assertEqual(self.server.requests[-1].messages(), [("user", "  " + code)])

    def test_enter_that_ends_a_composition_does_not_send(self):
        self.get("question").send_keys("に")
        for keys in ("isComposing: true, keyCode: 13", "keyCode: 229"):
            self.assertTrue(browser.execute_script(f"""return document.getElementById("question").dispatchEvent(
                new KeyboardEvent("keydown", {{key: "Enter", bubbles: true, cancelable: true, {keys}}}))"""), "it is not taken")
        self.assertEqual((self.box(), len(self.server.requests)), ("に", 0))
        self.ask("", "1", STOP)

    def test_the_page_follows_an_answer_only_while_its_end_is_seen(self):
        top, rest = "return scrollY", "return document.documentElement.scrollHeight - innerHeight - scrollY"
        self.begin_to_ask("One?", "line\n" * 80, WAIT, "line\n" * 9, WAIT, "line\n" * 9, STOP)
        self.go()
        self.comes("line\n" * 80)
        self.assertLess(browser.execute_script(rest), 2)
        browser.execute_script("scrollBy(0, -100)")
        where = browser.execute_script(top)
        self.go()
        self.comes("line\n" * 89)
        self.assertEqual(browser.execute_script(top), where)
        browser.execute_script("scrollTo(0, 100000)")
        self.go()
        self.comes("line\n" * 98)
        self.idle()
        self.assertLess(browser.execute_script(rest), 2)
        browser.execute_script("scrollTo(0, 0)")
        self.begin_to_ask("Two?", "2", STOP)
        self.assertLess(browser.execute_script(rest), 2, "a question of one's own is shown")
        self.go()
        self.idle()

    def test_what_a_reader_selects_stays_and_what_is_gone_has_no_candidates(self):
        self.begin_to_ask("One?", "1", WAIT, "2", STOP)
        self.go()
        self.comes("1")
        browser.execute_script("getSelection().selectAllChildren(document.querySelector('.assistant span'))")
        self.go()
        self.idle()
        self.assertEqual(browser.execute_script("return getSelection().toString()"), "1")
        browser.find_element(By.CSS_SELECTOR, ".assistant span").click()
        self.assertTrue(self.get("candidates").is_displayed())
        self.begin(lambda: self.press("Again"), "3", STOP)
        self.assertFalse(self.get("candidates").is_displayed())
        self.go()
        self.idle()

    def test_whatever_is_pressed_the_model_reads_what_is_shown(self):
        """A random walk. A request ends with one turn that has an answer, or with the turns that were there before."""
        dice = random.Random(7)
        replies = [("1", STOP), ("1", WAIT, "2", STOP), ("1", LENGTH), (STOP,), ("1", CUT), ("1",), (html(502),),
                   (refusal(400, "No."),), ("1", WAIT, CUT)]
        before = []
        for move in range(80):
            running, count = self.get("stop").is_enabled(), len(self.server.requests)
            name = dice.choice(["go", "go", "go", "Stop", "New conversation", "Edit", "Again", "Enter"] if running else
                               ["Enter", "Enter", "Again", "Edit", "Edit", "Cancel", "New conversation"])
            if not running:
                before = self.shown(besides="none")
            if self.server.replies.empty():
                self.server.replies.put((WAIT, *dice.choice(replies)))
            if name == "go":
                now = self.shown()
                self.go()
                last = self.server.requests[-1].waits == 0  # then the request ends, whatever comes before
                self.wait(lambda: not self.get("stop").is_enabled() or (self.shown() != now and not last))
            elif name == "Enter":
                self.say(f"{move}?")
            else:
                self.press(name, dice.random())
            if name == "Stop":
                self.idle()
            if name == "New conversation":
                self.assertEqual((self.shown(), self.get("stop").is_enabled()), ([], False))
            elif not running and self.get("stop").is_enabled():
                self.wait(lambda: len(self.server.requests) > count)
                self.check_request()
            elif running and not self.get("stop").is_enabled():
                *others, last = self.shown(besides="none") or [None]
                if self.failure():
                    self.assertEqual([*others, last] if last else [], before)
                else:
                    self.assertEqual((others, last[0]), (self.server.requests[-1].messages(), "assistant"))
                    self.assertTrue(last[1])
        self.assertGreater(len(self.server.requests), 15)
        if self.get("stop").is_enabled():
            self.press("New conversation")

class Texts(Page):
    """The page that continues a prompt, at the worst moment."""

    @classmethod
    def setUpClass(cls):
        cls.server = ScriptedServer(ROOT / "common/server/page.html")
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.server.forget()
        browser.get(f"http://127.0.0.1:{self.server.port}/")
        self.wait(lambda: self.get("model").text == "parrot")

    def begin(self, *reply):
        count = len(self.server.requests)
        self.server.replies.put((WAIT, *reply))
        self.press("Continue")
        self.wait(lambda: len(self.server.requests) > count)

    def continue_text(self, *reply):
        self.begin(*reply)
        self.server.requests[-1].go()
        self.idle()

    def text(self):
        return self.get("text").get_attribute("textContent")

    def test_a_text_stays_until_there_is_another(self):
        self.continue_text(" there", " was", STOP)
        there_was = "Once upon a time there was"
        for reply, failure in (((html(502),), "Status 502 Bad Gateway came instead of a text."),
                               ((html(200),), "Status 200 OK came instead of a text."),
                               ((refusal(400, "It is too long."),), "It is too long."),
                               (({"error": {"message": "No memory."}},), "No memory."),
                               ((CUT,), "The connection to the server failed.")):
            self.continue_text(*reply)
            self.assertEqual((self.text(), self.get("failure").text), (there_was, failure))
        self.begin(" late", STOP)
        self.press("Stop")
        self.idle()
        self.assertEqual((self.text(), self.get("failure").text), (there_was, ""))
        self.server.stop()
        self.press("Continue")
        self.idle()
        self.server.start()
        self.assertEqual((self.text(), self.get("failure").text), (there_was, "The connection to the server failed."))
        self.continue_text(" is", STOP)
        self.assertEqual((self.text(), self.get("failure").text), ("Once upon a time is", ""))

    def test_a_text_that_ends_too_early_says_so(self):
        for reply, failure in (((CUT,), "The connection to the server failed."), ((LENGTH,), ""),
                               ((), "The connection ended before the text was complete.")):
            self.begin(" is", WAIT, *reply)
            self.server.requests[-1].go()
            self.wait(lambda: self.text() == "Once upon a time is")
            self.server.requests[-1].go()
            self.idle()
            self.assertEqual((self.text(), self.get("failure").text), ("Once upon a time is", failure))

    def test_a_connection_that_breaks_after_the_end_of_a_text(self):
        self.begin({"text": " is", **STOP}, WAIT, CUT)
        self.server.requests[-1].go()
        self.wait(lambda: self.text() == "Once upon a time is")
        self.server.requests[-1].go()
        self.idle()
        self.assertEqual((self.text(), self.get("failure").text), ("Once upon a time is", ""))

    def test_the_prompt_is_sent_as_it_is_and_each_option_too(self):
        keys = {"max_tokens": 7, "temperature": 0.25, "top_p": 0.5, "min_p": 0.125, "seed": -3}
        self.fill(prompt="  if x:", key="a key", **{key: str(value) for key, value in keys.items()})
        self.continue_text(" y", STOP)
        self.assertEqual(self.server.requests[-1].authorization, "Bearer a key")
        self.assertEqual(self.server.requests[-1].body | keys | {"prompt": "  if x:"}, self.server.requests[-1].body)
        self.require_controls({"Continue", "Stop"}, {"prompt", "key", *keys})
        for name, bad in (("max_tokens", str(CONTEXT + 1)), ("temperature", "-"), ("seed", "1.5"), ("key", "ключ")):
            self.fill(**{name: bad})
            self.press("Continue")
            self.assertFalse(self.get("stop").is_enabled(), name)
            self.fill(**{name: ""})
        self.assertEqual(len(self.server.requests), 1)

    def test_nothing_is_wider_than_a_phone(self):
        self.fill(prompt="w" * 200)
        self.continue_text("w" * 200, STOP)
        self.require_no_wider_than_window()
        self.continue_text(refusal(503, "w" * 200))
        self.require_no_wider_than_window()

    def test_the_candidates_of_a_token_stay_while_a_reader_looks_at_them(self):
        self.begin(" one", WAIT, " two", WAIT, " three", STOP)
        self.server.requests[-1].go()
        self.wait(lambda: self.text().endswith("one"))
        browser.execute_script("document.querySelector('#text span').focus()")
        self.server.requests[-1].go()
        self.wait(lambda: self.text().endswith("two"))
        self.assertIn('" one"', self.get("candidates").text)
        browser.execute_script("document.querySelector('#text span').blur()")
        self.server.requests[-1].go()
        self.idle()
        self.assertIn('" three"', self.get("candidates").text)


if __name__ == "__main__":
    unittest.main()
