"""A network as users describe it: layers, functions, storages, parameters. No OpenCL.

Imports `errors` and `checks` alone; `nn.storage`, the matrix formats, imports nothing
else of `nn`. Start with `layers`, then `description` (layers in a row), `model` (with
their parameters) and `optimisers`.
"""

from typing import Any

import lazy_loader

__getattr__: Any = lazy_loader.attach(__name__, ["optimisers", "schedules"])[0]
