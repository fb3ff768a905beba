"""Variants: one module a kernel family, of the same stem as its ``.cl`` file."""

from clnet.variants.base import Variant
from clnet.variants.cpu import Cpu
from clnet.variants.csr import Csr
from clnet.variants.dia import Dia
from clnet.variants.dropout import Dropping
from clnet.variants.epoch import Epoch
from clnet.variants.fused import Fused
from clnet.variants.fused_local import FusedLocal
from clnet.variants.fused_mma import FusedMma
from clnet.variants.fused_sparse import FusedSparse
from clnet.variants.fused_step import FusedStep
from clnet.variants.gemm import Gemm
from clnet.variants.gemm_backward import GemmBackward
from clnet.variants.generic import Generic
from clnet.variants.generic_backward import GenericBackward
from clnet.variants.gradient_norm import Norm
from clnet.variants.group_step import GroupStep
from clnet.variants.host import Host
from clnet.variants.local import Local
from clnet.variants.mma import Mma
from clnet.variants.mma_backward import MmaBackward
from clnet.variants.mma_chain import MmaChain
from clnet.variants.naive import Naive
from clnet.variants.optimisers import Optimisers
from clnet.variants.outer import Outer
from clnet.variants.persistent import Persistent
from clnet.variants.persistent_mixed import PersistentMixed
from clnet.variants.persistent_mma import PersistentMma
from clnet.variants.sell import Sell
from clnet.variants.sequential import Sequential
from clnet.variants.sparse_outer import SparseOuter
from clnet.variants.sparse_team import SparseTeam
from clnet.variants.split import Split
from clnet.variants.stencil import Stencil
from clnet.variants.stencil_backward import StencilBackward
from clnet.variants.stencil_cpu import StencilCpu
from clnet.variants.stencil_gradients import StencilGradients
from clnet.variants.stencil_reduction import StencilReduction
from clnet.variants.trapezoid import Trapezoid
from clnet.variants.wide import Wide

STUDY_VARIANTS: tuple[Variant, ...] = (
    Naive(),
    Local(),
    Fused(),
    StencilReduction(),
)
"""The rungs of the studies, one idea each. The planner searches them only where they
are named: others compute the same spans, and nearly always faster."""

VARIANTS: tuple[Variant, ...] = (
    Split(),
    FusedLocal(),
    Persistent(),
    PersistentMma(),
    PersistentMixed(),
    Gemm(),
    Mma(),
    MmaChain(),
    FusedMma(),
    Cpu(),
    Csr(),
    SparseTeam(),
    Sell(),
    Dia(),
    FusedSparse(),
    Stencil(),
    StencilCpu(),
    Trapezoid(),
    Generic(),
    Host(),
)
"""Those among which the planner searches."""

ALL_VARIANTS = (*STUDY_VARIANTS, *VARIANTS)
"""Every variant that computes networks, in the order in which `explain` lists them."""

TRAINING_VARIANTS: tuple[Variant, ...] = (
    # A training neither leaves the device nor begins a step again.
    *(
        variant for variant in VARIANTS
        if variant.name not in (
            "host", "persistent", "persistent_mma", "persistent_mixed", "mma_chain"
        )
    ),
    Outer(),
    GemmBackward(),
    MmaBackward(),
    SparseOuter(),
    StencilBackward(),
    StencilGradients(),
    Wide(),
    GenericBackward(),
    Dropping(),
    Norm(),
    Optimisers(),
    Epoch(),
    Sequential(),
    GroupStep(),
    FusedStep(),
)
"""Those that may compute a training step: it stays on the device."""

__all__ = [
    "ALL_VARIANTS", "STUDY_VARIANTS", "TRAINING_VARIANTS", "VARIANTS", "Variant",
]
