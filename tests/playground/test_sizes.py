"""How large the programs of pages are, and how much memory pages expect them to take.

  tests/playground/test_sizes.py      with the steps that tools/wasm has built"""

import gzip
import re
import unittest

import served_site
from served_site import ROOT, STEPS, TALKS, setUpModule  # noqa: F401


class Size(unittest.TestCase):
    def test_steps_share_their_glue(self):
        wanted = {re.search(r'data-glue="([^"]*)"', (served_site.FOLDER / f"steps/{step}/index.html").read_text(encoding="utf-8"))[1]
                  for step in STEPS + TALKS}
        self.assertEqual(wanted, {path.name for path in served_site.FOLDER.glob("playground/glue-*.js")})
        self.assertLessEqual(len(wanted), 4)  # those that plot make folders and start gnuplot

    def test_a_step_is_small(self):
        """Its program and the glue, compressed as servers do."""
        for step in STEPS + TALKS:
            page = (served_site.FOLDER / f"steps/{step}/index.html").read_text(encoding="utf-8")
            glue = re.search(r'data-glue="([^"]*)"', page)[1]
            parts = [served_site.FOLDER / f"playground/steps/{step}.wasm", served_site.FOLDER / "playground" / glue]
            # The interpreter of templates alone has 47 KB, the reader of schemas 32, and that of adapters 8.
            limit = 695_000 if step in TALKS or step.endswith("chat-template") else 675_000 if step == "104-json-schema" else 645_000
            with self.subTest(step):
                self.assertLess(sum(len(gzip.compress(part.read_bytes())) for part in parts), limit)


class Memory(unittest.TestCase):
    def test_a_page_counts_with_the_memory_that_programs_are_linked_for(self):
        linked = re.search(r"-sMAXIMUM_MEMORY=(\d+)", (ROOT / "playground/emscripten.ini").read_text(encoding="utf-8"))[1]
        counted = re.search(r"MEMORY_LIMIT = 2 \*\* (\d+);", (ROOT / "playground/disk.js").read_text(encoding="utf-8"))[1]
        self.assertEqual(int(linked), 2 ** int(counted))


if __name__ == "__main__":
    unittest.main()
