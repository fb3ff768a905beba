"""Feed-forward neural networks, run and trained on any OpenCL device.

The stub beside this file lists the public names. Each is imported at its first use.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
