"""Storages: where the entries of a layer's matrix A [n_out, n_in] are.

A storage never holds values: they live in the network's flat parameter buffer.
"""

from clnet.storage.base import Entries, Storage, entry_matrix
from clnet.storage.coo import CooStorage
from clnet.storage.csr import CsrStorage
from clnet.storage.dense import DenseStorage, MaskedStorage, RowStorage
from clnet.storage.dia import DiaStorage
from clnet.storage.ell import EllStorage
from clnet.storage.formats import FORMATS, Memory, converted, memory_table
from clnet.storage.hyb import hyb, hyb_width
from clnet.storage.local import LocalStorage
from clnet.storage.pattern import Pattern
from clnet.storage.sell import SellStorage
from clnet.storage.sparse import SparseStorage

__all__ = [
    "FORMATS", "CooStorage", "CsrStorage", "DenseStorage", "DiaStorage", "EllStorage",
    "Entries", "LocalStorage", "MaskedStorage", "Memory", "Pattern", "RowStorage",
    "SellStorage", "SparseStorage", "Storage", "converted", "entry_matrix", "hyb",
    "hyb_width", "memory_table",
]
