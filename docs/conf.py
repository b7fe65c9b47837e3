"""Configuration of the site, which scripts/docs builds from these pages, per.h and the docstrings of both packages."""

import pathlib
import re
import sys

import per.typing

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "extensions"))

project = "libper"
author = "The libper authors"
release = re.search(r"VERSION (\d+\.\d+\.\d+)", (HERE.parent / "CMakeLists.txt").read_text())[1]
html_title = f"libper {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["c_header", "julia_docstrings", "docstrings", "plain_pages"]  # docs/extensions
exclude_patterns = ["README.md"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", ".*"),
    ("c:identifier", r"u?int\d+_t"),
]  # modules of numpy and others have no pages here

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_type_aliases = {name: name for name in vars(per.typing) if name[0].isupper()}  # as they are written
napoleon_preprocess_types = True
python_maximum_signature_line_length = 88  # a longer one gets a line for each argument
highlight_language = "text"
