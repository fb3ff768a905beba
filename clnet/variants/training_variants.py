"""The variants of training steps, which no inference imports."""

from clnet.variants.base import Variant
from clnet.variants.reference.generic import GenericBackward
from clnet.variants.sparse.sparse_outer import SparseInput, SparseOuter
from clnet.variants.training.epoch import Sequential, TiledEpoch
from clnet.variants.training.gemm_backward import GemmBackward, MmaBackward, TiledOuter
from clnet.variants.training.group_step import FusedStep, GroupStep
from clnet.variants.training.optimisers import Dropping, Norm, Optimisers
from clnet.variants.training.output_loss import OutputLoss
from clnet.variants.training.stencil_backward import StencilBackward, StencilGradients
from clnet.variants.training.wide import Wide

STEP_VARIANTS: tuple[Variant, ...] = (
    TiledOuter(),
    GemmBackward(),
    MmaBackward(),
    OutputLoss(),
    SparseOuter(),
    SparseInput(),
    StencilBackward(),
    StencilGradients(),
    Wide(),
    GenericBackward(),
    Dropping(),
    Norm(),
    Optimisers(),
    TiledEpoch(),
    Sequential(),
    GroupStep(),
    FusedStep(),
)
"""The variants that compute steps of training alone."""
