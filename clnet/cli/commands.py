"""The commands of ``clnet``, except `train` and `bench`.

Each command takes the parsed arguments and returns the exit status.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import textwrap
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from clnet.cli import json_output
from clnet.cli.samples import (
    TABLE_OPTIONS,
    read,
    unknown_targets,
    unused_scaling,
)
from clnet.cli.summary import (
    brief,
    class_texts,
    counts_of,
    data_text,
    device_rows,
    devices_of,
    evaluation_rows,
    explained,
    figures,
    network_text,
    pairs,
    table_rows,
)
from clnet.errors import WIDTH, FormatError, InputError, counted
from clnet.formats import (
    DATA_SUFFIXES,
    NETWORK_SUFFIXES,
    TABLE_SUFFIXES,
    check_save_data,
    load_data,
    save_data,
    save_table,
    suffix_of,
)
from clnet.formats.files import as_path, check_writable, write
from clnet.formats.pictures import drawn, picture_file
from clnet.formats.sources import grouped, joined
from clnet.formats.table import header_of
from clnet.network import load
from clnet.nn.activations import SOFTMAX
from clnet.nn.labels import Label, encoded
from clnet.nn.metrics import metrics_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from clnet.cli.samples import FileSamples
    from clnet.network import Network
    from clnet.nn.metrics import Metrics
    from clnet.opencl.device import Device
    from clnet.planning.predictions import Prediction
    from clnet.runtime.plan import Plan

LARGEST_BATCH = 4096  # samples a call without --batch
NPY = ".npy"  # of outputs alone


def devices(arguments: argparse.Namespace) -> int:
    """List the devices, or those that are named."""
    from clnet.cli.device_table import device_table, draw_roofline, rate_table
    from clnet.opencl.discovery import device_list
    from clnet.opencl.discovery import devices as present

    plot = arguments.plot
    if plot is not None:
        if not arguments.measure:
            raise InputError("--plot draws measured rates: give --measure too")
        picture_file(plot)
    named = devices_of(arguments.device)
    listed = present() if named is None else device_list(named)
    if arguments.measure:
        listed = _measured(listed)
    if arguments.json:
        fields = [json_output.device_fields(device) for device in listed]
        json_output.show({"devices": fields})
        return 0
    print(device_table(listed))
    if arguments.measure:
        for device in listed:
            for place in device.places:
                print(f"\n{rate_table(place)}")
        if plot is not None:
            drawn(lambda axes: draw_roofline(axes, listed), plot, None)
    return 0


def _measured(listed: Iterable[Device]) -> tuple[Device, ...]:
    """Return devices with their rates measured anew."""
    from clnet.opencl.discovery import device
    from clnet.opencl.rate_probes import measured

    return tuple(measured(device(each), again=True) for each in listed)


def doctor(arguments: argparse.Namespace) -> int:
    """Examine the set-up; the exit status is 1 if something is wrong."""
    from clnet.cli.doctor import report

    return report(arguments.json)


def info(arguments: argparse.Namespace) -> int:
    """Show the content of a file."""
    if _is_network(arguments.file):
        _no_table(arguments)
        network = load(arguments.file, memory_limit=arguments.memory_limit)
        if arguments.json:
            json_output.show(json_output.network_fields(network))
        else:
            print(network_text(network))
        return 0
    data = read(arguments, arguments.file, None)
    if arguments.json:
        json_output.show(json_output.data_fields(data))
    else:
        print(data_text(data.x, data.t, data.notes))
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Run a network on data."""
    from clnet.planning.inference import resolve_devices
    from clnet.planning.predictions import Prediction
    from clnet.runtime.plan import Plan

    out = arguments.out
    if out is not None:  # before the work
        _check_out(out)
    if arguments.trace is not None:
        check_trace(arguments.trace)
    network = load(arguments.network, memory_limit=arguments.memory_limit)
    if arguments.probabilities:
        _check_probabilities(arguments, network)
    data = read(
        arguments, arguments.data, network.dtype, network.columns, network.n_in
    )
    scaling = network.scaling
    if arguments.scale and scaling is None:
        raise InputError(
            f"{arguments.network} has no scaling parameters: leave out --scale"
        )
    scale = scaling is not None and (arguments.scale or network.columns is not None)
    x = data.x
    if x.shape[1] != network.n_in:
        raise InputError(
            f"{arguments.data} has {data.counts}, expected {network.n_in} and "
            f"{network.n_out} as in {arguments.network}"
        )
    lacking = unknown_targets(network, data)
    if lacking and arguments.evaluates:
        raise InputError(
            f"{arguments.data} has no targets to compare the outputs with: {lacking}"
        )
    by_parts = data.source is not None
    outputs_alone = out is not None and out.lower().endswith(NPY)
    if out is not None and by_parts and not outputs_alone:
        raise InputError(
            f"{arguments.data} is read by parts, whose outputs go to a {NPY} file: "
            f"give one instead of {out}, or a --buffer in which the data fit"
        )
    batch = arguments.batch or min(len(data), LARGEST_BATCH)
    chosen = resolve_devices(devices_of(arguments.device))
    profiles = arguments.profile or arguments.trace is not None
    if profiles and not isinstance(chosen, str) and len(chosen) > 1:
        option = "--profile" if arguments.profile else "--trace"
        raise InputError(f"{option} is for one device, not for {len(chosen)}")
    how = Prediction(
        network, network._plans, chosen, scaling if scale else None, arguments.precision
    )
    plan = None
    if profiles:
        plan = network.plan_for(chosen, batch, arguments.precision, math.inf)
    counts, metrics = Counter[Label](), metrics_of(network, how.scaling, auc=True)
    outputs = _outputs(network, how, data, batch, counts, None if lacking else metrics)
    y = None
    if outputs_alone:
        _write_outputs(out, outputs, (len(data), network.n_out), network.dtype)
    elif by_parts:
        for _ in outputs:
            pass
    else:
        y = np.concatenate(list(outputs))
    labels = None if y is None or network.classes is None else (
        network.labels_of(y, scale)
    )
    if out is not None and y is not None:
        save_answers(arguments, network, data, y, labels)
    if isinstance(chosen, str):  # the fastest
        size = min(batch, len(data))
        used = network.plan_for(chosen, size, arguments.precision, 0)
        devices = (used.device,) if isinstance(used, Plan) else used.devices
    else:
        devices = chosen
    samples = np.resize(x, (batch, network.n_in))
    if isinstance(plan, Plan) and arguments.trace is not None:
        write_trace(arguments.trace, plan, samples)
    rows: list[tuple[str, object]] = [
        *device_rows(devices),
        ("samples", len(data)), *table_rows(data.notes),
    ]
    if network.classes is not None:
        rows.append(("classes", counts_of(counts)))
    evaluation = None if lacking else metrics.evaluation()
    if arguments.json:
        shown = {} if arguments.evaluates else {
            "outputs": y, "labels": labels, "written": out,
        }
        json_output.show({
            "devices": [name for _, name in device_rows(devices)],
            "samples": len(data), "scaled": scale, "classes": network.classes,
            "table": data.notes, "targets": lacking or None,
            **figures(evaluation), **shown,
        })
        return 0
    if evaluation is not None:
        rows += evaluation_rows(evaluation, len(data) * network.n_out)
    else:
        rows.append(("targets", f"not compared: {lacking}"))
    rows += [("written", path) for path in (out, arguments.trace) if path is not None]
    if scaling is not None and not scale:
        rows.append(("note", unused_scaling(arguments.network)))
    print(pairs(rows))
    for text in [] if evaluation is None else class_texts(evaluation, network):
        print(f"\n{text}")
    if isinstance(plan, Plan) and arguments.profile:
        from clnet.runtime.profiling import call_times

        print(f"\n{call_times(plan, samples).table()}")
    return 0


def _outputs(
    network: Network, how: Prediction, data: FileSamples, batch: int,
    counts: Counter[Label], metrics: Metrics | None,
) -> Iterator[NDArray[Any]]:
    """Yield outputs [samples, n_out] of each batch, counted and compared meanwhile.

    A progress bar on stderr shows long work, if that is a terminal.
    """
    from tqdm import tqdm

    from clnet.planning.predictions import walk

    parts = map(joined, grouped(data.parts(), batch))
    with tqdm(
        total=len(data), unit=" samples", disable=not sys.stderr.isatty(), delay=1,
        ncols=WIDTH, leave=False,
    ) as progress:
        for y, t in walk(how, parts, -(-len(data) // batch)):
            if network.classes is not None:
                counts.update(network.labels_of(y, how.scaling is not None).tolist())
            if metrics is not None:
                metrics.add(y, encoded(network, t, network.classes)[0])
            progress.update(len(y))
            yield y


def _check_out(path: str) -> None:
    """Raise the errors of writing outputs to a file now, before the work."""
    if path.lower().endswith(NPY):
        check_writable(as_path(path))
    else:
        check_save_data(path)


def _write_outputs(
    path: str, outputs: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: str
) -> None:
    """Write outputs to a ``.npy`` file as they come, whole or not at all."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {
        "descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape,
    })
    numbers = (y.astype(dtype, copy=False).tobytes() for y in outputs)
    write(as_path(path), chain([head.getvalue()], numbers))


def check_trace(path: str) -> None:
    """Raise InputError or FormatError unless a timeline can be written to a file."""
    file = as_path(path)
    if file.suffix.lower() != ".json":
        raise InputError(f"{file}: a timeline is a .json file, not {file.suffix!r}")
    check_writable(file)


def write_trace(path: str, plan: Plan, x: NDArray[Any]) -> None:
    """Write the timeline of a call of a plan to a file."""
    from clnet.runtime.profiling import call_timeline

    write(as_path(path), [json.dumps(call_timeline(plan, x)).encode()])


def save_answers(
    arguments: argparse.Namespace, network: Network, data: FileSamples, y: NDArray[Any],
    labels: NDArray[Any] | None,
) -> None:
    """Write the inputs and outputs of `predict` to a file.

    A table has the names of its columns, and classes by their names.
    """
    columns, path = data.columns or network.columns, arguments.data
    if not arguments.out.lower().endswith(".csv"):
        save_data(arguments.out, data.x, y)
        return
    if columns is None and path.lower().endswith(".csv"):
        columns = header_of(as_path(path), arguments.outputs)
    save_table(
        arguments.out, data.x, y if labels is None else labels, columns,
        _probabilities(network, y) if arguments.probabilities else None,
    )


def _probabilities(network: Network, y: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the probability of each class, by the name of its column."""
    if network.n_out == 1:
        y = np.column_stack([1 - y, y])
    return {
        f"P({label})": column
        for label, column in zip(network.classes or (), y.T, strict=True)
    }


def _check_probabilities(arguments: argparse.Namespace, network: Network) -> None:
    """Raise InputError unless outputs are probabilities of classes for a table."""
    last = network.layers[-1].activation
    expected = "sigmoid" if network.n_out == 1 else SOFTMAX
    if network.classes is None or last != expected:
        raise InputError(
            "--probabilities is for networks of named classes that end in softmax, or "
            "in one sigmoid"
        )
    if not (arguments.out or "").lower().endswith(".csv"):
        raise InputError("--probabilities are columns of a table: give --out FILE.csv")


def convert(arguments: argparse.Namespace) -> int:
    """Write a file in another format."""
    source, target = arguments.source, arguments.destination
    dtype = arguments.dtype
    if _is_network(source) != _is_network(target):
        raise FormatError(
            f"{source} and {target} are of two kinds, expected two networks or two "
            "data files"
        )
    if _is_network(source):
        _no_table(arguments)
        network = load(source, dtype=dtype, memory_limit=arguments.memory_limit)
        network.save(target)
        if arguments.json:
            json_output.show({"network": network.sizes, "written": target})
            return 0
        print(f"wrote {target}: {network!r}")
        if target.lower().endswith(".net") and not network.fann_compatible:
            print(textwrap.fill(
                "note: FANN clips the pre-activation of every neuron, a linear output "
                "at 150 / steepness; this network did not.", WIDTH))
        return 0
    text = not source.lower().endswith(".npz")  # float64 holds decimals best
    x, t = load_data(
        source, dtype=dtype or ("float64" if text else None), outputs=arguments.outputs,
        memory_limit=arguments.memory_limit,
    )
    save_data(target, x, t)
    if arguments.json:
        json_output.show({
            "samples": len(x), "inputs": x.shape[1], "outputs": t.shape[1],
            "written": target,
        })
        return 0
    sizes = (len(x), "sample"), (x.shape[1], "input"), (t.shape[1], "output")
    print(f"wrote {target}: {', '.join(counted(*size) for size in sizes)}")
    return 0


def explain(arguments: argparse.Namespace) -> int:
    """Show how a network would be run or trained, and why."""
    tune = True if arguments.tune else None
    network = load(arguments.network, memory_limit=arguments.memory_limit)
    if arguments.plot is not None:
        if arguments.training is not None:
            raise InputError("--plot draws plans of predictions, not of --training")
        picture_file(arguments.plot)
    if arguments.training is None and arguments.population is None:
        plan = _plan(network, arguments, arguments.batch, tune)
        text = plan.explain()
        if arguments.plot is not None:
            plan.plot(arguments.plot)
    else:
        text = _explanation(network, arguments, arguments.batch, tune)
    if arguments.json:
        json_output.show(explained(text))
    else:
        print(text if arguments.all else brief(text))
    return 0


def _plan(
    network: Network, arguments: argparse.Namespace, batch: int, tune: bool | None
) -> Plan:
    return network.compile(
        arguments.device, batch, tune=tune, precision=arguments.precision,
        progress=sys.stderr.isatty(),
    )


def _explanation(
    network: Network, arguments: argparse.Namespace, batch: int, tune: bool | None
) -> str:
    """Return how a network is run or, if asked, how one or many train."""
    if arguments.training is None:
        if arguments.population is not None:
            raise InputError(
                "--population is of steps of training: give --training OPTIMISER"
            )
        return _plan(network, arguments, batch, tune).explain()
    options = (
        arguments.training, arguments.device, batch, tune, arguments.precision,
        sys.stderr.isatty(),
    )
    if arguments.population is not None:
        from clnet.cli.population import explanation as of_many

        return of_many(network, arguments.population, *options)
    from clnet.training.fit import explain as of_one

    return of_one(network, *options)


def tune(arguments: argparse.Namespace) -> int:
    """Measure all ways to run or train a network, for each batch size."""
    files = _times_files(arguments)
    if arguments.network is None:
        if not files:
            raise InputError("tune needs a network, --export FILE or --import FILE")
        if arguments.json:
            json_output.show({"plans": [], "files": files})
        return 0
    network = load(arguments.network, memory_limit=arguments.memory_limit)
    plans = []
    for batch in arguments.batch:
        text = _explanation(network, arguments, batch, True)
        if arguments.json:
            plans.append({"batch": batch, **explained(text)})
        else:
            print(text)
    if arguments.export is not None:
        files += _exported(arguments)
    if arguments.json:
        json_output.show({"plans": plans, "files": files})
    return 0


def _times_files(arguments: argparse.Namespace) -> list[str]:
    """Import the times of a file; export those of the store if nothing is measured."""
    if arguments.export is not None:  # a wrong name is told before minutes of work
        check_writable(as_path(arguments.export))
    files = []
    if arguments.given is not None:
        from clnet.opencl.times_file import import_times

        target, content = import_times(arguments.given)
        times = sum(map(len, content["times"].values()))
        files.append(str(target))
        if not arguments.json:
            print(
                f"imported {counted(times, 'time')} of {content['device']['name']} to "
                f"{target}"
            )
    if arguments.export is not None and arguments.network is None:
        files += _exported(arguments)
    return files


def _exported(arguments: argparse.Namespace) -> list[str]:
    """Export the store's times of a device."""
    from clnet.opencl.discovery import device
    from clnet.opencl.rate_probes import known
    from clnet.opencl.times_file import export_times

    where = known(device(arguments.device))
    times = export_times(where, arguments.export)
    if not arguments.json:
        print(f"wrote {arguments.export}: {counted(times, 'time')} of {where.name}")
    return [arguments.export]


def _is_network(path: str) -> bool:
    """Return whether a path is a network file; raise if its suffix is unknown."""
    suffixes = (*NETWORK_SUFFIXES, *DATA_SUFFIXES, *TABLE_SUFFIXES)
    return suffix_of(path, suffixes, "networks or data") in NETWORK_SUFFIXES


def _no_table(arguments: argparse.Namespace) -> None:
    for option in ("outputs", *TABLE_OPTIONS):
        if getattr(arguments, option, None) is not None:
            raise InputError(f"--{option} is for .csv files, not for networks")
