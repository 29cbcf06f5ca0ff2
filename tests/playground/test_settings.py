"""Presets and sliders.

  tests/playground/test_settings.py      with the steps that tools/wasm has built"""

import unittest

from served_site import STEPS, Browser, By, Keys, setUpModule  # noqa: F401


class Settings(Browser):
    """Presets and sliders, which write into the command line."""

    def line(self):
        return self.find("#playground-line")[0].get_attribute("value")

    def sliders(self):
        return {row.find_element(By.TAG_NAME, "code").get_attribute("textContent"): row.find_element(By.TAG_NAME, "input") for row in self.find(".sliders label")}

    def open_wide(self, step):
        self.open(step)
        self.browser.execute_script("document.querySelector('.sliders').open = true")

    def test_sliders_begin_at_the_first_step_with_the_option(self):
        begins = {"--temperature": "temperature", "--do-sample": "multinomial", "--top-k": "top-k", "--top-p": "top-p", "--presence-penalty": "presence-penalty",
                  "--num-speculative-tokens": "speculative-decoding"}
        for option, name in begins.items():
            step = next((step for step in STEPS if step.partition('-')[2] == name), None)
            if not step:
                continue
            with self.subTest(option):
                for page, there in ((step, True), (f"{int(step[:2]) - 1:02}", False)):
                    page = next((one for one in STEPS if one.startswith(page)), None)
                    if not page:
                        continue
                    self.open(page)
                    self.assertEqual(option in self.sliders(), there)

    @unittest.skipUnless("06-top-k" in STEPS, "its step is not built")
    def test_a_slider_and_the_line_follow_each_other(self):
        self.open_wide("06-top-k")
        line = self.find("#playground-line")[0]
        line.clear()
        line.send_keys("--prompt 'it is' --top-k 7")  # the page's own command has 3
        sliders = self.sliders()
        self.assertEqual(sliders["--top-k"].get_attribute("aria-valuetext"), "7")
        self.assertEqual(sliders["--temperature"].get_attribute("aria-valuetext"), "1")
        sliders["--top-k"].send_keys(Keys.ARROW_RIGHT * 2)
        sliders["--temperature"].send_keys(Keys.ARROW_LEFT)
        sliders["--do-sample"].click()
        self.assertEqual(self.line(), "--prompt 'it is' --top-k 9 --temperature 0.95 --do-sample")
        sliders["--temperature"].send_keys(Keys.ARROW_RIGHT)
        sliders["--top-k"].send_keys(Keys.END)
        sliders["--do-sample"].click()
        self.assertEqual(self.line(), "--prompt 'it is'")
        self.assertEqual(sliders["--top-k"].get_attribute("aria-valuetext"), "off")
        line.send_keys(" --prompt 'open")
        sliders["--top-k"].send_keys(Keys.HOME)
        self.assertIn("This cannot be set: in the command line a quotation mark ' is open", self.find(".problem")[0].text)
        self.assertEqual(self.line(), "--prompt 'it is' --prompt 'open")
        self.assertEqual([name for name, slider in sliders.items() if slider.accessible_name.split()[0] != name], [])

    @unittest.skipUnless("06-top-k" in STEPS, "its step is not built")
    def test_a_preset_runs_with_its_options(self):
        self.open("06-top-k")
        self.assertEqual([button.text for button in self.find(".preset")], ["Keep 2", "Keep 40", "Keep all"])
        for i, option in enumerate(("--top-k 2", "--top-k 40", "")):
            self.browser.execute_script("arguments[0].click()", self.find(".preset")[i])
            self.wait(lambda: len(self.find(".run")) == i + 1)  # noqa: B023
            self.assertIn("done", self.ended())
            self.assertIn(f"{option} " if option else "--do-sample", self.line())
            self.assertEqual("--top-k" in self.line(), bool(option))
            self.assertEqual(self.find(".run")[0].accessible_name, self.line())

    def test_they_fit_a_narrow_screen(self):
        for step in STEPS[::6]:
            self.open(step, width=360)
            self.browser.execute_script("document.querySelector('.sliders').open = true")
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
            self.assertIn("--max-new-tokens", self.sliders())


if __name__ == "__main__":
    unittest.main()
