"""The doctor on the folders of caches, and on damaged files in them."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_output import bad

from clnet.cli.doctor import caches

linux = pytest.mark.skipif(sys.platform != "linux", reason="about Linux's files")


def test_the_folder_of_pocls_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    assert caches.pocl_cache() == tmp_path
    monkeypatch.delenv("POCL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert caches.pocl_cache() == tmp_path / "pocl" / "kcache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert caches.pocl_cache() == Path.home() / ".cache" / "pocl" / "kcache"


def test_caches_that_cannot_be_written(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()  # a folder cannot be made below it, not even by root
    monkeypatch.setenv("POCL_CACHE_DIR", str(file / "pocl"))
    monkeypatch.setenv("CLNET_CACHE_DIR", str(file / "clnet"))
    findings = bad(caches.cache_findings())
    assert [f.subject for f in findings] == ["PoCL's cache", "clnet's cache"]
    assert "POCL_CACHE_DIR" in findings[0].cure
    assert "CLNET_CACHE_DIR" in findings[1].cure


def test_writable_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "not" / "yet"))
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    findings = list(caches.cache_findings())
    assert [f.ok for f in findings] == [True, True]
    assert list(tmp_path.iterdir()) == []  # the doctor leaves nothing behind


@linux
def test_a_cache_without_execution(monkeypatch, tmp_path):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "not" / "yet"))
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    flags = type("Flags", (), {"f_flag": os.ST_NOEXEC})
    monkeypatch.setattr(os, "statvfs", lambda folder: flags)
    (finding,) = bad(caches.cache_findings())
    assert "noexec" in finding.found
    assert "POCL_CACHE_DIR" in finding.cure


def elf(size):
    """Return the first bytes of a library whose table of sections ends at 256."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 40, 128)
    struct.pack_into("<HH", header, 58, 64, 2)
    return bytes(header).ljust(256, b"\0")[:size]


@linux
@pytest.mark.parametrize(
    ("name", "content", "damaged"),
    [
        pytest.param("a.so", elf(256), False, id="whole"),
        pytest.param("a.so", elf(255), True, id="truncated"),
        pytest.param("a.so", elf(63), True, id="truncated header"),
        pytest.param("a.so", b"", True, id="empty"),
        pytest.param("a.so", bytes(256), True, id="zeros"),
        pytest.param("program.bc", b"BC\xc0\xde and more", False, id="bitcode"),
        pytest.param("program.bc", b"", True, id="empty bitcode"),
        pytest.param("program.bc", b"something else", True, id="foreign bitcode"),
        pytest.param("last_accessed", b"", False, id="no code"),
    ],
)
def test_damaged_files_of_pocls_cache(monkeypatch, tmp_path, name, content, damaged):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    file = tmp_path / "AB" / "CD" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    findings = bad(caches.cache_findings())
    assert len(findings) == damaged
    for finding in findings:
        assert str(file) in finding.found
        assert str(tmp_path) in finding.cure


@linux
def test_a_real_library_is_not_damaged():
    library = next(Path(np.__file__).parent.rglob("*.so"))
    assert not caches._is_damaged(library)
