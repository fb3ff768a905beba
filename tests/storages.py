"""A matrix from the entries of a storage, whatever its format."""

import numpy as np


def entry_matrix(storage, values):
    """Return A [n_out, n_in] by adding up the live entries of any storage."""
    entries = storage.entries()
    matrix = np.zeros((storage.n_out, storage.n_in), values.dtype)
    live = entries.live
    np.add.at(matrix, (entries.rows[live], entries.columns[live]), values[live])
    return matrix
