"""Child processes under MPI's launcher."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from children import child_environment

MPIEXEC = shutil.which("mpiexec", path=Path(sys.executable).parent) or shutil.which(
    "mpiexec"
)
OPEN_MPI = {  # which refuses more ranks than cores, and root
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1,
}


def command(ranks, *arguments):
    """Return the command of so many processes of this Python, as keywords of `run`."""
    return {
        "args": [MPIEXEC, "-n", str(ranks), sys.executable, *map(str, arguments)],
        "env": child_environment(**OPEN_MPI), "text": True,
    }
