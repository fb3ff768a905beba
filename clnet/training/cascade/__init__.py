"""`fit` by cascade training: networks that grow.

Imports what `clnet.training` does. Start reading at `training`, the loop; `launches` is
the device's side, `reference` the same in NumPy, and `trial` compares both.
"""
