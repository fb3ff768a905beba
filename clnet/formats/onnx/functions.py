"""Functions that clnet's files bring with them, since ONNX Runtime lacks their nodes.

A file has a function's body, of nodes that every runtime has. clnet knows the function
by its name, if the body is its own.
"""

from __future__ import annotations

import math
from typing import Any

from onnx import TensorProto, helper

from clnet.formats.graphs.elementwise import DOMAIN, GELU

VERSION = 1

# ln(erfc(z) e^(z^2) / t) by powers of 2 t - 1, t = 1 / (1 + z / 2): an interpolation at
# Chebyshev's points, exact to the last bits of float64.
_ERFC = (
        -0.6717940840566923, 0.6726432239776576, 0.047343306841898185,
    -0.04689561023126843, -0.009872689365754328, 0.00882493855975445,
    0.0017589335383343834, -0.002345812534455851, -0.00014624658593819772,
    0.0006736790125595953, -9.373724844136099e-05, -0.00017430363340430627,
    7.141197420995916e-05, 3.174564452587232e-05, -3.0223285604111394e-05,
    1.4209509994658064e-07, 8.63948536674404e-06, -2.965932985910632e-06,
    -1.3853380961247155e-06, 1.2851059663435587e-06, -5.745724111914076e-08,
    -2.9024439955999927e-07, 8.354694238740855e-08, 2.992327305770758e-08,
    -1.3791307091711107e-08,
)


def gelu(opset: int) -> Any:
    """Return the function ``v (1 + erf(v / sqrt 2)) / 2`` of float64.

    ``erfc z = t exp(p(t) - z^2)`` for z >= 0; negative v keep their relative accuracy.
    """
    nodes: list[Any] = []

    def node(op_type: str, *inputs: str | float) -> str:
        names = [name if isinstance(name, str) else constant(name) for name in inputs]
        output = f"n{len(nodes)}"
        nodes.append(helper.make_node(op_type, names, [output]))
        return output

    def constant(number: float) -> str:
        output = f"n{len(nodes)}"
        value = helper.make_tensor("", TensorProto.DOUBLE, [], [number])
        nodes.append(helper.make_node("Constant", [], [output], value=value))
        return output

    z = node("Mul", node("Abs", "v"), math.sqrt(0.5))
    t = node("Reciprocal", node("Add", node("Mul", z, 0.5), 1.0))
    u = node("Sub", node("Mul", t, 2.0), 1.0)
    power = constant(_ERFC[-1])
    for coefficient in _ERFC[-2::-1]:
        power = node("Add", node("Mul", power, u), coefficient)
    exponential = node("Exp", node("Sub", power, node("Mul", z, z)))
    below = node("Mul", node("Mul", t, exponential), 0.5)
    above = node("Sub", 1.0, below)
    share = node("Where", node("Less", "v", 0.0), below, above)
    nodes.append(helper.make_node("Mul", ["v", share], ["y"]))
    return helper.make_function(
        DOMAIN, GELU, ["v"], ["y"], nodes, [helper.make_opsetid("", opset)])
