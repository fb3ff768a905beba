"""Graphs of ONNX and PyTorch as networks.

A library's nodes become `Node` objects of `trace`, whose values are affine maps of the
inputs and of functions (`values`). Start here: `operators.outputs_of` computes a node's
values, and `layers` makes a network's layers of those that the outputs need. It imports
neither onnx nor torch.
"""
