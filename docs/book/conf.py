"""Sphinx's settings for the book. The sources are the Markdown files of the whole repository; tools/book builds it."""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here.parents[1] / "tools")]

project = "Staircase"
language = "en"
extensions = ["myst_parser", "pages.extension"]
root_doc = "README"
include_patterns = ["README.md", "docs/**.md", "steps/*/README.md"]
exclude_patterns = [".*", "build*", "bench", "common", "kernels", "models", "practice", "tests", "tools", "docs/book"]
source_suffix = {".md": "markdown"}
smartquotes = False
highlight_language = "none"
pygments_style = "pages.colours.Light"
pygments_dark_style = "pages.colours.Dark"
suppress_warnings = ["myst.header", "toc.excluded", "misc.highlighting_failure"]

# Links are resolved by pages/links.py, which reports broken ones.
myst_all_links_external = True
myst_enable_extensions = []

html_theme = "furo"
html_title = "Staircase"
html_show_sourcelink = False
html_copy_source = False
html_use_index = False
html_domain_indices = False
html_show_copyright = False
html_permalinks_icon = "#"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
templates_path = ["templates"]
html_sidebars = {"**": ["sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/navigation.html",
                        "sidebar/scroll-end.html"]}
