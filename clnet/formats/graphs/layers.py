"""Layers of a network, of the records that a graph's outputs need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clnet.formats.graphs.affine import NONE, Affine, spread
from clnet.formats.graphs.elementwise import activated
from clnet.formats.graphs.recognise import (
    ABOVE,
    AT,
    BEYOND,
    FROM,
    STEPS,
    ActivationSum,
    recognised,
)
from clnet.formats.graphs.values import (
    Activated,
    Activations,
    Inputs,
    Linear,
    Record,
    RefusalError,
    Triplets,
)
from clnet.nn.layers import Dense, Sparse
from clnet.nn.storage.pattern import Pattern

if TYPE_CHECKING:
    from clnet.formats.graphs.trace import GraphTrace
    from clnet.nn.model import Model

Array = NDArray[Any]
M = TypeVar("M", bound="Model")

ANY_BATCH = 3  # samples that a graph of any number of samples is followed with


def network_of(
    graph_layers: Callable[[int], GraphLayers], batch: int | None, network_type: type[M]
) -> M:
    """Return the network of a graph's layers, for so many samples or, None, any.

    A graph that reads the number of samples is followed with fewer too: their number
    must not reach the results.
    """
    layers = graph_layers(ANY_BATCH if batch is None else batch)
    if batch is None and layers.trace.counted and (
        not layers.equals(graph_layers(ANY_BATCH - 1))
    ):
        raise RefusalError(
            "the outputs depend on the number of samples, expected each sample alone"
        )
    network = network_type(layers.n_in, layers.layers, seed=0, dtype=layers.dtype)
    network.set_layers(layers.arrays)
    return network


@dataclass(frozen=True)
class Form:
    """Pre-activations: ``matrix @ argument + bias``."""

    argument: Affine
    matrix: Array | Triplets
    bias: Array
    biased: bool  # Whether the layer has a bias, though it is zero


class GraphLayers:
    """The layers of a graph's outputs, with their weights and biases."""

    def __init__(self, trace: GraphTrace, outputs: Affine, dtype: str) -> None:
        if not len(outputs) or (outputs.atoms == NONE).all():
            raise RefusalError("the outputs do not depend on the input")
        self.trace = trace
        self.dtype = dtype
        self.layers: list[Dense | Sparse] = []
        self.arrays: list[tuple[Array, Array | None]] = []
        self._emit_all(outputs)

    @property
    def n_in(self) -> int:
        """Inputs."""
        return self.trace.records.all[0].size

    def equals(self, other: GraphLayers) -> bool:
        """Return whether layers and arrays are equal."""
        return self.layers == other.layers and all(
            (a is None or b is None) or np.array_equal(a, b, equal_nan=True)
            for pair, others in zip(self.arrays, other.arrays, strict=True)
            for a, b in zip(pair, others, strict=True)  # layers tell whose bias is None
        )

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
            isinstance(record, Activated) and _is_whole(outputs, record)
            and not record.dropout
        ):
            self.trace.text = "the output"
            last = self._activation(outputs) or activated(
                self.trace, outputs, "identity")
            record = records.owner(last)
        assert record is not None
        order = self._ordered(record)
        self._readers = Counter(
            records.all[number] for form in self._forms.values()
            for number in np.unique(records.owners(self._resolved(form.argument).atoms))
            if number != NONE
        )
        for emitted in order:
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
            self._forms[record] = Form(
                record.argument, record.matrix, record.bias, record.biased)
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
                    factors = Triplets(entries.rows, entries.columns, values)
                    return Form(record.argument, factors, bias, record.biased)
            else:
                matrix = record.matrix if plain else record.matrix[picked]
                if (rows.scale != 1).any():
                    matrix = matrix * rows.scale[:, None]
                return Form(record.argument, matrix, bias, record.biased)
        live = np.flatnonzero((rows.atoms != NONE) & (rows.scale != 0))
        unique, columns = np.unique(rows.atoms[live], return_inverse=True)
        factors = Triplets(live, columns, rows.scale[live])
        return Form(Affine.of(unique), factors, rows.bias, False)

    # --- layers ----------------------------------------------------------------------

    def _emit(self, record: Record) -> None:
        """Append the layer of a record."""
        if record in self._aliases or isinstance(record, Inputs):
            return
        form = self._forms.pop(record)
        activation: Activations = "identity"
        dropout = 0.0
        if isinstance(record, Activated):
            activation, dropout = record.activation, record.dropout
            if dropout and self._drops_last(record):
                self._numbers[record] = len(self.layers)
                return
        sources, pattern, weights, bias = self._weights(form)
        biased = form.biased or self.trace.biased or bool(bias.any())
        options: dict[str, Any] = {
            "activation": activation, "bias": biased, "dropout": dropout,
            "sources": None if sources == (len(self.layers),) else sources,
        }
        self.layers.append(
            Dense(len(bias), **options) if pattern is None else
            Sparse(len(bias), pattern=pattern, **options))
        self.arrays.append((weights, bias if biased else None))
        self._numbers[record] = len(self.layers)

    def _drops_last(self, record: Activated) -> bool:
        """Give a dropout to the last layer, if that is its argument and of it alone."""
        argument = self._resolved(record.argument)
        before = self.trace.records.owner(argument)
        if not (
            isinstance(before, Activated) and not before.dropout
            and _is_whole(argument, before) and self._readers[before] == 1
            and self._numbers[before] == len(self.layers)
        ):
            return False
        self.layers[-1] = replace(self.layers[-1], dropout=record.dropout)
        return True

    def _weights(
        self, form: Form
    ) -> tuple[tuple[int, ...], Pattern | None, Array, Array]:
        """Return a layer's sources and weights; a pattern of them unless all live."""
        sources, columns, scale, shift = self._located(form.argument)
        n_in, n_out = sum(map(self._width, sources)), len(form.bias)
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
            return sources, *_patterned(n_in, n_out, flat, total), bias
        matrix, bias = form.matrix, form.bias
        if not plain:
            matrix = np.asarray(matrix, np.float64)
            if shift.any():
                bias = bias + matrix @ shift
            self.trace.room.take(n_out * n_in * 16)
            dense = spread(matrix[:, live], columns[live], scale[live], n_in)
            used = np.unique(columns[live])
            if len(used) < n_in:
                flat = (np.arange(n_out)[:, None] * n_in + used).ravel()
                values = dense[:, used].ravel()
                return sources, *_patterned(n_in, n_out, flat, values), bias
            matrix = dense
        return sources, None, matrix, bias

    def _width(self, number: int) -> int:
        return self.layers[number - 1].n_out if number else self.n_in

    def _resolved(self, rows: Affine) -> Affine:
        """Return rows without the records in whose place sums of activations stand."""
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
        return Affine(atoms, scale, shift)

    def _located(self, rows: Affine) -> tuple[tuple[int, ...], Array, Array, Array]:
        """Return the layers that rows read, and their columns, factors and constants.

        Columns count through all sources side by side; `NONE`: a constant.
        """
        records = self.trace.records
        resolved = self._resolved(rows)
        atoms, owners = resolved.atoms, records.owners(resolved.atoms)
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
            of_layer = owners == number
            columns[of_layer] = atoms[of_layer] - records.all[number].first + first
        return sources, columns, resolved.scale, resolved.bias


def _patterned(
    n_in: int, n_out: int, flat: Array, values: Array
) -> tuple[Pattern | None, Array]:
    """Return a matrix of entries, flat = row * n_in + column in rising order."""
    if not len(flat):
        raise RefusalError("the outputs do not depend on the input")
    if len(flat) == n_in * n_out:
        return None, values.reshape(n_out, n_in)
    return Pattern(n_out, n_in, *np.divmod(flat, n_in)), values


def _is_whole(rows: Affine, record: Record) -> bool:
    """Return whether rows are all of a record's, in order and as they are."""
    return rows.plain and np.array_equal(rows.atoms, record.rows().atoms)
