"""Sphinx's configuration: ``python -m sphinx -W -n -j auto docs site``.

The pages load nothing from other hosts, and the build needs none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "_ext")]

import clnet  # noqa: E402  from the folder above

# Of the command line's help, and of the notebooks' processes.
os.environ |= {
    "CLNET_DEVICE": "cpu", "COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": sys.path[0],
    # The shell's clnet and python are those of the build, activated or not.
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
}

project = "clnet"
author = "The clnet developers"
copyright = author  # noqa: A001  Sphinx's name
release = clnet.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "command_help",
    "docstrings",
    "drawings",
    "kernel_notes",
    "measured_rows",
    "tree_links",
]
exclude_patterns = ["_ext", "_static"]

# Docstrings: NumPy's style, in which a single backtick refers to an object.
default_role = "py:obj"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# Markdown and notebooks.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

# Objects of other libraries, which have sites of their own: no page is loaded to link.
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|np|torch|nn|scipy|sklearn|pandas|onnx)\..*"),
    ("py:.*", "r2_score"),  # in scikit-learn's docstrings, which the estimators inherit
]

html_theme = "furo"
html_title = f"clnet {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "github-dark"

_caches = tempfile.TemporaryDirectory()  # of notebooks: neither the user's, nor shared


def _own_caches(*_: Any) -> None:
    """Give each process of the build its own caches: two may damage that of PoCL."""
    for name in ("CLNET_CACHE_DIR", "POCL_CACHE_DIR"):
        folder = Path(_caches.name, f"{name}-{os.getpid()}")
        folder.mkdir(exist_ok=True)
        os.environ[name] = str(folder)


def setup(app: Any) -> None:
    """Set the caches before a notebook of the page is run."""
    app.connect("source-read", _own_caches)
