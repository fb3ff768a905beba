"""Layers of a network, of the records that a graph's outputs need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from clnet.errors import FormatError, InputError, quoted, reason
from clnet.formats.affine import NONE, Affine, spread
from clnet.formats.onnx.elementwise import activated
from clnet.formats.onnx.graph import ANY_BATCH, FLOATS, Graph, RefusalError, read_graph
from clnet.formats.onnx.operators import FOLDABLE, OPERATORS
from clnet.formats.onnx.recognise import (
    ABOVE,
    AT,
    BEYOND,
    FROM,
    STEPS,
    ActivationSum,
    recognised,
)
from clnet.formats.onnx.trace import GraphTrace, Refused
from clnet.formats.onnx.values import (
    Activated,
    Activations,
    Inputs,
    Linear,
    Record,
    Tracer,
    Triplets,
)
from clnet.formats.onnx.writer import NAMES
from clnet.nn.columns import Columns
from clnet.nn.layers import Dense, Layer, Sparse
from clnet.nn.storage.pattern import Pattern

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]
M = TypeVar("M", bound="Model")


@dataclass(frozen=True)
class Form:
    """Pre-activations: ``matrix @ argument + bias``."""

    argument: Affine
    matrix: Array | Triplets
    bias: Array


@np.errstate(all="ignore")  # infinity and NaN go through as in the graph
def read_network(path: Path, network_type: type[M], memory_limit: int | None) -> M:
    """Return the network of a file; see `clnet.formats.onnx.load`."""
    graph = read_graph(path, memory_limit)
    batch = graph.batch
    emission = _GraphLayers(graph, ANY_BATCH if batch is None else batch)
    if batch is None and emission.trace.counted:
        # The same with fewer samples: their number must not reach the results.
        other = _GraphLayers(graph, ANY_BATCH - 1)
        if not emission.equals(other):
            raise FormatError(
                f"{path}: the outputs depend on the number of samples, expected each "
                "sample alone"
            )
    network = network_type(emission.n_in, emission.layers, dtype=emission.dtype)
    network.set_layers(emission.arrays)
    _set_names(network, graph)
    return network


def _set_names(network: Model, graph: Graph) -> None:
    """Give a network the classes and columns that `writer` has put beside the graph."""
    for name, read in (("classes", lambda names: names),
                       ("columns", lambda names: Columns(**names))):
        text = graph.metadata.get(NAMES + name)
        if text is None:
            continue
        try:
            setattr(network, name, read(json.loads(text)))
        except (
            InputError, ValueError, TypeError, LookupError, RecursionError
        ) as error:
            raise FormatError(
                f"{graph.path} holds {name} not of its network: {reason(error)}"
            ) from None


class _GraphLayers:
    """The layers of a graph, with their weights and biases."""

    def __init__(self, graph: Graph, batch: int) -> None:
        self.graph = graph
        self.layers: list[Layer] = []
        self.arrays: list[tuple[Array, Array]] = []
        self.trace = GraphTrace(graph, batch)
        try:
            self.trace.run(OPERATORS, FOLDABLE)
            self._emit_all(self._outputs())
        except RefusalError as error:
            raise FormatError(f"{graph.path}: {error}") from None

    @property
    def n_in(self) -> int:
        """Inputs."""
        return self.trace.records.all[0].size

    def equals(self, other: _GraphLayers) -> bool:
        """Return whether layers and arrays are equal."""
        return self.layers == other.layers and all(
            np.array_equal(a, b, equal_nan=True)
            for pair, others in zip(self.arrays, other.arrays, strict=True)
            for a, b in zip(pair, others, strict=True)
        )

    def _outputs(self) -> Affine:
        """Return the rows of all outputs of floats, side by side."""
        outputs: list[Affine] = []
        skipped: Refused | None = None
        types = []
        for output in self.graph.outputs:
            tensor = self.trace.tensors.get(output.name)
            element_type = output.type.tensor_type.elem_type if output.type.HasField(
                "tensor_type") else TensorProto.FLOAT
            if isinstance(tensor, Refused) and element_type not in FLOATS:
                skipped = skipped or tensor
                continue
            if isinstance(tensor, Refused):
                raise RefusalError(tensor.reason)
            if not isinstance(tensor, Tracer):
                raise RefusalError(
                    f"output {quoted(output.name)} does not depend on the input")
            if tensor.whole or element_type not in FLOATS:
                skipped = skipped or Refused(
                    f"output {quoted(output.name)} is of whole numbers, expected "
                    "floats")
                continue
            types.append(FLOATS[element_type])
            try:
                rows, _, axis = self.trace.records.layout(tensor)
                if axis != 0 and len(rows):
                    raise RefusalError(
                        f"has the samples in dimension {axis}, expected the first")
                outputs.append(rows)
            except RefusalError as error:
                raise RefusalError(f"output {quoted(output.name)} {error}") from None
        if skipped is not None and not outputs:
            raise RefusalError(skipped.reason)
        self.dtype = max(types)
        rows = Affine.joined(outputs)
        if not len(rows) or (rows.atoms == NONE).all():
            raise RefusalError("the outputs do not depend on the input")
        return rows

    # --- the plan --------------------------------------------------------------------

    def _emit_all(self, outputs: Affine) -> None:
        """Emit the layers of all records that the outputs read, in order."""
        records = self.trace.records
        self._forms: dict[Record, Form] = {}  # of records that become layers
        self._aliases: dict[Record, Affine] = {}  # sums of activations in their place
        self._sums: set[Record] = set()  # such sums, which no other layer takes up
        self._numbers: dict[Record, int] = {records.all[0]: 0}  # of their layers
        record = records.owner(outputs)
        # The last layer is the outputs' record, if they are all its rows in order.
        if not (
            isinstance(record, Activated) and outputs.plain
            and np.array_equal(outputs.atoms, record.rows().atoms)
        ):
            self.trace.text = "the output"
            last = self._activation(outputs) or activated(
                self.trace, outputs, "identity")
            record = records.owner(last)
        assert record is not None
        for emitted in self._ordered(record):
            self._emit(emitted)

    def _activation(self, rows: Affine) -> Affine | None:
        """Return rows as one activation; None: they are no such."""
        for curve in self.trace.records.curves(rows)[1:]:
            fit = recognised(curve)
            if fit is None or len(fit.terms) != 1:
                continue
            (_, name, scale, shift), = fit.terms
            if name == "identity":  # the rows themselves
                continue
            if (name == "threshold" or name not in STEPS) and (
                fit == ActivationSum([(1.0, name, scale, shift)])):
                return activated(self.trace, curve.root.affine(scale, shift), name)
        return None

    def _ordered(self, last: Record) -> list[Record]:
        """Return the records that the last one needs, each after its arguments.

        Depth first by a stack of its own: graphs are deeper than Python's.
        """
        order: list[Record] = []
        done: set[Record] = set()
        stack: list[tuple[Record, bool]] = [(last, False)]
        while stack:
            record, ready = stack.pop()
            if ready:
                order.append(record)
                continue
            if record in done:
                continue
            done.add(record)
            stack.append((record, True))
            owners = np.unique(self.trace.records.owners(self._needs(record)))
            stack += [(self.trace.records.all[number], False)
                      for number in owners if number != NONE]
        return order

    def _needs(self, record: Record) -> Array:
        """Return the atoms that a record reads."""
        if isinstance(record, Inputs):
            return np.zeros(0, np.int64)
        fitted = None if isinstance(record, Activated) else self._recognised(record)
        if fitted is not None:
            self._aliases[record] = fitted
            return fitted.atoms
        if isinstance(record, Activated):
            self._forms[record] = self._form(record.argument)
        elif isinstance(record, Linear):
            self._forms[record] = Form(record.argument, record.matrix, record.bias)
        else:
            raise RefusalError(
                f"{record.node} is a function of one variable that is no sum of "
                "activations"
            )
        return self._forms[record].argument.atoms

    def _recognised(self, record: Record) -> Affine | None:
        """Return a record as a sum of activations of one of its arguments, or None."""
        if record in self._aliases or not record.curves:
            return self._aliases.get(record)
        self.trace.text = record.node
        fits = [(fit, curve) for curve in record.curves
                if (fit := recognised(curve)) is not None]
        fits.sort(key=lambda pair: pair[0].constants(pair[1].root.bias))
        for fit, curve in fits:
            parts = [self._term(curve.root, term) for term in fit.terms]
            if fit.slope or not parts:
                parts.append(curve.root.affine(fit.slope))
            if len(parts) > 1 and isinstance(record, Linear):
                return None  # the sum is as short as it is
            rows = parts[0] if len(parts) == 1 else self._summed(parts)
            rows = rows.affine(1.0, fit.bias)
            steps = any(name in STEPS for _, name, _, _ in fit.terms)
            return self._exact(rows) if steps and fit.bias else rows
        return None

    def _term(self, root: Affine, term: tuple[float, str, float, float]) -> Affine:
        """Return a term of a fit.

        What is beyond an edge is from the next number on. A step that is 0 at NaN is
        not the opposite step, which is 1 there.
        """
        factor, name, scale, shift = term
        if name == AT:
            v = root.affine(scale, shift)
            if not isinstance(self.trace.records.owner(root), Inputs) or (
                (v.bias.astype(self.dtype) != v.bias).any()
                or (np.frexp(v.scale)[0] % 0.5).any()
            ):
                raise RefusalError(
                    f"{self.trace.text} compares for equality what is not an input: "
                    "rounding decides")
            parts = [self._term(root, (sign, step, scale, shift))
                     for sign, step in ((1.0, "threshold"), (-1.0, BEYOND))]
            return self._summed(parts).affine(factor)
        if name in (FROM, ABOVE):
            opposite = BEYOND if name == FROM else "threshold"
            step = self._term(root, (-1.0, opposite, -scale, -shift))
            step = activated(self.trace, step.affine(1.0, 0.5), "threshold")
            return step.affine(factor)
        rows = root.affine(scale, shift)
        if name == BEYOND:
            bias = rows.bias.astype(self.dtype)
            below = np.nextafter(bias, -np.inf, dtype=bias.dtype)
            below[bias == 0] = -np.finfo(bias.dtype).tiny  # less may be flushed to zero
            rows = Affine(rows.atoms, rows.scale, below.astype(float))
            name = "threshold"
        return activated(self.trace, rows, name).affine(factor)

    def _exact(self, rows: Affine) -> Affine:
        """Return rows as a layer of their own, whose factors are not multiplied."""
        numbers = np.arange(len(rows))
        factors = Triplets(numbers, numbers, rows.scale)
        exact = self.trace.linear(Affine.of(rows.atoms), factors, rows.bias)
        record = self.trace.records.owner(exact)
        assert record is not None
        self._sums.add(record)
        return exact

    def _summed(self, parts: Sequence[Affine]) -> Affine:
        rows = self.trace.sum_rows(parts)
        record = self.trace.records.owner(rows)
        if isinstance(record, Linear):
            record.curves = []  # it is recognised already
            self._sums.add(record)
        return rows

    def _form(self, rows: Affine) -> Form:
        """Return rows as pre-activations; a linear record that they read is folded.

        Sums of activations are not: their factors were found to keep their digits.
        """
        record = self.trace.records.owner(rows)
        if isinstance(record, Linear) and record not in self._sums and (
            self._recognised(record) is None
        ):
            picked = rows.atoms - record.first
            plain = len(picked) == record.size and (
                picked == np.arange(record.size)).all()
            bias = record.bias[picked] * rows.scale + rows.bias
            if isinstance(record.matrix, Triplets):
                if plain:
                    entries = record.matrix
                    values = entries.values * rows.scale[entries.rows]
                    return Form(record.argument,
                                Triplets(entries.rows, entries.columns, values), bias)
            else:
                matrix = record.matrix if plain else record.matrix[picked]
                if (rows.scale != 1).any():
                    matrix = matrix * rows.scale[:, None]
                return Form(record.argument, matrix, bias)
        live = np.flatnonzero((rows.atoms != NONE) & (rows.scale != 0))
        unique, columns = np.unique(rows.atoms[live], return_inverse=True)
        factors = Triplets(live, columns, rows.scale[live])
        return Form(Affine.of(unique), factors, rows.bias)

    # --- layers ----------------------------------------------------------------------

    def _emit(self, record: Record) -> None:
        """Append the layer of a record."""
        if record in self._aliases or isinstance(record, Inputs):
            return
        name = record.activation if isinstance(record, Activated) else "identity"
        layer, weights, biases = self._layer(self._forms.pop(record), name)
        self.layers.append(layer)
        self.arrays.append((weights, biases))
        self._numbers[record] = len(self.layers)

    def _layer(self, form: Form, name: Activations) -> tuple[Layer, Array, Array]:
        """Return a layer with its weights and biases."""
        read, columns, scale, shift = self._located(form.argument)
        sources = None if read == (len(self.layers),) else read
        widths = {number: self._width(number) for number in read}
        n_in, n_out = sum(widths.values()), len(form.bias)
        live = columns != NONE
        straight = len(columns) == n_in and (columns == np.arange(n_in)).all()
        plain = straight and (scale == 1).all() and (shift == 0).all()
        if isinstance(form.matrix, Triplets):
            rows, at, values = (form.matrix.rows, form.matrix.columns,
                                    form.matrix.values)
            bias = form.bias.astype(np.float64, copy=True)
            np.add.at(bias, rows, values * shift[at])
            keep = live[at]
            flat, inverse = np.unique(
                rows[keep] * n_in + columns[at[keep]], return_inverse=True)
            total = np.zeros(len(flat))
            np.add.at(total, inverse, (values * scale[at])[keep])
            return self._sparse(name, sources, n_in, n_out, flat, total, bias)
        matrix, bias = form.matrix, form.bias
        if not plain:
            matrix = np.asarray(matrix, np.float64)
            if shift.any():
                bias = bias + matrix @ shift
            self.trace.graph.room.take(n_out * n_in * 16)
            dense = spread(matrix[:, live], columns[live], scale[live], n_in)
            used = np.unique(columns[live])
            if len(used) < n_in:
                flat = (np.arange(n_out)[:, None] * n_in + used).ravel()
                return self._sparse(name, sources, n_in, n_out, flat,
                                    dense[:, used].ravel(), bias)
            matrix = dense
        return Dense(n_out, name, sources=sources), matrix, bias

    def _sparse(
        self, name: Activations, sources: tuple[int, ...] | None, n_in: int, n_out: int,
        flat: Array, values: Array, bias: Array,
    ) -> tuple[Layer, Array, Array]:
        """Return a layer of entries, flat = row * n_in + column in rising order."""
        if not len(flat):
            raise RefusalError("the outputs do not depend on the input")
        rows, columns = np.divmod(flat, n_in)
        if len(flat) == n_in * n_out:
            return (Dense(n_out, name, sources=sources), values.reshape(n_out, n_in),
                    bias)
        pattern = Pattern(n_out, n_in, rows, columns)
        return Sparse(n_out, name, pattern=pattern, sources=sources), values, bias

    def _width(self, number: int) -> int:
        return self.layers[number - 1].n_out if number else self.n_in

    def _located(self, rows: Affine) -> tuple[tuple[int, ...], Array, Array, Array]:
        """Return the layers that rows read, and their columns, factors and constants.

        Columns count through all sources side by side; `NONE`: a constant.
        """
        records = self.trace.records
        atoms, scale, shift = rows.atoms, rows.scale, rows.bias
        for _ in range(len(self._aliases) + 1):
            owners = records.owners(atoms)
            replaced = [number for number in np.unique(owners)
                        if number != NONE and records.all[number] in self._aliases]
            if not replaced:
                break
            atoms, scale, shift = atoms.copy(), scale.copy(), shift.copy()
            for number in replaced:
                record = records.all[number]
                alias, at = self._aliases[record], np.flatnonzero(owners == number)
                row = atoms[at] - record.first
                shift[at] += scale[at] * alias.bias[row]
                scale[at] *= alias.scale[row]
                atoms[at] = alias.atoms[row]
        layer_of = {
            number: self._numbers[records.all[number]]
            for number in np.unique(owners).tolist() if number != NONE
        }
        if not layer_of:
            raise RefusalError("the outputs do not depend on the input")
        sources = tuple(sorted(set(layer_of.values())))
        columns = np.full(len(atoms), NONE)
        for number, layer in layer_of.items():
            first = sum(self._width(source) for source in sources if source < layer)
            own_atoms = owners == number
            columns[own_atoms] = atoms[own_atoms] - records.all[number].first + first
        return sources, columns, scale, shift
