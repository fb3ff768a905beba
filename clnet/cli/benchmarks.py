"""Where the benchmarks are: in the package, else in the checkout beside it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from clnet.errors import InputError

PACKAGE = "clnet.benchmarks"


def benchmarks(name: str) -> ModuleType:
    """Return a module of the benchmarks, as ``benchmarks("command")``.

    Raises
    ------
    InputError
        If the folder is neither in the package nor beside it.
    """
    if PACKAGE not in sys.modules:
        here = Path(__file__).resolve().parents[1]
        folders = (here / "benchmarks", here.parent / "benchmarks")
        files = [folder / "__init__.py" for folder in folders]
        found = next((file for file in files if file.is_file()), None)
        if found is None:
            raise InputError(
                f"the benchmarks are missing: expected a folder 'benchmarks' in {here} "
                "or beside it; install clnet again"
            )
        spec = importlib.util.spec_from_file_location(
            PACKAGE, found, submodule_search_locations=[str(found.parent)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[PACKAGE] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return importlib.import_module(f"{PACKAGE}.{name}")
