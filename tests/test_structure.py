"""The tree: its folders, its layers of imports and its circles.

``python tests/test_structure.py`` prints the figures that the tests hold.
"""

import ast
import configparser
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "clnet"
LARGEST_CIRCLE = 1
MOST_NAMES = 14  # at the root of the package
MOST_FLOORS = 12  # of packages, and of modules at import
MOST_FILES = 25  # of a folder
SUFFIXES = {".py", ".cl", ".h"}
NO_KERNEL = {"__init__", "chain", "sparse", "products", "backward", "whole_step",
             "host"}


@cache
def modules():
    """The path of every module of the package, by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def named_by(nodes):
    """The package's modules that the imports among some nodes name."""
    known, found = modules(), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import: {ast.unparse(node)}"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
    return found & known.keys()


@cache
def imports():
    """The modules that each imports, deferred and type-only imports counted."""
    return {
        name: named_by(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        for name, path in modules().items()
    }


@cache
def chain(name):
    """The longest chain of imports at module level, from a module downwards."""
    def run_at_import(body):
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield node
            elif isinstance(node, ast.Try):
                yield from run_at_import(node.body)
            elif isinstance(node, ast.If):  # not the types alone
                types = ast.unparse(node.test) == "TYPE_CHECKING"
                yield from run_at_import(node.orelse if types else node.body)

    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    below = named_by(run_at_import(tree.body)) - {name}
    return name, *max(map(chain, sorted(below)), key=len, default=())


def circles():
    """The strongly connected components (Tarjan, 1972), those of one module too."""
    graph, found = imports(), []
    number, low, stack = {}, {}, []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in number:
            visit(node)
    return found


def layers():
    """The layers of import-linter's contract, the highest first."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    rows = contracts["importlinter:contract:layers"]["layers"].split("\n")
    return [[one.strip() for one in row.split("|")] for row in rows if row]


def names():
    """The modules and packages at the root of the package, but ``__init__`` and so."""
    found = {path.stem for path in PACKAGE.iterdir()
             if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return sorted(name for name in found if not name.startswith("__"))


def files():
    """How many sources each folder has."""
    folders = [ROOT / name for name in ("clnet", "kernels", "tests", "benchmarks")]
    return Counter(
        path.parent.relative_to(ROOT) for folder in folders
        for path in folder.rglob("*") if path.suffix in SUFFIXES
    )


def test_only_one_folder_imports_pyopencl():
    """All others call the session, its memory and its commands."""
    importers = {
        name for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import)
            and any(alias.name.split(".")[0] == "pyopencl" for alias in node.names))
        or (isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "pyopencl")
    }
    assert {name for name in importers if not name.startswith("clnet.opencl.")} == set()


def test_no_large_circle_of_imports():
    largest = max(circles(), key=len)
    assert len(largest) <= LARGEST_CIRCLE, largest


def test_chains_of_imports_are_short():
    longest = max(map(chain, modules()), key=len)
    assert len(longest) <= MOST_FLOORS, longest


def test_layers_are_few_and_name_every_package():
    rows = layers()
    assert len(rows) <= MOST_FLOORS
    named = {name.split(".")[1] for row in rows for name in row}
    assert named == set(names())


def test_the_root_has_few_names():
    assert len(names()) <= MOST_NAMES, names()


def test_folders_are_small():
    folder, count = files().most_common(1)[0]
    assert count <= MOST_FILES, folder


@pytest.mark.parametrize("folder", ["dense", "sparse", "stencil", "mixed", "training",
                                    "members", "reference"])
def test_a_variant_and_its_kernel_stand_at_the_same_path(folder):
    for path in sorted((PACKAGE / "variants" / folder).glob("*.py")):
        if path.stem not in NO_KERNEL:
            assert (ROOT / "kernels" / folder / f"{path.stem}.cl").is_file(), path
    modules = (PACKAGE / "variants" / folder).glob("*.py")
    texts = "".join(path.read_text(encoding="utf-8") for path in modules)
    for path in (ROOT / "kernels" / folder).glob("*.cl"):
        named = f"{folder}/{path.name}", f'{folder}/{{kernel}}.cl'
        assert any(name in texts for name in named), path
    assert (ROOT / "tests" / "variants" / folder).is_dir()


@pytest.mark.parametrize(
    "path", [p for p in modules().values() if p.name == "__init__.py"],
    ids=lambda path: path.parent.name,
)
def test_every_package_says_what_it_is(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text
    assert len(text.split()) >= 8


if __name__ == "__main__":
    largest = max(circles(), key=len)
    print(f"modules        {len(modules())}")
    print(f"largest circle {len(largest)}: {', '.join(largest)}")
    print(f"layers         {len(layers())}")
    longest = max(map(chain, modules()), key=len)
    print(f"module floors  {len(longest)}: {', '.join(longest)}")
    print(f"names          {len(names())}: {', '.join(names())}")
    for folder, count in files().most_common(3):
        print(f"files          {count} in {folder}")
