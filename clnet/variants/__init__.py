"""Variants: one module a kernel family, of the same stem as its ``.cl`` file."""

from clnet.variants.base import Variant
from clnet.variants.cpu import Cpu
from clnet.variants.fused import Fused
from clnet.variants.fused_local import FusedLocal
from clnet.variants.gemm import Gemm
from clnet.variants.generic import Generic
from clnet.variants.host import Host
from clnet.variants.local import Local
from clnet.variants.naive import Naive
from clnet.variants.split import Split

VARIANTS: tuple[Variant, ...] = (
    Naive(),
    Local(),
    Split(),
    Fused(),
    FusedLocal(),
    Gemm(),
    Cpu(),
    Generic(),
    Host(),
)
"""Every variant, in the order in which `explain` lists them."""

__all__ = ["VARIANTS", "Variant"]
