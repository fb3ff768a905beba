"""The explanation: the whole report in 80 columns."""

from __future__ import annotations

import dataclasses

import pytest

from clnet import Dense, Network
from clnet.errors import WIDTH
from clnet.formats.pictures import figure
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Rprop
from clnet.opencl.device import Device
from clnet.opencl.store import Timing
from clnet.planning import explain, planner
from clnet.planning.cover import Candidate, Cover, PlanReport
from clnet.planning.explain import Explanation, explanation
from clnet.planning.tuning import times
from clnet.runtime.binding import PlanStep
from clnet.variants import VARIANTS
from clnet.variants.dense.naive import Fused, Naive, Split
from clnet.variants.reference.generic import Generic, GenericBackward, Host

SERIAL = Device("serial", "cpu", serial=True)
CPU = Device("some processor", "cpu", companions=(SERIAL,))
NETWORK = Network.mlp([4, 8, 8, 8, 3], "tanh", seed=0)


def candidate(start, stop, variant, seconds, device=CPU, measured=True, **config):
    span = NETWORK.program.span(start, stop, 1)
    step = PlanStep(span, variant, config, device)
    timing = Timing(seconds, 2 * seconds, 0.0) if measured else None
    return Candidate(start, stop, step, seconds, timing)


LAYERS = [candidate(i, i + 2, Naive(), 1e-5) for i in range(0, 8, 2)]
WHOLE = candidate(0, 8, Fused(), 2e-4, items=4, group=256)
OPS = [candidate(i, i + 1, Host(), 3e-6, None) for i in range(8)]


def cover(*candidates, whole=None):
    timing = None if whole is None else Timing(whole, whole, 0.0)
    return Cover(candidates, sum(c.seconds for c in candidates), timing)


def text(covers, others=(), network=NETWORK, device=CPU, batch=1, **rest):
    candidates = [c for one in covers for c in one.candidates]
    report = PlanReport([*candidates, *others], covers=list(covers), **rest)
    found = explanation(network, device, batch, report)
    assert all(len(line) <= WIDTH for line in found.splitlines())
    return found


def parts(found):
    """The parts by their headings; the first one has none."""
    first, *rest = found.split("\n\n")
    named = {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in rest}
    return {"": " ".join(first.split()), **named}


def rows(part):
    return [" ".join(line.split()) for line in part.splitlines()[1:]]


def test_the_first_line_has_network_device_and_time():
    found = parts(text([cover(*LAYERS, whole=4.56e-5)], batch=17))
    assert found == {
        "": "4-8-8-8-3, float32, batch 17, on some processor: 45.6 us a call, measured "
            "host to host.",
        "chosen": found["chosen"],
    }


def test_the_first_line_says_how_the_time_was_found():
    measured = parts(text([cover(*LAYERS)]))[""]
    assert "40 us a call, the sum of measured spans." in measured
    modelled = [dataclasses.replace(c, timing=None) for c in LAYERS]
    assert "modelled, nothing measured." in parts(text([cover(*modelled)]))[""]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (2.5, "2.5 s"), (1.0, "1 s"), (0.0123456, "12.3 ms"), (1e-3, "1 ms"),
        (9.994e-4, "999 us"), (9.996e-4, "1 ms"), (1.5e-6, "1.5 us"),
        (2e-8, "20 ns"), (0.0, "0 ns"),
    ],
)
def test_times_have_their_unit(seconds, words):
    assert f"some processor: {words} a call" in parts(
        text([cover(*LAYERS, whole=seconds)])
    )[""]


def test_the_chosen_cover_is_listed_equal_layers_together():
    found = parts(text([cover(*LAYERS, whole=1e-4)]))
    assert rows(found["chosen"]) == ["1-4 naive device 10 us measured"]
    mixed = [LAYERS[0], candidate(2, 4, Naive(), 7e-6), *LAYERS[2:]]
    assert rows(parts(text([cover(*mixed, whole=1e-4)]))["chosen"]) == [
        "3 in 1-4 naive device 10 us measured", "2 naive device 7 us measured",
    ]


def test_devices_and_configurations_are_listed():
    chosen = [
        candidate(0, 2, Naive(), 1e-5, SERIAL), candidate(2, 4, Split(), 1e-5, items=2),
        *OPS[4:],
    ]
    assert rows(parts(text([cover(*chosen, whole=1e-4)]))["chosen"]) == [
        "1 naive calling thread 10 us measured",
        "2 split items=2 device 10 us measured",
        "3-4 product host host 3 us measured", "3-4 act host host 3 us measured",
    ]


def test_whole_covers_that_lost_are_listed_best_first():
    found = parts(
        text([cover(*OPS, whole=1e-5), cover(WHOLE, whole=2e-4),
              cover(*LAYERS[:2], *OPS[4:], whole=3e-3)])
    )
    assert found["whole covers that lost"].splitlines() == [
        "   200 us  fused on device (items=4 group=256)",
        "     3 ms  2 x naive on device, 4 x host",
    ]


def test_spans_that_lost_are_listed_measured_ones_first():
    modelled = candidate(0, 2, Generic(), 1e-9, measured=False)
    slow = candidate(0, 2, Split(), 5e-2, items=1)
    found = parts(text([cover(*LAYERS, whole=1e-4)], [modelled, slow, WHOLE]))
    assert rows(found["spans that lost"]) == [
        "1 split items=1 device 50 ms measured", "1 generic device 1 ns modelled",
        "1-4 fused items=4 group=256 device 200 us measured",
    ]


def test_chosen_spans_are_no_losers():
    found = text([cover(*LAYERS, whole=1e-4)], [])
    assert "lost" not in found
    again = dataclasses.replace(LAYERS[0], timing=None)  # as `_shortest` makes them
    report = PlanReport([LAYERS[0]], covers=[cover(again, *LAYERS[1:])])
    assert "lost" not in explanation(NETWORK, CPU, 1, report)


def test_refusals_are_listed_with_their_layers():
    refusals = {
        ("cpu", "it computes in float32 only"): [(0, 2), (2, 4), (4, 6), (6, 8)],
        ("gemm", "it needs 9 bytes of local memory, and there are 8"): [(2, 4)],
        ("naive", "it applies one activation a layer"): [(0, 2), (6, 8)],
    }
    found = parts(text([cover(*OPS)], refusals=refusals))
    assert found["refused"].splitlines() == [
        "  cpu (1-4): it computes in float32 only",
        "  gemm (2): it needs 9 bytes of local memory, and there are 8",
        "  naive (2 in 1-4): it applies one activation a layer",
    ]


def test_failures_are_listed_and_are_no_losers():
    failed = dataclasses.replace(
        WHOLE, timing=None, fault="kernel fused.cl does not build"
    )
    found = parts(
        text([cover(*LAYERS)], [failed],
             failures=["fused: failed: kernel fused.cl does not build"])
    )
    assert "spans that lost" not in found
    assert found["refused"] == "  fused: failed: kernel fused.cl does not build"


def test_long_names_and_sentences_are_wrapped():
    device = dataclasses.replace(CPU, name="processor " * 20 + "x" * 100)
    network = Network.mlp([4] + [100] * 60 + [3], "tanh", seed=0)
    found = text(
        [cover(*LAYERS)], [], network, device,
        refusals={("naive", "word " * 60): [(0, 2)]}, failures=["sentence " * 40],
    )
    assert len(found.splitlines()) > 20


def test_names_are_broken_only_where_there_is_no_room():
    program = lower_training(NETWORK, loss_function("mse"), Rprop())
    config = {f"item_{name}": 100 for name in "abcdefgh"}

    def row(number, length):
        span = program.span(number, number + length, 1)
        step = PlanStep(span, GenericBackward(), config, SERIAL)
        return Candidate(number, number + length, step, 1e-5, Timing(1e-5, 1e-5, 0.0))

    report = PlanReport(covers=[Cover((row(12, 1), row(13, 4)), 2e-5)])
    found = explanation(NETWORK, CPU, 1, report, program)
    assert all(len(line) <= WIDTH for line in found.splitlines())
    assert "generic_backward  item_a=100 item_b=100" not in found
    assert "generic_backward  item_a=100" in found


def test_training_lists_a_few_measured_spans_and_counts_the_others():
    program = lower_training(NETWORK, loss_function("mse"), Rprop())
    n = len(program.ops)

    def row(start, stop, seconds, measured=True, fault=None):
        step = PlanStep(program.span(start, stop, 1), Naive(), {"a": len(rows_)}, CPU)
        timing = Timing(seconds, seconds, 0.0) if measured else None
        rows_.append(Candidate(start, stop, step, seconds, timing, fault))
        return rows_[-1]

    rows_ = []
    chosen, lost = row(0, n, 1e-5), row(0, n, 2e-5)
    for i in range(5):
        row(0, 2, 1e-3 * (5 - i))
    row(2, 4, 1e-9, measured=False)
    row(2, 4, 1e-9, measured=False, fault="it broke")
    report = PlanReport(
        rows_, covers=[Cover((chosen,), 1e-5), Cover((lost,), 2e-5)],
        unmeasured="word " * 30,
    )
    found = parts(explanation(NETWORK, CPU, 1, report, program))
    assert rows(found["spans that lost"]) == [
        "1 naive a=6 device 1 ms measured", "1 naive a=5 device 2 ms measured",
    ]
    assert found["not measured"].startswith("  1 candidate: word")
    assert len(found["whole covers that lost"].splitlines()) == 1


def test_a_layer_with_softmax_has_three_parts():
    network = Network(4, [Dense(8, "tanh"), Dense(5, "softmax")], seed=0)
    chosen = []
    for i in range(5):
        step = PlanStep(network.program.span(i, i + 1, 1), Generic(), {}, CPU)
        chosen.append(Candidate(i, i + 1, step, 1e-6 * (i + 1)))
    found = rows(parts(text([cover(*chosen)], network=network))["chosen"])
    assert [line.split(" generic")[0] for line in found] == [
        "1 product", "1 act", "2 product", "2 act", "2 softmax",
    ]


@pytest.mark.parametrize("sizes", [[1, 1], [4] * 20, [200, 400, 500, 100]])
@pytest.mark.parametrize("batch", [1, 1000])
def test_real_reports_of_any_device_fit(monkeypatch, tmp_path, sizes, batch):
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    times.store_of.cache_clear()
    monkeypatch.setattr(planner, "Plan", lambda *parts: parts[-1]())
    monkeypatch.setattr(times.Times, "wrong", lambda *parts: [])
    network = Network.mlp(sizes, "tanh", seed=0)
    for device in (
        CPU, Device("gpu", compute_units=132, simd_width=32, local_memory=48 << 10),
        Device("tiny", local_memory=256, largest_group=1),
    ):
        found = planner.Planner(network, device, batch, False, VARIANTS).plan()
        assert all(len(line) <= WIDTH for line in found.splitlines())
        assert {"chosen", "spans that lost", "refused"} <= set(parts(found))


def test_a_picture_shows_the_covers_by_their_times():
    pytest.importorskip("matplotlib")
    covers = [cover(WHOLE, whole=1e-4), cover(*LAYERS, whole=2e-4), cover(*OPS)]
    axes = figure().subplots()
    Explanation(NETWORK, CPU, 1, PlanReport(covers=covers)).draw(axes)
    widths = sorted(round(bar.get_width()) for bar in axes.patches)
    assert widths == [3] * 8 + [10] * 4 + [200]
    shown = {text.get_text() for text in axes.texts}
    assert {"100 us", "200 us", "24 us", "1-4"} <= shown
    names = {text.get_text() for text in axes.get_legend().get_texts()}
    assert names == {"fused", "naive", "host"}
    assert axes.get_title(loc="left").startswith("4-8-8-8-3, float32, batch 1")


def test_layers_are_counted_past_dropout():
    program = lower_training(
        Network.mlp([3, 5, 4, 2], dropout=0.5), loss_function("mse"), Rprop()
    )
    assert explain._named(program, [(0, len(program.ops))]) == "1-3"
