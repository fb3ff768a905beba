"""Reading and writing of files; all formats use these functions."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from clnet.errors import ClnetError, FormatError, InputError, quoted, reason

MEMORY_FLOOR = 1 << 26  # bytes that any file may unpack to
MEMORY_FACTOR = 16  # bytes that it may unpack to besides, for each byte of the file
_BLOCK = 1 << 20  # bytes unpacked at a time
_GZIP_MAGIC = b"\x1f\x8b"
TEMPORARY = ".clnet-{}.tmp"  # name of a temporary file, around a random number


def as_path(path: object) -> Path:
    """Return a file name as a Path."""
    try:
        if isinstance(path, (str, os.PathLike)) and b"\0" not in os.fsencode(path):
            return Path(os.fsdecode(path))
    except UnicodeError:
        pass
    raise InputError(f"a file name must be text or a path, not {quoted(path)}")


def check_readable(path: Path) -> None:
    """Raise FormatError unless a path is a regular, readable and non-empty file."""
    read(path, 1)


@contextlib.contextmanager
def reading(problem: str | Callable[[], str]) -> Iterator[None]:
    """Turn any error of the library that reads a file into a FormatError."""
    try:
        yield
    except ClnetError:
        raise
    except Exception as error:  # a damaged file raises nearly anything
        sentence = problem if isinstance(problem, str) else problem()
        # This generator's frame keeps the error, whose frames keep the library's files.
        error.__traceback__ = None
        raise FormatError(f"{sentence}: {reason(error)}") from None


def read(path: Path, most: int = -1) -> bytes:
    """Return the bytes of a file, or so many of the first ones."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # others may block, or have no end
            raise FormatError(f"cannot read {path}: it is not a regular file")
        with path.open("rb") as file:
            content = file.read(most)
    except OSError as error:
        raise FormatError(_why("read", path, error)) from None
    if not content:
        raise FormatError(f"{path} is empty")
    return content


def most_memory(size: int, limit: int | None) -> int:
    """Return the most bytes that a file of so many bytes may unpack to.

    That is the limit; None: `MEMORY_FLOOR`, and `MEMORY_FACTOR` times the file's.
    """
    return MEMORY_FLOOR + MEMORY_FACTOR * size if limit is None else limit


def check_memory(path: Path, needed: int, size: int, limit: int | None) -> None:
    """Raise FormatError if a file takes more memory than its own bytes warrant.

    Formats whose sizes follow from the bytes that are there need no such check. It is
    for those that unpack: compressed data, and sparse layers stored with padding.
    """
    limit = most_memory(size, limit)
    if needed > limit:
        raise FormatError(
            f"{path} of {size} bytes holds or unpacks to {quoted(needed)} bytes or "
            f"more, expected at most {limit}: if you trust it, give a larger memory "
            "limit"
        )


def unzipped(path: Path, content: bytes, memory_limit: int | None) -> bytes:
    """Return the bytes of a file, unpacked if its name ends in ``.gz``."""
    zipped = content.startswith(_GZIP_MAGIC)
    if path.suffix.lower() != ".gz":
        if zipped:
            raise FormatError(
                f"{path} is gzipped, expected text: a gzipped file's name ends in .gz"
            )
        return content
    if not zipped:
        raise FormatError(f"{path} is not gzipped, expected gzip because of its name")
    text = bytearray()
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            while block := stream.read(_BLOCK):
                text += block
                check_memory(path, len(text), len(content), memory_limit)
        return bytes(text)
    except EOFError:
        raise FormatError(
            f"{path} is truncated: its gzip stream ends early, at byte {len(content)}"
        ) from None
    except (OSError, zlib.error) as error:
        raise FormatError(
            f"{path} is damaged, expected gzip: {reason(error)}"
        ) from None


def check_writable(path: Path) -> None:
    """Raise the FormatError of `write` if the file cannot be created."""
    with _temporary(path):
        pass


def write(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file, whole or not at all.

    The parts go to a temporary file beside it, which replaces it once it is on the
    disk. An existing file keeps its permissions, and a symbolic link stays one. A
    process that is killed meanwhile leaves the temporary file.
    """
    with _temporary(path) as (file, target):
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
        file.close()  # Windows replaces no open file
        Path(file.name).replace(target)


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Create a temporary file for a path; remove it in the end, if still there."""
    try:
        target = Path(os.path.realpath(path))
        mode = _permissions(path, target)
        temporary = target.with_name(TEMPORARY.format(secrets.token_hex(8)))
        try:
            # Opened and owned in one call of C: no interrupt comes between.
            opener = partial(os.open, mode=0o666 if mode is None else mode)
            with open(temporary, "xb", opener=opener) as file:
                if mode is not None and hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), mode)  # the umask may have taken some
                yield file, target
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise FormatError(_why("write", path, error)) from None


def _permissions(path: Path, target: Path) -> int | None:
    """Return the permissions of the file that is there; None: there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise FormatError(f"cannot write {path}: it is not a regular file")
    return stat.S_IMODE(mode)


def _why(verb: str, path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        folder = path.parent
        here = folder.is_dir()
        missing = f"such file in {folder.absolute()}" if here else f"folder {folder}"
        return f"cannot {verb} {path}: there is no {missing}"
    return f"cannot {verb} {path}: {reason(error)}"
