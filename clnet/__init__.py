"""Feed-forward neural networks, run on any OpenCL device."""

from clnet.device import Device, device, devices
from clnet.errors import (
    BuildError,
    ClnetError,
    ClnetWarning,
    DeviceError,
    FormatError,
    InputError,
)
from clnet.formats import load, load_data, save_data
from clnet.network import Dense, Network

__version__ = "0.1.0"

__all__ = [
    "BuildError",
    "ClnetError",
    "ClnetWarning",
    "Dense",
    "Device",
    "DeviceError",
    "FormatError",
    "InputError",
    "Network",
    "device",
    "devices",
    "load",
    "load_data",
    "save_data",
]
