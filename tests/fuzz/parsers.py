"""The parsers of files: seeds, mutations, and an oracle that reads a file by itself.

An oracle reads what a file means with NumPy and C's strtod, by none of clnet's parsers.
It reads the files that clnet accepted only: where it differs, or cannot read one, clnet
has accepted something that the file does not say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from . import data, mutations, networks, sources, states


@dataclasses.dataclass(frozen=True)
class Parser:
    """A parser, and what it is tested with."""

    suffix: str  # Of its files
    seeds: Callable[[], list[bytes]]  # Returns the contents of undamaged files
    mutate: mutations.Mutation  # Of `mutations`
    load: Callable[[Path], Any]  # Reads a file by clnet
    # Compares the content of an accepted file, by the oracle, with what was read;
    # returns the samples of data
    check: Callable[[bytes, Any], np.ndarray | None]


PARSERS = {
    "net": Parser(".net", networks.net_seeds, mutations.text, networks.load_network,
                  networks.net_check),
    "safetensors": Parser(".safetensors", networks.safetensors_seeds,
                          mutations.safetensors, networks.load_network,
                          networks.safetensors_check),
    "data": Parser(".data", data.data_seeds, mutations.text, data.load_data,
                   data.data_check),
    "gz": Parser(".data.gz", data.gz_seeds, mutations.gzipped, data.load_data,
                 data.gz_check),
    "csv": Parser(".csv", data.csv_seeds, mutations.text, data.load_table,
                  data.csv_check),
    "table": Parser(".csv", data.table_seeds, mutations.text, data.load_named,
                    data.table_check),
    "npz": Parser(".npz", data.npz_seeds, mutations.archive, data.load_data,
                  data.npz_check),
    "state": Parser(".state.npz", states.state_seeds, mutations.archive,
                    states.state_load, states.state_check),
    "checkpoint": Parser(".safetensors", states.checkpoint_seeds, mutations.checkpoint,
                         states.checkpoint_load, states.checkpoint_check),
    "store": Parser(".sqlite3", states.store_seeds, states.store_mutation,
                    states.store_load, states.store_check),
    "times": Parser(".json", states.times_seeds, states.times_mutation,
                    states.times_load, states.times_check),
    "npy": Parser(".npy", sources.npy_seeds, sources.npy_mutate, sources.load_array,
                  sources.npy_check),
}
if find_spec("h5py") is not None:  # extras
    PARSERS["hdf5"] = Parser(".h5", sources.hdf5_seeds, mutations.binary,
                             sources.load_hdf5, sources.hdf5_check)
if find_spec("pyarrow") is not None:
    PARSERS["arrow"] = Parser(".arrow", sources.arrow_seeds, sources.arrow_mutate,
                              sources.load_table, sources.arrow_check)
    PARSERS["parquet"] = Parser(".parquet", sources.parquet_seeds,
                                sources.parquet_mutate, sources.load_table,
                                sources.parquet_check)
if find_spec("onnx") is not None:  # an extra
    from . import onnx_files

    PARSERS["onnx"] = Parser(".onnx", onnx_files.seeds, onnx_files.mutate,
                             networks.load_network, onnx_files.check)
