"""onnx's own cases: what is accepted is right, and every refusal is one sentence.

Inputs but the first are constants where a graph is not one of samples side by side.
"""

from pathlib import Path

import numpy as np
import pytest

import clnet
from clnet import FormatError

onnx = pytest.importorskip("onnx")

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
FLOORS = {"simple": 3, "pytorch-converted": 64, "pytorch-operator": 24, "node": 169}
TOLERANCE = 1e-3  # of onnx's own tests


def cases(kind):
    """Yield the name, model, inputs and outputs of each case."""
    if kind == "node":
        from onnx.backend.test.case.node import collect_testcases

        for case in collect_testcases(None):
            yield case.name, case.model, *case.data_sets[0]
        return
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / kind
    for case in sorted(folder.iterdir()):
        model = onnx.load_model(case / "model.onnx")
        yield case.name, model, *(
            [array(path) for path in sorted(case.glob(f"test_data_set_0/{side}_*.pb"))]
            for side in ("input", "output")
        )


def array(path):
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        return onnx.numpy_helper.to_array(tensor)
    except Exception:  # a sequence
        return None


def side_by_side(arrays, n):
    return np.concatenate([np.reshape(one, (n, -1)) for one in arrays], axis=1)


def right(path, model, inputs, outputs):
    """Read a model; return whether it gives the outputs for the inputs."""
    path.write_bytes(model.SerializeToString())
    network = clnet.load(path)
    n = len(inputs[0])
    wanted = [one for one, info in zip(outputs, model.graph.output, strict=True)
              if info.type.tensor_type.elem_type in FLOATS]
    y = network.predict(side_by_side(inputs, n).astype(network.dtype))
    expected = side_by_side(wanted, n)
    return y.shape == expected.shape and np.allclose(
        y, expected, TOLERANCE, 1e-5, equal_nan=True)


@pytest.mark.parametrize("kind", [
    "simple", "pytorch-operator",
    *(pytest.param(kind, marks=pytest.mark.sweep)
      for kind in ("pytorch-converted", "node")),
])
@pytest.mark.filterwarnings("ignore")
def test_cases_of_onnx(tmp_path, kind):
    count, wrong = 0, []
    for name, model, inputs, outputs in cases(kind):
        if not all(isinstance(one, (np.ndarray, np.generic)) and np.ndim(one)
                   for one in inputs) or not inputs:
            continue
        try:
            try:
                good = right(tmp_path / "x.onnx", model, inputs, outputs)
            except FormatError:
                rest = zip(model.graph.input[1:], inputs[1:], strict=False)
                for info, value in rest:
                    model.graph.initializer.append(
                        onnx.numpy_helper.from_array(np.asarray(value), info.name))
                good = right(tmp_path / "x.onnx", model, inputs[:1], outputs)
        except FormatError as error:
            assert str(error).isprintable(), name
            assert len(str(error)) < 1000, name
            continue
        count += good
        if not good:
            wrong.append(name)
    assert not wrong
    assert count >= FLOORS[kind]
