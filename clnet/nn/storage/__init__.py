"""Storages: where the entries of a layer's matrix A [n_out, n_in] are.

A storage never holds values: they live in the network's flat parameter buffer.
"""

from clnet.nn.storage.base import Entries, Storage, entry_matrix
from clnet.nn.storage.coo import CooStorage
from clnet.nn.storage.csr import CsrStorage
from clnet.nn.storage.dense import DenseStorage, MaskedStorage, RowStorage
from clnet.nn.storage.dia import DiaStorage
from clnet.nn.storage.ell import EllStorage
from clnet.nn.storage.formats import FORMATS, Memory, converted, memory_table
from clnet.nn.storage.hyb import hyb, hyb_width
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.pattern import Pattern
from clnet.nn.storage.sell import SellStorage
from clnet.nn.storage.sparse import SparseStorage

__all__ = [
    "FORMATS", "CooStorage", "CsrStorage", "DenseStorage", "DiaStorage", "EllStorage",
    "Entries", "LocalStorage", "MaskedStorage", "Memory", "Pattern", "RowStorage",
    "SellStorage", "SparseStorage", "Storage", "converted", "entry_matrix", "hyb",
    "hyb_width", "memory_table",
]
