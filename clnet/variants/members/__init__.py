"""Variants that train many networks of one shape in a launch, side by side."""
