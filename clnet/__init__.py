"""Feed-forward neural networks, run and trained on any OpenCL device."""

from clnet import optimisers, schedules
from clnet.callbacks import Checkpoint, EarlyStopping
from clnet.device import Device
from clnet.discovery import device, devices
from clnet.errors import (
    BuildError,
    ClnetError,
    ClnetWarning,
    DeviceError,
    FormatError,
    InputError,
)
from clnet.formats import load, load_data, save_data
from clnet.history import History, TrainingState
from clnet.layers import Dense, Local, Sparse
from clnet.network import Network
from clnet.scaling import Scaling
from clnet.storage import Pattern

__version__ = "0.1.0"

__all__ = [
    "BuildError",
    "Checkpoint",
    "ClnetError",
    "ClnetWarning",
    "Dense",
    "Device",
    "DeviceError",
    "EarlyStopping",
    "FormatError",
    "History",
    "InputError",
    "Local",
    "Network",
    "Pattern",
    "Scaling",
    "Sparse",
    "TrainingState",
    "device",
    "devices",
    "load",
    "load_data",
    "optimisers",
    "save_data",
    "schedules",
]
