"""The documentation as a site: ``sphinx-build -W -c docs . build/site``, or ``build/site`` anywhere else.

The source folder is the whole repository, so that a link from one Markdown file to another works in the site exactly as
it does where files are read one by one. Nothing in the site is loaded from elsewhere.
"""

from pathlib import Path

from oscbench import __version__

ROOT = Path(__file__).parents[1]
PAGES = ("docs", "benchmarks", "CONTRIBUTING.md", "CHANGELOG.md")
"""What of the repository is in the site; everything else is not even looked at, a runs folder can be large."""

project = "oscbench"
author = "the oscbench authors"
release = version = __version__
root_doc = "docs/index"
exclude_patterns = [path.name for path in ROOT.iterdir() if path.name not in PAGES]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3  # the anchors that code hosts give headings
highlight_language = "none"
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"oscbench {release}"
html_copy_source = False
html_show_copyright = False
html_extra_path = ["site"]
