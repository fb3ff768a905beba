"""Equal keys of tables and packed parameters mean equal content, in every variant,
configuration, span and batch: buffers are shared by key."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from bounds import assert_right
from devices import DEVICE, H200, posing
from variant_cases import alternate, sparse
from variants.table_contents import fault

from clnet import Dense, Local, Network
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Adam, Rprop
from clnet.nn.regularisation import Regularisation
from clnet.nn.storage.formats import FORMATS
from clnet.opencl.bound import Bound
from clnet.opencl.launch import PARAMETERS, Constant, Packed, Scratch
from clnet.opencl.memory import filled_memory
from clnet.opencl.session import session
from clnet.planning.training_planner import TRAINING_VARIANTS
from clnet.runtime.binding import PlanStep
from clnet.runtime.plan import Plan
from clnet.variants import VARIANTS

ALL = tuple(dict.fromkeys((*VARIANTS, *TRAINING_VARIANTS)))
FEW = 3  # configurations of a span, and launches of one key whose buffers are compared
BATCHES = (1, 70)
# Records of one session.
SESSIONS = {
    "this device": (DEVICE, *DEVICE.companions),
    "forward progress": (posing(3),),
    "matrix units": (H200,),
}


NETWORKS = {
    "dense": lambda: Network(
        37, [Dense(70, "tanh"), Dense(40, "tanh"), Dense(33, "tanh"), Dense(5)], seed=1
    ),
    "dense of one width": lambda: Network(
        64, [Dense(64, "relu"), Dense(64, "relu", bias=False), Dense(64, "relu"),
             Dense(64, "sigmoid")], seed=1,
    ),
    "wide": lambda: Network(
        300, [Dense(520, "sigmoid"), Dense(260, "tanh"), Dense(140, "tanh")], seed=1
    ),
    **{
        f"{form} {dtype}": partial(
            lambda form, dtype: Network(
                64, [sparse(90, form), sparse(64, form), sparse(64, form)], seed=2,
                dtype=dtype,
            ), form, dtype,
        )
        for form, dtype in product(
            [name for name in FORMATS if name not in ("dense", "local")],
            ("float32", "float64"),
        )
    },
    "local": lambda: Network(
        64, [Local(5, "tanh"), Local(3, "tanh"), Local(5, "relu", bias="shared"),
             Local(3, "tanh")], seed=3,
    ),
    "mixed": lambda: Network(
        30, [Dense(65, "tanh"), Dense(65, "tanh"), sparse(65, "hyb"), Local(7, "tanh"),
             Dense(9, "sigmoid")], seed=4,
    ),
}


def programs(network):
    """Return programs of a network, inference and training, for one session."""
    forward = network.program
    found = [forward]
    if network.dtype == "float32":
        found += [forward.at(precision) for precision in ("high", "medium")]
    for loss, rule, options in (
        ("mse", None, {}), ("mse", Rprop(), {"samples": 100}),
        ("mae", Adam(), {"weighted": True, "regularisation": Regularisation(
            l2=0.1, clip_norm=1.0)}),
        ("huber", Adam(), {"samples": 100, "shuffled": True}),
    ):
        found.append(lower_training(network, loss_function(loss), rule, **options))
    return found


def spans_of(program, variant, batch):
    """Return the spans of the lengths that a variant takes."""
    n = len(program.ops)
    lengths = {
        "op": [1], "layer": [2], "pair": [1, 2], "program": [n],
    }.get(variant.reach, range(1, n + 1))
    return [
        program.span(start, start + length, batch)
        for length in lengths for start in range(n - length + 1)
    ]


def described(network, places, most):
    """Yield launches of every variant, of some configurations, with span and label."""
    for program, batch, variant in product(programs(network), BATCHES, ALL):
        trains = len(program.ops) > len(network.program.ops)
        if variant not in (TRAINING_VARIANTS if trains else VARIANTS):
            continue
        for span, place in product(spans_of(program, variant, batch), places):
            if variant.refuse(span, place) is not None:
                continue
            for config in list(variant.space(span, place))[:most]:
                label = f"{variant.name} {config}"
                yield variant.launches(span, config, place), span, label


def bytes_of(network, packed, launches):
    """Return the contents of a buffer of packed parameters after launches."""
    where = session(DEVICE)
    parameters = filled_memory(where, network.parameters)
    bound = Bound(where, network.dtype, buffers={PARAMETERS.name: parameters})
    for launch in launches:
        bound.launch(launch, DEVICE)()
    where.finish()
    return bound.memory(packed).read(where, packed.size, "uint8").tobytes()


def assert_checked(table, launch, span):
    """Check that a table is as its kernels assume."""
    values = table.make()
    # Those that are their own key follow from the network's description alone.
    if table.name != Constant.of(values).name:
        assert fault(table, values, launch, span) is None, table.name
    return values


@pytest.mark.unoptimised
@pytest.mark.parametrize("most", [
    FEW, pytest.param(10**6, marks=pytest.mark.sweep, id="all"),
])
@pytest.mark.parametrize(("name", "which"), alternate(NETWORKS, SESSIONS))
def test_equal_keys_mean_equal_content(name, which, most):
    network = NETWORKS[name]()
    tables, packings = {}, {}
    for launches, span, label in described(network, SESSIONS[which], most):
        fills, sizes = {}, {}
        for launch in launches:
            for argument in launch.arguments:
                if isinstance(argument, Constant):
                    values = assert_checked(argument, launch, span)
                    found = values.dtype, values.tobytes()
                    first, other = tables.setdefault(argument.name, (found, label))
                    assert found == first, (argument.name, other, label)
                if isinstance(argument, Scratch):
                    size = sizes.setdefault(argument.name, argument.size)
                    assert argument.size == size, (argument.name, label)
                if isinstance(argument, Packed) and launch.when == "parameters":
                    fills.setdefault(argument, []).append(launch)
        for packed, fill in fills.items():
            contents = packings.setdefault(packed.name, {})
            contents.setdefault((packed.size, repr(fill)), (packed, fill, label))
    assert not tables.keys() & packings.keys()  # a replay stores both in one dict
    for contents in packings.values():
        labels = [label for _, _, label in contents.values()]
        assert len({size for size, _ in contents}) == 1, labels
        if len(contents) > 1:
            some = list(contents.values())[:: -(-len(contents) // most)]
            found = {bytes_of(network, packed, fill) for packed, fill, _ in some}
            assert len(found) == 1, labels


@pytest.mark.unoptimised
@pytest.mark.parametrize(("form", "order", "dtype"), alternate(
    ["ell", "sell", "hyb"], [("csr", "sell"), ("sell", "sparse_team")],
    ["float32", "float64"],
))
def test_plans_of_one_network_share_correct_tables(order, form, dtype):
    network = Network(
        300, [sparse(200, form, density=0.05), sparse(200, form, density=0.05)],
        dtype=dtype, seed=1,
    )
    x = np.random.default_rng(1).uniform(-1, 1, (20, 300)).astype(dtype)
    kept = []  # plans share buffers of plans that are alive
    for batch, name in product((1, 20), order):
        kept.append(network.compile(
            DEVICE, batch, tune=False, variants=[name, "generic"]
        ))
        assert_right(network, x[:batch], kept[-1](x[:batch]))
    if form == "hyb":  # its layers are of more ops
        return
    named = {variant.name: variant for variant in ALL}
    for batch, names in product((1, 20), (order, order[::-1])):
        steps = []
        for start, variant in zip((0, 2), (named[name] for name in names), strict=True):
            span = network.program.span(start, start + 2, batch)
            config = next(iter(variant.space(span, DEVICE)))
            steps.append(PlanStep(span, variant, config, DEVICE))
        kept.append(Plan(network, DEVICE, batch, steps, list, list))
        assert_right(network, x[:batch], kept[-1](x[:batch]))


@pytest.mark.unoptimised
@pytest.mark.parametrize(
    ("form", "dtype"), alternate(["ell", "sell"], ["float64", "float32"])
)
def test_forced_configurations_in_mixed_covers(form, dtype):
    """Every layer by another variant and configuration; all plans stay alive."""
    if dtype == "float64" and not DEVICE.fp64:
        pytest.skip("the device has no float64")
    network = Network(
        150, [sparse(170, form, density=0.08), sparse(90, form, density=0.1),
              Dense(64, "tanh"), sparse(70, form, "sigmoid", density=0.2)],
        dtype=dtype, seed=1,
    )
    rng = np.random.default_rng(7)
    named = {variant.name: variant for variant in ALL}
    kept, met = [], set()
    for number in range(12):
        batch = (1, 5, 20)[number % 3]
        x = rng.uniform(-1, 1, (batch, 150)).astype(dtype)
        steps = []
        for start in range(0, len(network.program.ops), 2):
            span = network.program.span(start, start + 2, batch)
            names = [
                name for name in ("sell", "sparse_team", "csr", "gemm")
                if named[name].refuse(span, DEVICE) is None
            ]
            variant = named[str(rng.choice(names))]
            space = list(variant.space(span, DEVICE))
            config = space[rng.integers(len(space))]
            met.add((variant.name, repr(config)))
            steps.append(PlanStep(span, variant, config, DEVICE))
        kept.append((Plan(network, DEVICE, batch, steps, list, list), x))
        for plan, inputs in kept[-3:]:
            assert_right(network, inputs, plan(inputs))
    assert {name for name, _ in met} >= {"sell", "sparse_team"}
    network.parameters = network.parameters * np.dtype(dtype).type(0.5)
    for plan, inputs in kept:
        assert_right(network, inputs, plan(inputs))
