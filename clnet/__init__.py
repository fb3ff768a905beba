"""Feed-forward neural networks, run and trained on any OpenCL device."""

from clnet.errors import (
    BuildError,
    ClnetError,
    ClnetWarning,
    DeviceError,
    FormatError,
    InputError,
)
from clnet.formats import load_data, save_data
from clnet.network import Network, load
from clnet.nn import optimisers, schedules
from clnet.nn.layers import Dense, Local, Sparse
from clnet.nn.scaling import Scaling
from clnet.nn.storage.pattern import Pattern
from clnet.opencl.device import Device
from clnet.opencl.discovery import device, devices
from clnet.training.callbacks import Checkpoint, EarlyStopping
from clnet.training.history import History, TrainingState

__version__ = "0.1.0"

__all__ = [
    "BuildError", "Checkpoint", "ClnetError", "ClnetWarning", "Dense", "Device",
    "DeviceError", "EarlyStopping", "FormatError", "History", "InputError", "Local",
    "Network", "Pattern", "Scaling", "Sparse", "TrainingState", "device", "devices",
    "load", "load_data", "optimisers", "save_data", "schedules",
]
