"""Fixtures of the tests of files."""

import pytest


@pytest.fixture
def read(tmp_path):
    """A function that writes a file's content, and reads it by a loader."""
    def read(load, content, name, **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load(path, **options)

    return read
