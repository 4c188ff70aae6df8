"""Configure Sphinx, which builds the site (`nox -s docs`). Pages are Markdown; links between them are checked."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "Plumbline"
html_title = "Plumbline"
author = "the Plumbline authors"
extensions = ["myst_parser", "extension"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["build", "deploy", "static"]
# Pages of servers and rules are linked from the tables; examples show JSON with "…" and HAProxy's language.
suppress_warnings = ["misc.highlighting_failure", "toc.not_included"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# `conformance/reference_servers/pages.py` writes the exchanges of the judged servers and their recordings.
html_extra_path = ["build/extra"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme = "furo"
# Nothing is loaded from elsewhere: furo brings its fonts and scripts.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f6b5e", "color-brand-content": "#1f6b5e"},
    "dark_css_variables": {"color-brand-primary": "#6fc3b2", "color-brand-content": "#6fc3b2"},
}
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
nitpicky = True
