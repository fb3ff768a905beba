"""Variants: one module per kernel family, with the stem of one of its ``.cl`` files.

Those of training alone are in `training_variants`: an inference imports none of them.
"""

from clnet.variants.base import Variant
from clnet.variants.dense.cpu import Cpu
from clnet.variants.dense.fused_mma import FusedMma
from clnet.variants.dense.gemm import Gemm
from clnet.variants.dense.mma import Mma, MmaChain
from clnet.variants.dense.naive import (
    EnsembleOutputs,
    Fused,
    FusedLocal,
    Naive,
    Split,
    Staged,
)
from clnet.variants.dense.persistent import Persistent, PersistentMma
from clnet.variants.mixed.fused_sparse import FusedSparse, PersistentMixed
from clnet.variants.reference.generic import Generic, Host
from clnet.variants.sparse.sell import Dia, Sell
from clnet.variants.sparse.sparse import Csr, SparseTeam
from clnet.variants.stencil.stencil import (
    Stencil,
    StencilCpu,
    StencilReduction,
    Trapezoid,
)

STUDY_VARIANTS: tuple[Variant, ...] = (Naive(), Staged(), Fused(), StencilReduction())
"""The rungs of the studies, one idea each. The planner searches them only by name:
others compute the same spans, nearly always faster."""

PERSISTENT_VARIANTS: tuple[Variant, ...] = (
    Persistent(), PersistentMma(), PersistentMixed(), MmaChain()
)
"""Those whose work-groups wait for others of their launch."""

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
"""The variants that the planner searches."""

ENSEMBLE_VARIANTS: tuple[Variant, ...] = (EnsembleOutputs(), Host())
"""Those that it searches for many networks of one shape."""

ALL_VARIANTS = (*STUDY_VARIANTS, *VARIANTS)
"""Every inference variant, in the order of `explain`."""

__all__ = [
    "ALL_VARIANTS", "ENSEMBLE_VARIANTS", "PERSISTENT_VARIANTS", "STUDY_VARIANTS",
    "VARIANTS", "Variant",
]
