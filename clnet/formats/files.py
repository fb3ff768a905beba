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
from pathlib import Path
from typing import BinaryIO, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from clnet.errors import ClnetError, FormatError, InputError, quoted, reason

MEMORY_FLOOR = 1 << 26  # bytes that any file may unpack to
MEMORY_FACTOR = 16  # bytes that it may unpack to besides, for each byte of the file
DESCRIPTORS = Path("/proc/self/fd")  # the open files of a process, on Linux
_BLOCK = 1 << 20  # bytes unpacked at a time
_GZIP_MAGIC = b"\x1f\x8b"
TEMPORARY = ".clnet-{}.tmp"  # name of a temporary file, around a random number

F = TypeVar("F", bound=io.FileIO)


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
    _read(path, 1)


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


def read(path: Path) -> bytes:
    """Return the bytes of a file."""
    return _read(path)


def _read(path: Path, most: int = -1) -> bytes:
    """Return the first bytes of a file, or all; see `read`."""
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


def most_memory(found: int, limit: int | None) -> int:
    """Return the most bytes that a file of so many bytes may unpack to.

    That is the limit; None: `MEMORY_FLOOR`, and `MEMORY_FACTOR` times the file's.
    """
    return MEMORY_FLOOR + MEMORY_FACTOR * found if limit is None else limit


def check_memory(path: Path, needed: int, found: int, limit: int | None) -> None:
    """Raise FormatError if a file takes more memory than its own bytes warrant.

    Formats whose sizes follow from the bytes that are there need no such check. It is
    for those that unpack: compressed data, and sparse layers stored with padding.
    """
    limit = most_memory(found, limit)
    if needed > limit:
        raise FormatError(
            f"{path} of {found} bytes holds or unpacks to {quoted(needed)} bytes or "
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
    """Write a file atomically.

    The parts go to a temporary file in the same folder, which replaces the file once it
    is flushed to disk. An existing file keeps its permissions, which the temporary file
    has from its creation; a symbolic link stays one. Temporary files of killed
    processes are removed from the folder.
    """
    with _temporary(path) as (file, temporary, target):
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
        _give_name(file, temporary)
        if fcntl is None:  # Windows replaces no open file
            file.close()
        temporary.replace(target)
    _sync_folder(target.parent)


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[BinaryIO, Path, Path]]:
    """Create a temporary file for a path; remove it in the end, if still there."""
    try:
        target = Path(os.path.realpath(path))
        mode = _permissions(path, target)
        _sweep(target.parent)
        file, temporary = _created(target.parent, mode)
        try:
            with file:
                yield file, temporary, target
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


def _created(folder: Path, mode: int | None) -> tuple[BinaryIO, Path]:
    """Return a new temporary file, open and locked, and its name or name to be."""
    while True:
        temporary = folder / TEMPORARY.format(secrets.token_hex(8))
        file, named = _opened(temporary, 0o666 if mode is None else mode)
        try:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # the umask may have taken some
            if fcntl is not None:
                with contextlib.suppress(OSError):  # some file systems have no locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            if not named or os.fstat(file.fileno()).st_nlink:
                return io.BufferedWriter(file), temporary
        except BaseException:
            with contextlib.suppress(OSError):
                file.close()
            if named:
                temporary.unlink(missing_ok=True)
            raise
        file.close()  # another process swept it before it was locked


def _opened(temporary: Path, permissions: int) -> tuple[io.FileIO, bool]:
    """Return a new file, and whether it has its name already.

    Without a name, where the system can, nothing is left of a killed process.
    """
    if hasattr(os, "O_TMPFILE") and DESCRIPTORS.is_dir():
        with contextlib.suppress(OSError):  # some file systems have none
            flags = os.O_WRONLY | os.O_TMPFILE
            return owned(io.FileIO, temporary.parent, flags, "wb", permissions), False
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return owned(io.FileIO, temporary, flags, "wb", permissions), True


def owned(
    kind: type[F], path: str | os.PathLike[str], flags: int, mode: str,
    permissions: int = 0,
) -> F:
    """Return an open file of a class.

    `map` calls from C: no interrupt comes between the handle and its owner.
    """
    handles = map(os.open, [path], [flags], [permissions])
    return next(map(kind, handles, [mode]))


def _give_name(file: BinaryIO, temporary: Path) -> None:
    """Give a temporary file its name, unless it has it."""
    handle = file.fileno()
    if os.fstat(handle).st_nlink == 0:
        # Python follows the link only if a folder is given, which does not matter here.
        os.link(DESCRIPTORS / str(handle), temporary, src_dir_fd=handle)


def _sweep(folder: Path) -> None:
    """Remove temporary files of killed processes: nobody has a lock on them."""
    if fcntl is None:
        return
    for temporary in folder.glob(TEMPORARY.format("*")):
        with contextlib.suppress(OSError), temporary.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            temporary.unlink()


def _sync_folder(folder: Path) -> None:
    """Flush a rename to disk, if the system supports that."""
    with contextlib.suppress(OSError):  # Windows cannot open folders
        handles: list[int] = []
        try:
            handles.extend(map(os.open, [folder], [os.O_RDONLY]))  # as in `owned`
            os.fsync(*handles)
        finally:
            for handle in handles:
                os.close(handle)


def _why(verb: str, path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        folder = path.parent
        here = folder.is_dir()
        missing = f"such file in {folder.absolute()}" if here else f"folder {folder}"
        return f"cannot {verb} {path}: there is no {missing}"
    return f"cannot {verb} {path}: {reason(error)}"
