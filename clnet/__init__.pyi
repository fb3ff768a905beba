"""The public names; each is imported at its first use."""

from .errors import (
    BuildError as BuildError,
)
from .errors import (
    ClnetError as ClnetError,
)
from .errors import (
    ClnetWarning as ClnetWarning,
)
from .errors import (
    DeviceError as DeviceError,
)
from .errors import (
    FormatError as FormatError,
)
from .errors import (
    InputError as InputError,
)
from .formats import load_data as load_data
from .formats import load_table as load_table
from .formats import save_data as save_data
from .formats.opening import open_data as open_data
from .network import Network as Network
from .network import load as load
from .nn import optimisers as optimisers
from .nn import schedules as schedules
from .nn.cascade import Cascade as Cascade
from .nn.columns import Column as Column
from .nn.columns import Columns as Columns
from .nn.layers import Dense as Dense
from .nn.layers import Local as Local
from .nn.layers import Sparse as Sparse
from .nn.scaling import Scaling as Scaling
from .nn.storage.pattern import Pattern as Pattern
from .opencl.device import Device as Device
from .opencl.discovery import device as device
from .opencl.discovery import devices as devices
from .population import Population as Population
from .training.callbacks import Checkpoint as Checkpoint
from .training.callbacks import CSVLogger as CSVLogger
from .training.callbacks import EarlyStopping as EarlyStopping
from .training.callbacks import TensorBoard as TensorBoard
from .training.history import History as History
from .training.history import TrainingState as TrainingState

__version__: str
__all__: list[str]
