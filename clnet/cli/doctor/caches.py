"""The folders of PoCL's compiled programs and of clnet's measured times."""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from clnet.cli.doctor.finding import Finding
from clnet.errors import reason


def pocl_cache() -> Path:
    """Return the folder of PoCL's compiled programs."""
    folder = os.environ.get("POCL_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) if folder else Path(user) / "pocl" / "kcache"


def cache_findings() -> Iterator[Finding]:
    """Try to write into both folders, and read the files of PoCL's."""
    from clnet.opencl.store import cache_directory

    cache = pocl_cache()
    yield _folder_finding(
        "PoCL's cache",
        cache,
        "so PoCL shows no devices",
        "make it writable, or set POCL_CACHE_DIR to a folder that is",
    )
    if _is_noexec(cache):
        yield Finding(
            "PoCL's cache",
            False,
            f"{cache} is on a file system that is mounted noexec, so the kernels in it"
            " cannot be loaded, and PoCL ends the process",
            "mount it with exec (docker run --tmpfs FOLDER:exec), or set POCL_CACHE_DIR"
            " to a folder elsewhere",
        )
    damaged = [path for path in cache.rglob("*") if _is_damaged(path)]
    if damaged:
        yield Finding(
            "PoCL's cache",
            False,
            f"{len(damaged)} of its files are unreadable, truncated or foreign, the"
            f" first is {damaged[0]}; kernels that need them fail or kill the process",
            f"remove the folder {cache}; PoCL fills it again",
        )
    yield _folder_finding(
        "clnet's cache",
        cache_directory(),
        "so measured times are lost",
        "make it writable, or set CLNET_CACHE_DIR to a folder that is",
    )


def _is_damaged(path: Path) -> bool:
    """Return whether a file of PoCL's cache contradicts its suffix."""
    if path.suffix not in (".bc", ".so") or sys.platform != "linux":
        return False
    try:
        with path.open("rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError:
        return True
    if path.suffix == ".bc":
        return not head.startswith(b"BC\xc0\xde")
    if len(head) < 64 or not head.startswith(b"\x7fELF\x02\x01"):
        return True
    # A linker writes the section header table last (64-bit ELF: its offset at byte 40,
    # the size and number of its entries at 58), so a truncated file ends before it.
    (offset,) = struct.unpack_from("<Q", head, 40)
    width, count = struct.unpack_from("<HH", head, 58)
    return bool(size < offset + width * count)


def _existing(folder: Path) -> Path:
    """Return a folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _is_noexec(folder: Path) -> bool:
    """Return whether a folder's file system lets no code in it run."""
    if sys.platform != "linux":
        return False
    return bool(os.statvfs(_existing(folder)).f_flag & os.ST_NOEXEC)


def _folder_finding(subject: str, folder: Path, effect: str, cure: str) -> Finding:
    """Try to write in a folder, or in its nearest existing parent."""
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding(subject, True, f"{folder} is writable")
    except OSError as error:
        found = f"{folder} is not writable ({reason(error)}), {effect}"
        return Finding(subject, False, found, cure)
