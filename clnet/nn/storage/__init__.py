"""Storages: where the entries of a layer's matrix A [n_out, n_in] are.

A storage never holds values: they live in the network's flat parameter buffer. Start
with `base` and `dense`; `formats` lists the storages by name, and `layout` says where
in the flat buffer each storage's values are.
"""
