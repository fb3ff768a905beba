"""Outputs of commands."""

from __future__ import annotations

from clnet.errors import WIDTH


def ok(result):
    """Return the output of a command that must succeed."""
    status, out, err = result
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= WIDTH
    return out
