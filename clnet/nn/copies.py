"""Copies and pickles: records without what they cache."""

from __future__ import annotations

from functools import cached_property
from typing import Any


class Uncached:
    """A base whose copies and pickles leave out cached properties."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes but cached properties, which follow from others."""
        cached = {
            name for owner in type(self).__mro__ for name, found in vars(owner).items()
            if isinstance(found, cached_property)
        }
        return {
            name: value for name, value in self.__dict__.items() if name not in cached
        }
