"""Variants: one module a kernel family, of the same stem as its ``.cl`` file."""

from clnet.variants.base import Variant
from clnet.variants.generic import Generic
from clnet.variants.host import Host
from clnet.variants.naive import Naive

VARIANTS: tuple[Variant, ...] = (
    Naive(),
    Generic(),
    Host(),
)
"""Every variant, in the order in which `explain` lists them."""

__all__ = ["VARIANTS", "Variant"]
