"""The study of scaling: its trials and model; ranks at a tiny size under -m sweep."""

from dataclasses import replace

import pytest
from clnet.benchmarks import command, harness, measurements
from clnet.benchmarks.studies import rank_processes, scaling, scaling_devices
from clnet.benchmarks.studies.rank_model import BLOCKS, Interconnect
from studies import CPU, GPU
from studies import rows_of as measured_rows

import clnet
from clnet import InputError
from clnet.planning import inference
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Host

Options = harness.Options
MESSAGE = Interconnect(2e-6, 1e-10, 5e-11)


def rows_of(times):
    """Return rows of (table, case, sizes, batch, candidate, ranks, seconds)."""
    blank = dict.fromkeys(
        ("device", "platform", "platform_version", "driver", "clnet", "numpy",
         "pyopencl", "torch", "python", "date"), "",
    )
    return measurements.table_of(
        measurements.Measurement(
            study="scaling", table=table, case=case, sizes=sizes, activation="",
            batch=batch, dtype="float32", precision="highest", seed=0,
            candidate=candidate, status="measured", median=seconds, threads=ranks,
            effort="quick", tolerance=None, load=None, **blank,
        )
        for table, case, sizes, batch, candidate, ranks, seconds in times
    )


NETWORK = [
    ("network", f"{n}", f"{n}", ranks, kind, ranks, fixed + each * n)
    for n in (64, 1 << 20)
    for kind, ranks, fixed, each in (
        ("message", 2, 1e-6, MESSAGE.per_byte),
        ("exchange", 2, MESSAGE.latency, MESSAGE.per_byte),
        ("addition", 1, 1e-6, MESSAGE.per_add),
    )
]
# 16 parameters; a step takes 10 us a sample, and 7 us a further block.
ALONE = [
    ("strong", "3-3-1 x1", "3-3-1", 16, order, 1, scaling.STEPS * (160e-6 + more))
    for order, more in (("fixed-order", 49e-6), ("any-order", 0.0))
]
FOUR = ("strong", "3-3-1 x4", "3-3-1", 16, "fixed-order", 4, 1e-3)


def test_each_number_of_ranks_has_the_same_candidates(monkeypatch):
    monkeypatch.setattr(scaling.os, "cpu_count", lambda: 2)
    found = scaling.trials(CPU, Options(effort="quick"))
    strong = [trial for trial in found if trial.table == "strong"]
    assert {trial.case.ranks for trial in strong} == {1, 2}
    assert len({trial.candidates for trial in strong}) == 1
    batches = {
        trial.case.ranks: trial.case.batch for trial in found if trial.table == "weak"
    }
    assert batches[2] == 2 * batches[1]
    assert {trial.case.name for trial in found if trial.table == "steps"} == (
        scaling.STEP_COSTS.keys() - scaling.SLOW
    )


def test_scaling_is_of_a_cpus_cores():
    case = scaling._case("tiny", (3, 2), 4, 2)
    with pytest.raises(scaling.RefusedError, match="a CPU, and faked is none"):
        scaling.Ranked("any-order").prepare(case, GPU)


def test_one_training_is_not_joblibs(monkeypatch):
    case = scaling._case("tiny", (3, 2), 4, 2)
    with pytest.raises(scaling.RefusedError, match="joblib shares whole trainings"):
        scaling.Ranked("sklearn").prepare(case, CPU)
    monkeypatch.setattr(rank_processes, "mpiexec", lambda: None)
    assert "pip install 'clnet[mpi]'" in scaling.Ranked("any-order").missing()


def test_the_model_finds_the_costs_that_its_rows_have():
    found = scaling.interconnect(rows_of(NETWORK))
    assert found.latency == pytest.approx(MESSAGE.latency)
    assert found.per_byte == pytest.approx(MESSAGE.per_byte)
    assert found.per_add == pytest.approx(MESSAGE.per_add)


def test_predictions_stand_beside_measurements():
    found = scaling.model(rows_of([*NETWORK, *ALONE, FOUR]))
    one, free, four = found["median"] / scaling.STEPS
    assert (one, free) == pytest.approx((160e-6 + 49e-6, 160e-6))
    sums = 2 * (2e-6 + 64 * 1.5e-10)  # 16 parameters of 4 bytes
    assert four == pytest.approx(40e-6 + (BLOCKS // 4 - 1) * 7e-6 + sums)
    assert found["measured"].iloc[2] == FOUR[-1]


def test_steps_are_drawn_to_1024_ranks():
    steps = [
        ("steps", "tiny", "3-3-1", batch, order, 1,
         scaling.STEPS * (1e-4 + 1e-5 * batch))
        for batch in scaling.BATCHES for order in scaling.ORDERS
    ]
    one_batch = [("steps", "half", *row[2:]) for row in steps[:2]]
    rows = rows_of([*NETWORK, *ALONE, FOUR, *steps, *one_batch])
    found = scaling.model(rows)
    drawn = found[(found["table"] == "drawn") & (found["interconnect"] == "assumed")]
    assert drawn["ranks"].max() == 1024
    assert set(drawn["case"]) == {"tiny"}  # others' costs cannot be told apart
    last = drawn[(drawn["order"] == "fixed-order") & (drawn["ranks"] == 1024)]
    sums = scaling.ASSUMED.ordered(64, 1024)
    assert last["median"].iloc[0] == pytest.approx(1e-4 + 4e-5 + sums)
    report = scaling.model_report(rows, found)
    assert "shortest at" in report


def test_the_model_says_which_rows_it_lacks():
    with pytest.raises(InputError, match="rows of two sizes of message"):
        scaling.model(rows_of(ALONE))


def test_the_command_writes_predictions_beside_the_rows(tmp_path, capsys):
    path = tmp_path / "scaling-x.csv"
    rows = rows_of([*NETWORK, *ALONE, FOUR])
    rows.to_csv(path, index=False)
    command.run(None, None, None, str(path), Options(model=True))
    text = (tmp_path / "scaling-x-model.csv").read_text()
    assert text.count("\n") == 4
    assert "an exchange takes 2 us" in capsys.readouterr().out
    rows.assign(study="local").to_csv(path, index=False)
    with pytest.raises(InputError, match="local takes no --model"):
        command.run(None, None, None, str(path), Options(model=True))


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*scaling.ORDERS, "torch-ddp", "sklearn"])
def test_ranks_find_the_oracles_errors(name):
    ranks = 1 if name == "sklearn" else 2
    case = replace(scaling._case("tiny", (5, 7, 3), 16, ranks), checked=2)
    candidate = scaling.Ranked(name)
    if (missing := candidate.missing()) is not None:
        pytest.skip(missing)
    trial = harness.Trial("strong", case, (candidate,), roofline=False)
    (row,) = measured_rows(trial, clnet.device("cpu"), ["epoch"], study="scaling")
    assert (row.status, row.threads) == ("measured", ranks)


def test_a_gpu_has_trials_of_its_own(monkeypatch):
    monkeypatch.setattr(scaling_devices, "_alike", lambda device: [GPU, GPU])
    found = scaling.trials(GPU, Options())
    assert {trial.table for trial in found} == {"devices", "file"}
    assert {trial.case.devices for trial in found} == {1, 2}


TWINS = [clnet.device("cpu"), replace(clnet.device("cpu"), index="9:1")]


@pytest.fixture
def rows_on_twins(monkeypatch):
    """Return a function from a trial to its rows, on two devices that are one CPU."""
    monkeypatch.setattr(scaling_devices.clnet, "devices", lambda: TWINS)
    monkeypatch.setattr(scaling_devices, "STEP", (5, 7, 3))
    monkeypatch.setattr(scaling_devices, "SAMPLES", 32)
    monkeypatch.setattr(scaling_devices, "CHECKED", 16)
    monkeypatch.setattr(scaling_devices, "PREDICTED", {(5, 7, 3): 100})
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Host()))

    def rows(table):
        return [
            row for trial in scaling.trials(replace(TWINS[0], type="gpu"), Options())
            if trial.table == table
            for row in measured_rows(trial, TWINS[0], ["step", "epoch"])
        ]

    return rows


def test_trainings_and_predictions_by_devices(rows_on_twins, monkeypatch):
    monkeypatch.setattr(scaling_devices, "alike", lambda devices: True)
    ours = [row for row in rows_on_twins("devices") if row.candidate != "torch-ddp"]
    assert [(row.candidate, row.status, row.threads) for row in ours] == [
        (name, "measured", n) for n in (1, 2) for name in ("clnet", "clnet-long")
    ]
    assert [(row.candidate, row.status, row.threads) for row in rows_on_twins("file")
            ] == [(name, "measured", n) for n in (1, 2)
                  for name in ("clnet-file", "clnet-array")]


def test_devices_must_be_there():
    case = scaling_devices._case((5, 7, 3), 9)
    with pytest.raises(scaling.RefusedError, match="like"):
        scaling_devices.Devices().prepare(case, TWINS[0])


@pytest.mark.sweep
def test_processes_of_a_device_each_find_the_oracles_errors():
    pytest.importorskip("torch")
    case = scaling_devices._case((5, 7, 3), 2)
    few = replace(case, samples=16, batch=8)
    processes = scaling_devices.ddp_processes(
        replace(case, samples=64, batch=32), few, backend="gloo"
    )
    assert processes(16, 0)[0] == pytest.approx(few.errors, rel=few.tolerance)
    assert processes(64, 1)[1] > 0
