"""Checks of users' arguments."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from importlib import import_module
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.errors import ClnetError, InputError, quoted, reason, unknown

INT_MAX = 2**31 - 1  # of sizes and indices: kernels count in OpenCL's int
NUMBER_KINDS = "biuf"  # NumPy's letters of types of numbers
MANY = 4096  # numbers, of which a sum is worth its call
SPARE = 1.25  # of the numbers of rows and those between them
PRECISIONS = ("highest", "high", "medium")
"""Precision of float32 products: factors of float32's 24 bits, of TF32's 11, of
bfloat16's 8. The first is the default."""


def installed(
    module: str, what: str, extra: str | None = None,
    error_type: type[ClnetError] = ClnetError,
) -> Any:
    """Return a module of an optional package, or raise an error that names its need.

    `extra` is clnet's extra that brings the package; None: none does.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        cure = "" if extra is None else f", or with clnet: pip install 'clnet[{extra}]'"
        raise error_type(
            f"{what} needs {package}, which is not installed ({error}): pip install "
            f"{package}{cure}"
        ) from None


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether an object is a whole number, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether an object is a number, and no bool."""
    return is_whole(value) or isinstance(value, (float, np.floating))


def as_whole(
    name: str, value: object, least: int = 1, most: int | None = None
) -> int:
    """Return a whole number within bounds as an int: Python's or NumPy's, no bool.

    Every whole number of a caller comes through here: NumPy's own would overflow in
    later arithmetic, and differ as text and as a key.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    bound = f"at least {least}"
    if is_whole(value) and value >= least:
        if most is None or value <= most:
            return int(value)
        bound = f"at most {most}"
    raise InputError(f"{name} must be a whole number of {bound}, not {quoted(value)}")


def convert_wholes(
    record: object, *names: str, least: int = 1, most: int | None = None
) -> None:
    """Replace fields of a frozen record by what `as_whole` returns for them."""
    for name in names:
        value = as_whole(name, getattr(record, name), least, most)
        object.__setattr__(record, name, value)


def check_flag(name: str, value: object, *, optional: bool = False) -> None:
    """Raise InputError unless an object is True or False, or None where `optional`."""
    if isinstance(value, (bool, np.bool_)) or (optional and value is None):
        return
    expected = "True, False or None" if optional else "True or False"
    raise InputError(f"{name} must be {expected}, not {quoted(value)}")


def is_among(value: object, names: Collection[str]) -> TypeGuard[str]:
    """Return whether an object is text and one of some names; an array is not."""
    return isinstance(value, str) and value in names


def check_name(kind: str, value: object, names: Collection[str]) -> None:
    """Raise the error of `unknown` unless an object is one of some names."""
    if not is_among(value, names):
        raise unknown(kind, value, names)


def check_precision(precision: object) -> None:
    """Raise InputError unless there is such a precision."""
    check_name("precision", precision, PRECISIONS)


def is_many(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether an object has items; text and an array without axes have none."""
    text = isinstance(value, (str, bytes))
    return isinstance(value, Iterable) and not text and getattr(value, "ndim", 1) != 0


def is_list(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether an object is a sequence, but no text, or an array with axes."""
    return is_many(value) and isinstance(value, (Sequence, np.ndarray))


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise InputError unless an object is of a class, or None."""
    if not (value is None or isinstance(value, kind)):
        raise InputError(
            f"{name} must be {kind.__name__} or None, not {quoted(value)}"
        )


def as_items(value: object) -> list[Any]:
    """Return the items of an iterable; none for all else, as a number."""
    try:
        return list(value)  # type: ignore[call-overload,no-any-return]
    except TypeError:  # an array without axes is an Iterable too
        return []


def is_sparse(value: object) -> TypeGuard[Any]:
    """Return whether an object is a scipy.sparse matrix; SciPy is not imported."""
    return hasattr(value, "tocsr") and hasattr(value, "toarray")


def checked_sparse(name: str, matrix: Any) -> Any:
    """Return a scipy.sparse matrix whose indices are within its shape.

    SciPy's constructors read few of them, and its conversions write wherever they say.
    """
    try:
        if hasattr(matrix, "check_format"):  # csr, csc, bsr
            matrix.check_format(full_check=True)
            return matrix
        matrix = matrix.tocoo()  # of the others, lists and dicts, by checked steps
        axes = getattr(matrix, "coords", None) or (matrix.row, matrix.col)
        for indices, size in zip(axes, matrix.shape, strict=True):
            if len(indices) != len(matrix.data):
                raise ValueError(f"{len(indices)} indices of {len(matrix.data)} values")
            if indices.size and not 0 <= indices.min() <= indices.max() < size:
                raise ValueError(f"an index is not from 0 to {size - 1}")
    except (ValueError, IndexError) as error:
        shape = list(matrix.shape)
        raise InputError(
            f"{name} is a sparse matrix {shape} with wrong indices: {error}"
        ) from None
    return matrix


def as_rows(name: str, matrix: Any) -> Any:
    """Return a scipy.sparse matrix, checked, in a form whose rows can be sliced."""
    matrix = checked_sparse(name, matrix)
    return matrix.tocsr() if matrix.ndim == 2 else matrix.toarray()


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return an array of any library as NumPy's, without a copy of host memory.

    NumPy reads sequences, buffers and objects with ``__array__`` or
    ``__array_interface__``; others come by DLPack. A tensor of PyTorch may require a
    gradient, be on a device, or be sparse. bfloat16 and other types that NumPy lacks
    become float32, objects that are numbers alone numbers. What a mask hides is
    missing: NaN, or None among objects that are no numbers.
    """
    check_open(name, value)
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    try:
        if isinstance(value, tensor):
            value = value.detach()
            if str(value.dtype) == "torch.bfloat16":
                value = value.float()
            return np.asarray(value.to_dense().numpy(force=True))
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        array = np.asarray(_unmasked(value))
    except ValueError:
        raise InputError(f"{name} must be a rectangular array of numbers") from None
    except (TypeError, RuntimeError, BufferError) as error:
        raise InputError(
            f"{name} is a {type(value).__name__} that the host cannot read, expected "
            f"an array in host memory: {reason(error)}"
        ) from None
    if array.dtype.isbuiltin == 2:  # a type of another package, as ml_dtypes
        return array.astype(np.float32)
    return _of_objects(array, mixed=False)


def check_open(name: str, value: Any) -> None:
    """Raise InputError for a data set of h5py whose file is closed."""
    if type(value).__module__.startswith("h5py.") and not value:
        raise InputError(f"{name} is a data set of a closed HDF5 file: open the file")


def _unmasked(value: Any) -> Any:
    """Return an array with NaN where a mask hides a number; others as they are."""
    if not isinstance(value, np.ma.MaskedArray) or not np.ma.is_masked(value):
        return value
    if value.dtype.kind in NUMBER_KINDS:
        return np.ma.filled(
            value if value.dtype.kind == "f" else value.astype(np.float64), np.nan
        )
    objects = value.data.astype(object)
    objects[np.ma.getmaskarray(value)] = None
    return objects


def _of_objects(array: NDArray[Any], *, mixed: bool) -> NDArray[Any]:
    """Return an array of objects that are numbers alone as one of numbers.

    Others are returned as they are, and booleans among numbers unless `mixed`.
    """
    if array.dtype.kind != "O":
        return array
    types = set(map(type, array.flat))
    flags = {type_ for type_ in types if issubclass(type_, (bool, np.bool_))}
    if not all(issubclass(type_, (Real, Decimal)) for type_ in types - flags) or (
        flags and flags != types and not mixed
    ):
        return array
    numbers = np.array(array.tolist()).reshape(array.shape)
    if numbers.dtype.kind in NUMBER_KINDS:
        return numbers
    try:
        return array.astype(np.float64)
    except (OverflowError, ValueError):  # whole numbers beyond its range
        return array


def as_numbers(
    name: str, values: ArrayLike, dtype: str | np.dtype[Any] | None = None
) -> NDArray[Any]:
    """Return `values` as an array of a dtype; None: of their own.

    Arrays of other libraries as for `as_array`; matrices of scipy.sparse become dense.
    """
    if type(values) is not np.ndarray and is_sparse(values):
        values = checked_sparse(name, values).toarray()
    array = values if type(values) is np.ndarray else as_array(name, values)
    if array.dtype.kind not in NUMBER_KINDS:
        array = _of_objects(as_array(name, array), mixed=True)
    if array.dtype.kind not in NUMBER_KINDS:
        raise InputError(f"{name}: {_no_number(array)}, expected numbers")
    if dtype is None or array.dtype == dtype:
        return array
    # A signalling NaN is one more NaN; what is beyond the type's range is infinite.
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(array, dtype)


def _no_number(array: NDArray[Any]) -> str:
    """Return what an array holds that is no number: an object, or its type."""
    for at, value in np.ndenumerate(array) if array.dtype.kind == "O" else ():
        if not isinstance(value, (Real, Decimal, np.bool_)):
            return f"found {quoted(value)} at {list(at)}"
    return f"found dtype {array.dtype}"


def all_finite(array: NDArray[Any]) -> bool:
    """Return whether all numbers of an array of any shape are finite.

    Of many, a sum tells it in a tenth of the time, unless it is not finite itself.
    """
    if array.size >= MANY and array.dtype.char in "fd":
        block = _block(array)
        if block is not None and np.isfinite(np.einsum("ij->", block)):
            return True
    # For small arrays a third of the time of `all`, which is written in Python.
    return int(np.count_nonzero(np.isfinite(array))) == array.size


def _block(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return an array as rows of adjacent numbers: its columns, or one of all its rows.

    The latter may hold few other numbers, between those of the array. None: neither is
    possible.
    """
    if array.ndim == 1 or array.flags.c_contiguous:
        return array.reshape(1, -1)
    if array.ndim != 2:
        return None
    if array.strides[0] == array.itemsize:
        return array.T
    if array.strides[1] != array.itemsize:
        return None
    (rows, width), (stride, itemsize) = array.shape, array.strides
    size = (rows - 1) * (stride // itemsize) + width
    if stride % itemsize or not array.size <= size <= SPARE * array.size:
        return None
    return np.lib.stride_tricks.as_strided(array, (1, size), (stride, itemsize))


def column_hint(name: str, targets: NDArray[Any], n_out: int) -> str:
    """Return the end of an error: how targets [samples] become [samples, n_out]."""
    if targets.ndim != 1:
        return ""
    if n_out == 1:
        return f": give {name}[:, None]"
    return f": give classes as numpy.eye({n_out})[{name}]"


def as_real(name: str, value: object) -> float:
    """Return `value` as a number that float32 holds, NaN and infinities included."""
    if not is_number(value):
        raise InputError(f"{name} must be a number, not {quoted(value)}")
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond float64's range too
        number = beyond = math.inf
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            beyond = np.isinf(np.float32(number)) and not np.isinf(number)
    if beyond:
        raise InputError(f"{name} must be within float32's range, not {quoted(value)}")
    return number


def as_finite(name: str, value: object) -> float:
    """Return `value` as a finite number that float32 holds.

    Every setting of a caller that a kernel takes comes through here.
    """
    number = as_real(name, value)
    if not math.isfinite(number):
        raise InputError(f"{name} must be a finite number, not {quoted(value)}")
    return number


def as_list(name: str, value: object) -> list[Any]:
    """Return a sequence or an array as a list; raise InputError for all else."""
    if not is_list(value):
        raise InputError(f"{name} must be a list, not {quoted(value)}")
    return list(value)


def as_reals(name: str, values: object) -> tuple[float, ...]:
    """Return the numbers of a list, each checked by `as_real`."""
    return tuple(as_real(name, item) for item in as_list(name, values))
