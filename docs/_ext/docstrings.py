"""Single backticks in docstrings: parameters are emphasised, objects are linked.

An object is named as a user would: `Network.fit` wherever it stands, `clnet.optimisers`
by its public name. An attribute without an entry of its own leads to its class.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

PUBLIC = {
    "clnet.optimisers": "clnet.nn.optimisers", "clnet.schedules": "clnet.nn.schedules"
}
NAME = re.compile(r"(?<![`:\w])`(?P<name>\w+)`(?!`)")


def parameters(subject: Any) -> set[str]:
    """Return the names of an object's parameters; none for other objects."""
    try:
        return set(inspect.signature(subject).parameters)
    except (TypeError, ValueError):
        return set()


def _emphasise(
    app: Sphinx, kind: str, name: str, subject: Any, options: Any, lines: list[str]
) -> None:
    names = parameters(subject)

    def replaced(found: re.Match[str]) -> str:
        return f"*{found['name']}*" if found["name"] in names else found[0]

    lines[:] = [NAME.sub(replaced, line) for line in lines]


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Return the link of a reference that the usual rules find nothing for, if any."""
    if node.get("refdomain") != "py" or node.get("refspecific"):
        return None
    domain, target = env.domains.python_domain, node["reftarget"]
    owner = target.rpartition(".")[0]
    for name in filter(None, (PUBLIC.get(target, target), owner)):
        if domain.find_obj(env, None, None, name, "obj", 1):
            node["refspecific"] = True
            return domain.resolve_xref(
                env, node["refdoc"], app.builder, "obj", name, node, content
            )
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("autodoc-process-docstring", _emphasise, priority=600)  # after numpydoc
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
