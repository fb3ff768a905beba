"""What kernels assume of their tables: they read and write wherever these say.

The comment beside each argument in ``kernels/`` says the same.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from storages import Contents

from clnet.ir.op import VALUE_ALIGNMENT
from clnet.nn.storage.dense import RowStorage
from clnet.opencl.launch import Constant
from clnet.opencl.program import WARP, warp_team
from clnet.variants.dense.persistent import (
    BLOCK,
    MOST_SLICES,
    SPLIT_BLOCK_BYTES,
    TASK_RECORD,
)
from clnet.variants.mixed import fused_sparse
from clnet.variants.mixed.fused_sparse import (
    PRODUCT,
    TASK,
    VECTOR,
    Lists,
    functions_of,
    is_dense,
    layers_of,
    longest_row,
    outputs_of,
    padded_inputs,
    room_of,
    words_of,
)


class Range(NamedTuple):
    """Numbers, one per record, with the least and the most that a kernel assumes."""

    numbers: Any
    least: Any
    most: Any


def fault_of_records(values, record, ranges):
    """The first number out of its range, and where, or None."""
    records = np.ascontiguousarray(values).reshape(-1).view(record)
    fields = {name: records[name].astype(np.int64) for name in record.names}
    for name, found in ranges(fields).items():
        numbers, least, most = np.broadcast_arrays(*found)
        wrong = (numbers < least) | (numbers > most)
        if wrong.any():
            at = int(np.argmax(wrong))
            return (
                f"{name} of record {at}: {numbers[at]}, expected {least[at]} to "
                f"{most[at]}"
            )
    return None


def fault(table, values, launch, span):
    """The fault of a table of indices, or None; of numbers, None."""
    if values.dtype.kind == "f":
        return None
    tables = {a.name: a for a in launch.arguments if isinstance(a, Constant)}
    name = table.name.rpartition(" ")[2]
    if table.name.startswith("persistent_mixed"):
        if ", tasks of " in table.name:
            tasks = table.make.__self__
            return fault_of_records(
                values, TASK, lambda fields: task_ranges(tasks, fields)
            )
        return list_contents(table.make.args[0], name).fault(values)
    if launch.kernel == "persistent_mma":
        schedule = table.make.args[0]
        return fault_of_records(
            values, TASK_RECORD, lambda fields: schedule_ranges(schedule, fields)
        )
    if table.name.startswith("fused_sparse"):
        if name == "products":
            starts = next(t for t in tables.values() if t.name.endswith(" starts"))
            return fault_of_records(values, PRODUCT, lambda fields: product_ranges(
                fields, span, starts.make(), launch.defines["SLOTS"]
            ))
        return fused_contents(span, name, values).fault(values)
    if name == "codes":
        functions = [
            set(op.nonlinearity.names) for op in span.ops
            if hasattr(op, "nonlinearity")
        ]
        return Contents(values.size, max(map(len, functions)) - 1).fault(values)
    if table.name.startswith("live elements"):
        return Contents(values.size, 1).fault(values)
    if table.name.startswith("offsets of local layers"):
        return Contents(values.size, parameters_end(span) - 1).fault(values)
    return storage_contents(table.name, span, values).fault(values)


def parameters_end(span):
    """The end of its layers' weights and biases in the flat buffer."""
    slots = (slot for op in span.ops for slot in op.parameter_slots)
    return max(slot.offset + slot.size for slot in slots)


def storage_contents(name, span, values):
    """What kernels assume of the table of one sparse matrix, by the table's name."""
    offset = int(re.search(r"(?:@|^dia )(\d+)", name)[1])
    storage = next(
        op.storage for op in span.ops
        if hasattr(op, "storage") and op.weights.offset == offset
    )
    n_out, n_in = storage.n_out, storage.n_in
    rows, columns = (n_in, n_out) if " transposed " in name else (n_out, n_in)
    what, generic = name.rpartition(" ")[2], not name.startswith(("rows ", "entries "))
    if name.startswith("dia "):
        return Contents(values.size, n_in - 1, 1 - n_out, order="ascending")
    entries = storage.count if generic else len(storage.pattern)
    if ", " in name:  # of slices
        return {
            "slices": Contents(values.size, storage.size, order="sorted"),
            "lengths": Contents(values.size, storage.pattern.longest),
            "order": Contents(
                values.size, rows - 1, order="distinct", padding=values.size - rows
            ),
            "columns": Contents(storage.size, columns - 1),
        }[what]
    if " segments " in name:
        stages = int(name.split()[-2])
        return Contents.starts(rows * stages, entries)
    if " bounds " in name:
        return Contents.starts(values.size - 1, rows)
    if what == "starts":
        if " by columns " in name:
            rows = n_in
        return Contents.starts(rows, entries if not generic else int(values[-1]))
    padding = -entries % 4 if name.startswith("rows ") else 0
    size = values.size if generic else entries + padding
    limit = {"slots": storage.size, "rows": n_out, "columns": columns}[what]
    order = "distinct" if what == "slots" else "any"
    return Contents(size, limit - 1, order=order, padding=padding)


def list_contents(lists: Lists, name: str) -> Contents:
    """What ``persistent_mixed.cl`` assumes of a list."""
    size = VECTOR * lists.vectors
    if name == "starts":
        return Contents.starts(sum(outputs_of(x) + 1 for x in lists.layers) - 1,
                               lists.vectors)
    if name == "sources":
        slots = [a.weights for layer in lists.layers for a in layer.applies]
        most = max(slot.offset + slot.size for slot in slots) - 1
        return Contents(size, most, least=-1)
    return Contents(size, VECTOR + lists.room - 1)


def fused_contents(span, name, values):
    """What ``fused_sparse.cl`` assumes of the entries of its matrices."""
    listed = [
        a for layer in layers_of(span) for a in layer.applies
        if not isinstance(a.storage, RowStorage)
    ]
    entries = sum(a.storage.count for a in listed)
    ends = [a.weights.offset + a.weights.size for a in listed]
    return {
        "starts": Contents.starts(values.size - 1, entries),
        "slots": Contents(entries, max(ends, default=1) - 1, order="distinct"),
        "columns": Contents(entries, fused_sparse._offsets(span).total - 1),
    }[name]


def product_ranges(product, span, starts, with_slots):
    """What ``fused_sparse.cl`` assumes of products."""
    layers, offsets = layers_of(span), fused_sparse._offsets(span)
    functions = len({layer.act.nonlinearity for layer in layers})
    n_in, n_out, dense = product["n_in"], product["n_out"], product["stride"] > 0
    size, widths = parameters_end(span), [x.act.y.width for x in layers]
    last = np.arange(len(n_in)) + 1 == len(n_in)
    rows = np.where(dense, 0, product["starts"])
    rows_end = rows + np.where(dense, 0, n_out)
    first, end = (
        np.append(starts, 0)[np.clip(at, 0, len(starts))] for at in (rows, rows_end)
    )
    bias = product["bias"]
    weights = np.where(dense | (not with_slots), product["weights"], -first)
    return {
        "n_in": Range(n_in, 0, offsets.total),
        "n_out": Range(n_out, 0, max(widths)),
        "stride": Range(product["stride"], 0, size),
        "inputs of a dense row": Range(np.where(dense, n_in, 0), 0, product["stride"]),
        "starts": Range(product["starts"], 0, len(starts)),
        "end of the starts": Range(rows_end, 0, max(0, len(starts) - 1)),
        "weights": Range(product["weights"], -size, size),
        "first weight": Range(weights + np.where(dense, 0, first), 0, size),
        "end of the weights": Range(
            weights + np.where(dense, n_out * product["stride"], end), 0, size
        ),
        "source": Range(product["source"], 0, offsets.total),
        "end of the inputs": Range(
            np.where(dense, product["source"] + n_in, 0), 0, offsets.total
        ),
        "target": Range(product["target"], 0, offsets.total),
        "end of the outputs": Range(
            np.where(last & (product["adds"] == 0), 0, product["target"] + n_out), 0,
            offsets.total,
        ),
        "outputs of the last": Range(
            np.where(last, n_out, 0), 0, span.outputs[0].width
        ),
        "adds": Range(product["adds"], 0, 1),
        "function": Range(product["function"], -1, functions - 1),
        "bias_step": Range(product["bias_step"], 0, 1),
        "bias": Range(bias, -1, size - 1),
        "last bias": Range(
            np.where(bias < 0, bias, bias + (n_out - 1) * product["bias_step"]), -1,
            size - 1,
        ),
    }


def task_ranges(tasks, task):
    """What ``persistent_mixed.cl`` assumes of tasks."""
    layers, y = layers_of(tasks.span), tasks.span.outputs[0]
    starts = sum(outputs_of(x) + 1 for x in layers if not is_dense(x))
    words, parameters = sum(words_of(tasks.span)), parameters_end(tasks.span)
    room = room_of(tasks.span, tasks.config, tasks.device) // VECTOR
    inputs = padded_inputs(layers[0])
    dense, first = task["is_list"] == 0, task["position"] == 0
    rows, vectors, pads = task["rows"], task["vectors"], task["pads"]
    number = np.arange(len(rows)) % tasks.most
    step = tasks.config["depth"] << np.clip(task["shift"], 0, WARP)
    read = task["words"] + VECTOR * task["inputs"]
    last_bias = task["bias"] + np.maximum(rows - 1, 0) * task["bias_step"]
    return {
        "is_list": Range(task["is_list"], 0, 1),
        "shift": Range(task["shift"], 0, warp_team(tasks.device).bit_length() - 1),
        "position": Range(task["position"], 0, 2),
        "bias_step": Range(task["bias_step"], 0, 1),
        "function": Range(task["function"], 0, len(functions_of(tasks.span)) - 1),
        "rows": Range(rows, 0, np.where(
            number < len(layers), max(map(outputs_of, layers)), 0
        )),
        "padded": Range(task["padded"], 0, room),
        "inputs": Range(task["inputs"], 0, task["padded"]),
        "words": Range(task["words"], 0, words + inputs),
        "words, modulo a vector": Range(
            np.where(first, 0, task["words"] % VECTOR), 0, 0
        ),
        "end of the words": Range(read, 0, np.where(first, inputs, words)),
        "vectors": Range(vectors, 0, max(map(longest_row, layers))),
        "vectors of a dense row, in whole steps": Range(
            np.where(dense, -(-vectors // step) * step, 0), 0, task["padded"]
        ),
        "weights": Range(task["weights"], 0, parameters),
        "end of the weights": Range(
            task["weights"] + rows * np.where(dense, vectors, 1), 0,
            np.where(dense, parameters // VECTOR, starts - 1),
        ),
        "outputs": Range(task["outputs"], 0, words + y.width),
        "pads": Range(pads, 0, VALUE_ALIGNMENT),
        "end of the outputs": Range(
            task["outputs"] + rows + pads, 0,
            np.where(task["position"] == 2, y.width, words),
        ),
        "bias": Range(task["bias"], -1, parameters - 1),
        "last bias": Range(last_bias, -1, parameters - 1),
    }


def schedule_ranges(schedule, task):
    """What ``persistent_mma.cl`` assumes of tasks."""
    rows, columns, tiles = (
        schedule.config["rows"], schedule.config["columns"], schedule.tiles
    )
    fragments, parameters = schedule.fragments[-1], parameters_end(schedule.span)
    sums = fragments + schedule.exchanged[-1]
    size, scales_size = schedule.packed_bytes
    blocks, shared = size // SPLIT_BLOCK_BYTES, task["slices"] > 1
    widest = max(packing.blocks for packing in schedule.packings)
    tallest = max(packing.row_blocks for packing in schedule.packings)
    end = task["first"] + task["blocks"]  # of its inputs
    published = np.minimum(task["rows"], task["next"] - task["neuron"] // BLOCK)
    past_rows = np.maximum(task["rows"] - 1, 0) * task["stride"]
    return {
        "blocks": Range(task["blocks"], 0, widest),
        "first": Range(task["first"], 0, widest),
        "rows": Range(task["rows"], 0, rows),
        "reduces": Range(task["reduces"], 0, (1 << rows * columns) - 1),
        "slices": Range(task["slices"], 0, MOST_SLICES),
        "slice": Range(task["slice"], 0, np.maximum(task["slices"] - 1, 0)),
        "scaled": Range(task["scaled"], 0, 1),
        "out_scaled": Range(task["out_scaled"], 0, 1),
        "function": Range(task["function"], 0, len(schedule.functions) - 1),
        "column": Range(task["column"], 0, tiles - columns),
        "stride": Range(task["stride"], 0, widest),
        "weights": Range(task["weights"], 0, blocks),
        "end of the weights": Range(
            task["weights"] + past_rows + task["blocks"], 0, blocks
        ),
        "values": Range(task["values"], -1, fragments),
        "end of the inputs": Range(
            np.where(
                (task["values"] < 0) | (task["blocks"] == 0), 0,
                task["values"] + (end - 1) * tiles + columns,
            ),
            0, fragments,
        ),
        "sums": Range(task["sums"], np.where(shared, fragments, 0), sums),
        "end of the sums": Range(
            task["sums"] + np.where(
                shared, task["rows"] * columns * task["slices"], 0
            ),
            0, sums,
        ),
        "next": Range(task["next"], 0, widest),
        "neuron": Range(task["neuron"], 0, BLOCK * tallest),
        "out": Range(task["out"], 0, fragments),
        "end of the outputs": Range(
            np.where(
                published > 0, task["out"] + (published - 1) * tiles + columns, 0
            ),
            0, fragments,
        ),
        "n_out": Range(task["n_out"], 0, np.where(
            task["next"] > 0, BLOCK * tallest, schedule.span.outputs[0].width
        )),
        "inverse": Range(task["inverse"], 0, scales_size // 4),
        "end of the scales": Range(
            task["inverse"] + task["n_out"], 0, scales_size // 4
        ),
        "bias": Range(task["bias"], -1, parameters),
        "end of the biases": Range(
            np.where(task["bias"] < 0, 0, task["bias"] + task["n_out"]), 0,
            parameters,
        ),
    }
