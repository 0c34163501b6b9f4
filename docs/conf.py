"""Sphinx settings; `make docs` builds the pages into docs/_build/html."""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]  # use these sources, not an installed valuefit

project = "valuefit"
author = copyright = "The valuefit developers"
version = release = importlib.import_module("valuefit").__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # copies MathJax into the pages, which then need no network
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "docstrings",
]
# the pages of execution times need scripts from the network
exclude_patterns = [
    "_build",
    "sg_execution_times.rst",
    "gallery/sg_execution_times.rst",
    "gallery/**/sg_execution_times.rst",
]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]
math_numfig = False
highlight_language = "text"
smartquotes = False  # quotes are often part of code

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Array": "Array"}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False

# The scripts run at every build; `sphinx-build -D plot_gallery=0` leaves them and their pictures out.
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "thumbnail_size": (400, 220),
    "within_subsection_order": "reading_order.ReadingOrder",
    "run_stale_examples": True,
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1,
}

html_theme = "pydata_sphinx_theme"
html_title = f"valuefit {version}"
html_theme_options = {
    "show_prev_next": False,
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "others": [], "theory/complexity": []},  # wide tables
    "footer_start": ["copyright"],
    "footer_end": ["glossary-link"],
}
html_sidebars = {"index": [], "quickstart": [], "teaching/index": []}  # these pages have no subpages
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["valuefit.css", "gallery.css"]
html_show_sourcelink = False
html_copy_source = False
