"""Storages: where the entries of a layer's matrix A [n_out, n_in] are.

A storage never holds values: they live in the network's flat parameter buffer.
"""

from clnet.storage.base import Entries, Storage, entry_matrix
from clnet.storage.dense import DenseStorage

__all__ = ["DenseStorage", "Entries", "Storage", "entry_matrix"]
