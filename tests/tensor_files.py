"""Safetensors files, changed as damage and other programs change them."""

import json

import safetensors.numpy


def rewrite(path, tensors=(), describe=None, metadata=None):
    """Rewrite a network's file.

    With other tensors, None for those to leave out; with a description that
    `describe` has changed; or with other metadata.
    """
    with safetensors.safe_open(path, framework="numpy") as file:
        found = file.metadata()
    if describe is not None:
        description = json.loads(found["clnet"])
        describe(description)
        found["clnet"] = json.dumps(description)
    named = {**safetensors.numpy.load_file(path), **dict(tensors)}
    safetensors.numpy.save_file(
        {name: tensor for name, tensor in named.items() if tensor is not None}, path,
        found if metadata is None else metadata,
    )


def changed(**changes):
    """Return a function for `rewrite` that sets entries of the description."""
    return lambda description: description.update(changes)
