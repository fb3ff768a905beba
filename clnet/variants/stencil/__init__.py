"""Locally connected layers: one layer, or a deep stack in one launch, in `stencil`."""
