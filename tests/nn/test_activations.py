"""Activations: the rows, their gradients, and the OpenCL functions against NumPy."""

import re

import numpy as np
import pyopencl as cl
import pytest
from bounds import JUMPS, WITH_PARAMETERS, activation_bound

from clnet.errors import InputError
from clnet.nn.activations import (
    ACTIVATIONS,
    FANN_SUM_LIMIT,
    LEAK,
    SOFTMAX,
    activation,
    activation_name,
    fann_activation,
)
from clnet.nn.layers import Dense
from clnet.opencl.discovery import device
from clnet.opencl.program import build, kernel_text, source_text
from clnet.opencl.session import session
from clnet.variants.macros import gradient_function, kernel_function

STEPWISE = {"sigmoid_stepwise": "sigmoid", "tanh_stepwise": "tanh"}

# The rows ---------------------------------------------------------------------------


ROWS = [*ACTIVATIONS.values(), *map(activation, WITH_PARAMETERS)]


def rows():
    return pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@pytest.mark.parametrize(("name", "v", "y"), [
    ("identity", -2.5, -2.5),
    ("threshold", -0.1, 0), ("threshold", 0, 1), ("threshold", 3, 1),
    ("threshold_symmetric", -0.1, -1), ("threshold_symmetric", 0, 1),
    ("sigmoid", 0, 0.5), ("sigmoid", 1, 0.731058578630005),
    ("sigmoid_stepwise", 0, 0.5), ("sigmoid_stepwise", -1.098612308502197266, 0.25),
    ("sigmoid_stepwise", -6, 0), ("sigmoid_stepwise", 6, 1),
    ("tanh", 0.5, 0.46211715726000976),
    ("tanh_stepwise", 0, 0), ("tanh_stepwise", -0.549306154251098633, -0.5),
    ("tanh_stepwise", -3, -1), ("tanh_stepwise", 3, 1),
    ("gaussian", 0, 1), ("gaussian", -1, 0.36787944117144233),
    ("gaussian_symmetric", 0, 1), ("gaussian_symmetric", 30, -1),
    ("gaussian_stepwise", 1, 0),
    ("elliot", 0, 0.5), ("elliot", 1, 0.75), ("elliot", -3, 0.125),
    ("elliot_symmetric", 1, 0.5), ("elliot_symmetric", -3, -0.75),
    ("linear_piece", -1, 0), ("linear_piece", 0.3, 0.3), ("linear_piece", 2, 1),
    ("linear_piece_symmetric", -2, -1), ("linear_piece_symmetric", -0.3, -0.3),
    ("sin_symmetric", np.pi / 2, 1), ("cos_symmetric", np.pi, -1),
    ("sin", -np.pi / 2, 0), ("cos", 0, 1),
    ("relu", -1, 0), ("relu", 2, 2),
    ("leaky_relu", -1, -0.01), ("leaky_relu", 2, 2),
    ("elu", -1, -0.6321205588285577), ("elu", 2, 2),
    ("selu", -1, -1.1113307378125625), ("selu", 1, 1.0507009873554805),
    ("elu(0.5)", -1, -0.31606027941427883), ("elu(0.5)", 2, 2),
    ("leaky_relu(0.2)", -1e30, -2e29), ("leaky_relu(0.2)", 1e30, 1e30),
    ("clip(-5, 5)", 1e-7, 1e-7), ("clip(-5, 5)", 6, 5), ("clip(-5, 5)", -6, -5),
    ("clip(2, inf)", -1e9, 2), ("clip(2, inf)", 1e30, 1e30),
    ("gelu", 1, 0.8413447460685429), ("gelu", -1, -0.15865525393145707),
    ("silu", 1, 0.731058578630005), ("silu", -1, -0.2689414213699951),
    ("softplus", 0, 0.6931471805599453), ("softplus", 40, 40),
])
def test_values_known_by_hand(name, v, y):
    found = activation(name).value(np.array([v], np.float64))
    np.testing.assert_allclose(found, [y], rtol=1e-8, atol=1e-12)


@rows()
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_types_and_shapes_are_kept(row, dtype):
    v = np.linspace(-3, 3, 12, dtype=dtype).reshape(3, 4)
    y = row.value(v)
    assert (y.dtype, y.shape) == (dtype, (3, 4))
    gradient = row.gradient(v, y)
    assert (gradient.dtype, gradient.shape) == (dtype, (3, 4))
    np.testing.assert_array_equal(v, np.linspace(-3, 3, 12, dtype=dtype).reshape(3, 4))


@rows()
def test_bounded_rows_are_at_most_1(row):
    largest = np.abs(row.value(np.linspace(-50, 50, 2001))).max()
    assert (largest <= 1) == row.bounded


@pytest.mark.parametrize(
    "name", [row.name for row in ROWS if row.name not in STEPWISE]
)
def test_gradients_are_those_of_the_values(name):
    """By central differences in float64."""
    row = activation(name)
    v = np.random.default_rng(1).uniform(-6, 6, 2000)
    kinks = [*JUMPS.get(row.name, ((),))[0], -1, 0, 1, *row.parameters]
    v = v[np.min([np.abs(v - kink) for kink in kinks], axis=0) > 1e-3]
    step = 1e-5
    expected = (row.value(v + step) - row.value(v - step)) / (2 * step)
    np.testing.assert_allclose(
        row.gradient(v, row.value(v)), expected, rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize(("name", "smooth"), STEPWISE.items())
def test_stepwise_gradients_are_the_smooth_functions(name, smooth):
    """As in FANN, which trains through the steps."""
    row = activation(name)
    v = np.linspace(-6, 6, 101)
    y = row.value(v)
    expected = ACTIVATIONS[smooth].gradient(v, y)
    np.testing.assert_array_equal(row.gradient(v, y), expected)


@rows()
def test_gradients_read_one_argument(row):
    """The other may be anything, so that it need not be stored."""
    v = np.linspace(-4, 4, 41)
    y = row.value(v)
    other = np.full_like(v, np.nan)
    arguments = (v, other) if row.reads == "v" else (other, y)
    np.testing.assert_array_equal(row.gradient(*arguments), row.gradient(v, y))


def test_every_number_of_fann_has_its_row():
    assert [fann_activation(n).fann for n in range(20)] == list(range(20))
    # FANN's sigmoids are 1 / (1 + exp(-2 s x)); all others take its steepness as it is.
    doubled = [row.name for row in ACTIVATIONS.values() if row.fann_factor != 1]
    assert doubled == ["sigmoid", "sigmoid_stepwise"]
    assert fann_activation(5).name == "tanh"
    assert FANN_SUM_LIMIT == 150
    assert LEAK == 0.01


@pytest.mark.parametrize("number", [-1, 20, 3.5, "tanh", None])
def test_a_number_that_fann_lacks(number):
    with pytest.raises(InputError, match="FANN activation number"):
        fann_activation(number)


def test_names():
    for name, row in ACTIVATIONS.items():
        assert name == row.name
        assert activation(name) is row
        assert re.fullmatch("[a-z_]+", name)
    assert SOFTMAX not in ACTIVATIONS


@pytest.mark.parametrize("name", ["", "sigmod", "TANH", None, 3, ("tanh",), SOFTMAX])
def test_unknown_names(name):
    with pytest.raises(InputError, match="unknown activation"):
        activation(name)


def test_the_nearest_name_is_suggested():
    with pytest.raises(InputError, match="did you mean 'sigmoid'"):
        activation("sigmod")


# The OpenCL functions ---------------------------------------------------------------

BUILDS = [
    # type, values in a vector, operators alone
    ("float", 1, 1),
    ("float", 1, 0),
    ("float", 8, 1),
    ("float", 8, 0),
    ("double", 1, 0),
]


def grid(dtype):
    """Values of every size and sign, a multiple of 8 of them."""
    info = np.finfo(dtype)
    sizes = np.geomspace(float(info.tiny), float(info.max) / 2, 4000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny]
    special += [info.smallest_subnormal, -info.smallest_subnormal, info.tiny / 3, 150.0]
    special += [p for points, _ in JUMPS.values() for p in points]
    special += [np.nextafter(dtype(p), dtype(s)) for p in (0, 1, -1) for s in (-9, 9)]
    values = [np.linspace(-20, 20, 20001), np.linspace(-200, 200, 4001), sizes, -sizes,
              special]
    found = np.concatenate([np.asarray(x, dtype) for x in values])
    return np.resize(found, -(-found.size // 8) * 8)


def on_device(real, width, operators, v):
    """Return every function of activations.h for v, by one kernel: [rows, values]."""
    where = session(device())
    defines = {"REAL": real, "WIDTH": width, "OPERATOR_MATH": operators}
    calls = "\n".join(
        f"    y[{number} * n + i] = {kernel_function(row.name)}(v[i]);"
        for number, row in enumerate(ROWS)
    )
    text = source_text("include/activations.h", defines, where.device) + (
        "\n__kernel void functions(__global const VAL *v, __global VAL *y, int n)\n"
        "{\n    const int i = get_global_id(0);\n" + calls + "\n}\n"
    )
    program = build(where.context, where.device, text, "include/activations.h")
    kernel = cl.Kernel(program, "functions")
    y = np.empty((len(ROWS), v.size), v.dtype)
    flags = cl.mem_flags
    v_buffer = cl.Buffer(where.context, flags.COPY_HOST_PTR, hostbuf=v)
    y_buffer = cl.Buffer(where.context, flags.WRITE_ONLY, y.nbytes)
    kernel.set_args(v_buffer, y_buffer, np.int32(v.size // width))
    cl.enqueue_nd_range_kernel(where.queue, kernel, (v.size // width,), None)
    cl.enqueue_copy(where.queue, y, y_buffer)
    return dict(zip((row.name for row in ROWS), y, strict=True))


@pytest.mark.parametrize(("real", "width", "operators"), BUILDS)
def test_functions_agree_with_numpy(real, width, operators):
    """Within `bounds.ACTIVATION_ERRORS`; NaN and infinities as in NumPy."""
    if real == "double" and not device().fp64:
        pytest.skip("the device has no float64")
    dtype = np.float64 if real == "double" else np.float32
    v = grid(dtype)
    wide = v.astype(np.float64)
    faults = []
    for name, y in on_device(real, width, operators, v).items():
        with np.errstate(all="ignore"):
            exact = activation(name).value(wide)
            bound = activation_bound(name, wide, 0.0, dtype.__name__)
            error = np.abs(y - exact)
        # Intermediate results of the largest numbers may overflow.
        normal = np.isfinite(exact) & (np.abs(v) < np.finfo(dtype).max / 8)
        wrong = normal & ~(error <= bound)
        wrong |= np.isnan(exact) != np.isnan(y)
        if name in ("silu", "gelu_tanh", "mish"):  # -inf * 0 in NumPy; 0 is as good
            wrong &= ~(np.isneginf(v) & (np.abs(y) < 1e-30))
        wrong |= np.isinf(v) & ~np.isnan(exact) & (y != exact) & ~(error <= bound)
        if wrong.any():
            i = np.flatnonzero(wrong)[0]
            faults.append(
                f"{name}({v[i]:.9g}) is {y[i]:.9g}, expected {exact[i]:.9g} ± "
                f"{bound[i]:.3g}; {wrong.sum()} of {v.size} are wrong"
            )
    assert not faults, "\n".join(faults)


def test_functions_with_parameters_are_rows_by_their_names():
    for text, name in [
        ("clip( -10.0 ,1e1)", "clip(-10, 10)"), ("ReLU6", "clip(0, 6)"),
        ("clip(-inf, 0.5)", "clip(-inf, 0.5)"), ("clip(0, 1)", "linear_piece"),
        ("clip(-1, 1)", "linear_piece_symmetric"), ("clip(-0, inf)", "relu"),
        ("clip(-inf, inf)", "identity"), ("leaky_relu(0.01)", "leaky_relu"),
        ("elu(1)", "elu"), ("elu(2)", "elu(2)"),
    ]:
        assert activation_name(text) == name
        assert activation(name).name == name


@pytest.mark.parametrize(("name", "message"), [
    ("clip(1)", r"clip\(low, high\) of numbers within float32's range, or inf"),
    ("clip(1, a)", "wrong parameters"), ("clip(nan, 1)", "wrong parameters"),
    ("elu(inf)", r"expected elu\(alpha\) of numbers"), ("elu(1e39)", "wrong param"),
    ("clip(2, 2)", "bounds 2 and 2, expected rising"),
    ("clip(inf, inf)", "expected rising"), ("clap(1, 2)", "unknown activation"),
])
def test_wrong_parameters_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        Dense(2, name)


def test_every_row_has_its_function_and_every_function_its_row():
    text = kernel_text("include/activations.h")
    functions = re.findall(r"^static inline VAL act_(\w+)\(VAL v\)", text, re.MULTILINE)
    assert sorted(functions) == sorted(ACTIVATIONS)


@pytest.mark.parametrize("fann", [False, True])
def test_every_row_has_its_gradients_and_every_gradient_its_row(fann):
    """Where FANN's gradient is inexact, there is one function for each."""
    text = kernel_text("include/gradients.h")
    functions = re.findall(
        r"^static inline VAL ((?:fann_)?grad_\w+)\(VAL ([vy]), VAL s\)", text,
        re.MULTILINE,
    )
    found = {name: read for name, read in functions if name.startswith("fann") == fann}
    expected = {
        gradient_function(row.name, fann)[0]: "v" if row.reads == "v" else "y"
        for row in ACTIVATIONS.values()
        if not fann or row.fann_gradient is not None
    }
    assert found == expected


HEADER_MACROS = {
    "REAL": "float", "WIDTH": 1, "OPERATOR_MATH": 0, "RATIONAL_TANH": 0,
    "LEAK": "0.01f", "PTX": 0,
}


@pytest.mark.parametrize("missing", HEADER_MACROS)
def test_a_missing_macro_is_an_error(missing):
    defines = dict(HEADER_MACROS)
    where = session(device())
    del defines[missing]
    lines = [f"#define {key} {value}" for key, value in defines.items()]
    header = kernel_text("include/activations.h")
    text = "\n".join([*lines, header, "__kernel void none() {}"])
    with pytest.raises(Exception, match=r"activations\.h needs REAL, WIDTH"):
        cl.Program(where.context, text).build(devices=[where.device.handle])


@rows()
def test_values_exceed_their_arguments_by_no_more_than_the_row_says(row):
    v = np.linspace(-100, 100, 20001)
    y = row.value(v)
    assert (np.abs(y) - np.abs(v)).max() <= row.excess + 1e-12
    assert np.abs(row.gradient(v, y)).max() <= row.steepest


@rows()
def test_values_are_within_the_limits(row):
    """And come near them: a warning of targets beyond them is right."""
    y = row.value(np.linspace(-60, 60, 120_001))
    low, high = row.limits
    assert y.min() >= low - 1e-3 and y.max() <= high
    if row.name != "gaussian_stepwise":  # zero, as in FANN
        assert y.min() <= max(low, -0.5) + 0.02 and y.max() >= min(high, 50) - 0.02
