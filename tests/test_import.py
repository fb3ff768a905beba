"""``import clnet``: light, and complete."""

from children import run_python

import clnet

HEAVY = {"numpy", "pyopencl", "scipy", "safetensors", "clnet.network"}


def imported(code):
    """The modules that a process has imported after some code."""
    shown = run_python(
        "-c", f"import sys, clnet; {code}; print(*sys.modules)", check=True
    )
    return set(shown.stdout.split())


def test_nothing_is_imported_before_its_use():
    assert HEAVY.isdisjoint(imported("0"))


def test_graphs_need_no_package_of_graphs():
    names = ("layers", "operators", "recognise", "elementwise", "products")
    loads = "; ".join(f"__import__('clnet.formats.graphs.{name}')" for name in names)
    assert imported(loads).isdisjoint({"onnx", "torch"})


def test_a_network_needs_no_opencl():
    found = imported("clnet.Network.mlp([2, 1])")
    assert "pyopencl" not in found
    assert not {"clnet.ir.op", "clnet.planning", "clnet.nn.optimisers"} & found


def test_an_answer_needs_nothing_of_training_and_no_table():
    found = imported("clnet.Network.mlp([2, 1]).compile(tune=False)([[0, 1]])")
    assert "pyopencl" in found
    training = {name for name in found if name.startswith("clnet.training.")}
    assert training == {"clnet.training.fit_options"}  # the signature of `fit`
    superfluous = {
        "clnet.formats", "clnet.cli", "clnet.nn.optimisers",
        "clnet.variants.training_variants", "tabulate", "statistics",
    }
    assert not superfluous & found


def test_every_public_name_is_there():
    for name in clnet.__all__:
        assert getattr(clnet, name) is not None
    assert set(clnet.__all__) <= set(dir(clnet))
