"""One page with all of a step inside.

  tests/playground/test_single_file.py      with the steps that tools/wasm has built"""

import unittest

import served_site
from served_site import PROGRAMS, ROOT, STEPS, Browser, setUpModule  # noqa: F401


class SingleFile(Browser):
    """One page with all of a step inside, opened from the disk."""

    def open(self, content=None, width=1200):
        from pages import playground
        from step_commands.series import steps
        self.step = STEPS[len(STEPS) // 3]
        self.page = served_site.FOLDER.parent / "single.html"
        content = content or playground.single_file(PROGRAMS, next(step for step in steps() if step.name == self.step), served_site.FOLDER)
        self.page.write_text(content, encoding="utf-8")
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
        self.browser.get(self.page.as_uri())
        return content

    def test_it_runs_again_and_again_and_asks_for_nothing(self):
        content = self.open()
        self.assertLess(len(content), 20_000_000)
        self.gives_the_tokens_of_the_native_program(self.step)
        self.type("--wrong 3")
        self.assertIn("ended with status 2", self.ended())
        self.type('--model tales-1m --prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        self.find(".playground input[type=file]")[1].send_keys(str(ROOT / "models/tales-gqa-1m"))  # also a page from the disk
        self.wait(lambda: "--model disk/tales-gqa-1m" in self.find("#playground-line")[0].get_attribute("value"))
        self.type('--model disk/tales-gqa-1m --prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        self.assertEqual([url for url in self.asked() if not url.startswith(("data:", "blob:", self.page.as_uri()))], [])
        self.assertEqual([entry["message"] for entry in self.browser.get_log("browser")], [])

    def test_it_is_the_page_of_the_step_and_leads_nowhere_else(self):
        self.open(width=360)
        self.assertEqual(self.find("h1")[0].text.strip("#"), self.browser.title.removesuffix(" - Staircase"))
        self.assertTrue(self.find("details.file"))
        self.assertTrue(self.find("button.try"))
        for link in self.find("a[href]"):
            self.assertRegex(link.get_dom_attribute("href"), "^(#|https?:)")
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)

    def test_one_that_was_cut_off_says_so(self):
        whole = self.open()
        place = whole.index('data-file="models/tales-6m/model.safetensors"')
        for end in (place - 100_000, place + 5_000_000):
            self.open(whole[:end])
            self.type('--prompt "A"')
            self.wait(lambda: self.find(".problem")[0].text)
            self.assertRegex(self.find(".problem")[0].text, r"^This cannot run: models/tales-\dm/\S+ in this page is damaged")
        self.open(whole[:place - len('<script type="application/gzip" ')])
        self.type('--prompt "A"')
        self.assertRegex(self.ended(), r"^cannot run: models/tales-6m/\S+ is not in this page, which may have been cut off")


if __name__ == "__main__":
    unittest.main()
