"""Reading and writing of files; all formats use these functions."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from clnet.errors import FormatError, InputError


def as_path(path: object) -> Path:
    """Return a file name as a Path.

    Raises
    ------
    InputError
        If it is not a file name.
    """
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path):
        raise InputError(f"a file name must be text or a path, not {path!r}")
    return Path(path)


def check_readable(path: Path) -> None:
    """Raise FormatError unless a file exists, can be opened and is not empty."""
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise FormatError(f"{path} is empty")
    except OSError as error:
        raise FormatError(_why("read", path, error)) from None


def read(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises
    ------
    FormatError
        If the file is missing, a folder, unreadable or empty.
    """
    check_readable(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise FormatError(_why("read", path, error)) from None


def check_writable(path: Path) -> None:
    """Raise the FormatError of `write` if the file cannot be created."""
    _, temporary = _target(path)
    try:
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except OSError as error:
        raise FormatError(_why("write", path, error)) from None


def write(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file atomically.

    The parts go to a temporary file in the same folder, which replaces the file once it
    is flushed to disk. An existing file keeps its permissions; a symbolic link stays
    one.

    Raises
    ------
    FormatError
        If the folder is missing or the file cannot be written.
    """
    target, temporary = _target(path)
    try:
        try:
            with temporary.open("xb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise FormatError(_why("write", path, error)) from None
    _sync_folder(target.parent)


def _target(path: Path) -> tuple[Path, Path]:
    """Return the file that a path refers to, and a temporary name beside it."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise FormatError(f"cannot write {path}: it is not a regular file")
    return target, target.parent / f".clnet-{secrets.token_hex(8)}.tmp"


def _sync_folder(folder: Path) -> None:
    """Flush a rename to disk, if the system supports that."""
    with contextlib.suppress(OSError):  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _why(verb: str, path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        missing = path if verb == "read" else path.parent
        return f"cannot {verb} {path}: there is no {missing}"
    return f"cannot {verb} {path}: {(error.strerror or str(error)).lower()}"
