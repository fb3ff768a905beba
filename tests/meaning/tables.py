"""Random tables, as people have them, beside pandas and scikit-learn's pipeline.

A case draws two frames and writes them in some forms: a frame of another library, a
text file of some separator, decimal sign and encoding, a Parquet or Arrow file. The
columns that reach the network have to be those of scikit-learn: `SimpleImputer` with an
indicator, `OneHotEncoder` that ignores unknown categories, `StandardScaler`; for the
training and for another table with other gaps, categories and an order of its own.
"""

from __future__ import annotations

import csv
import gzip
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from clnet import FormatError, Network, Scaling, load, load_table, open_data

WORDS = (
    "red", "blue", "größe", "a b", "x,y", 'quo"te', "p;q", "NA", "nan", "inf", "7",
    "1,5", "007", "None", "Ünïcode", "true-ish", "-", "it's", "tab\tbed", "line\nfeed",
)
NAMES = (
    "a", "b", "size", "Größe", "Preis in €", "x 1", "2019", "t1", "id", "Unnamed",
    "with,comma", 'with"quote', "_", "Index", "none", "mean", "A",
)
FRAMES = (
    "pandas", "objects", "nullable", "pandas of pyarrow", "polars", "lazy", "pyarrow",
    "batch", "dict", "dicts",
)
FILES = (
    "csv", "csv", "csv", "csv", "polars csv", "parquet", "polars parquet", "feather",
)
QUOTING = (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC)
GAPS = ("", "NA", "NaN", "nan", "null", "N/A", "?", "None")
FORMS = 5  # of a pair of tables
DAY = pd.Timedelta(days=1)
ULP = 1e-9  # of means, which are summed in another order


def case(seed: int) -> Counter[str]:
    """Judge one table; see `tests.meaning.runner`."""
    rng = Random(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _Case(rng, Path(folder))
        for _ in range(FORMS):
            found.judge()
        return found.counts


class _Case:
    def __init__(self, rng: Random, folder: Path) -> None:
        self.rng, self.folder = rng, folder
        self.counts: Counter[str] = Counter()
        self.numbered = rng.random() < 0.1  # a header 0, 1, 2
        self.bare = not self.numbered and rng.random() < 0.1
        self.forms = ("csv",) if self.numbered or self.bare else (*FILES, *FRAMES)
        count = rng.randint(1, 6)
        names = [str(at) for at in range(count + 1)] if self.numbered else (
            rng.sample(NAMES, count + 1)
        )
        if self.bare:
            names = [str(at + 1) for at in range(count + 1)]
        self.target, *self.names = rng.sample(names, len(names)) if not (
            self.numbered or self.bare
        ) else (names[-1], *names[:-1])
        self.kinds = {name: self._kind() for name in self.names}
        if self.bare:  # a first line without a number is a header
            self.kinds[self.names[0]] = "float"
        self.kinds[self.target] = rng.choice(("float", "text"))
        rows = rng.randint(2, 25)
        self.words = {name: rng.sample(WORDS, rng.randint(1, 5)) for name in names}
        self.training = self._frame(rows, first=True)
        self.other = self._frame(rng.randint(1, 9), first=False)
        self.categories = [
            name for name in self.names if self.kinds[name] == "coded"
        ]
        self.imputer, self.encoder = self._fitted()

    # --- the tables ------------------------------------------------------------------

    def _kind(self) -> str:
        return self.rng.choice((
            "float", "float", "int", "int", "constant", "text", "text", "bool", "coded",
            "short", "large", "date", "wide", "tiny",
        ))

    def _frame(self, rows: int, first: bool) -> pd.DataFrame:
        return pd.DataFrame({
            name: self._column(name, rows, first)
            for name in (*self.names, self.target)
        })

    def _column(self, name: str, rows: int, first: bool) -> pd.Series:
        rng, kind = self.rng, self.kinds[name]
        if kind == "text":
            words = list(self.words[name])
            if self.bare:  # the first line must not be like names above numbers
                words = [word for word in words if word.isalpha()] or ["red"]
            if not first and rng.random() < 0.3:
                words.append("unseen")
            values: list[Any] = [rng.choice(words) for _ in range(rows)]
            if first:  # a column of text, and not of numbers as text
                values[rng.randrange(rows)] = "word"
            series = pd.Series(values, dtype=object)
        elif kind == "bool":
            series = pd.Series([rng.random() < 0.5 for _ in range(rows)], dtype=bool)
        elif kind in ("int", "coded"):
            width = 3 if kind == "coded" else rng.choice((2, 10, 10**6))
            series = pd.Series([rng.randint(-width, width) for _ in range(rows)])
        elif kind == "date":
            series = pd.Series([
                pd.Timestamp(1970, 1, 1) + rng.randint(-9999, 20000) * DAY
                + rng.choice((0, 0.5)) * DAY for _ in range(rows)
            ])
        elif kind == "wide":
            series = pd.Series([rng.randint(-(2**62), 2**62) for _ in range(rows)])
        elif kind == "tiny":
            series = pd.Series([rng.gauss(0, 1) * 1e-300 for _ in range(rows)])
        elif kind == "constant":
            series = pd.Series([rng.choice((14.62, 3.0, -1e-3))] * rows)
        else:
            scale = {"short": 1, "float": 10 ** rng.uniform(-4, 5), "large": 1e9}[kind]
            digits = {"short": 3, "large": 1}.get(kind, 17)
            series = pd.Series([
                round(rng.gauss(0, scale), digits) for _ in range(rows)
            ], dtype=float)
        plain = (self.target, self.names[0]) if self.bare else (self.target,)
        gaps = name not in plain and rng.random() < 0.35
        if gaps and (rows > 1 or not first):
            lost = [rng.random() < 0.3 for _ in range(rows)]
            if first:
                lost[rng.randrange(rows)] = False
            if any(lost):
                known = [at for at in range(rows) if not lost[at]]
                if kind == "text" and first and "word" not in (
                    series[known].tolist()
                ):
                    series[known[0]] = "word"
                if kind == "date":
                    return series.where(~np.array(lost))
                series = series.astype(object).where(~np.array(lost), None)
                if kind not in ("text", "bool"):
                    series = series.astype(float)
        return series

    # --- what scikit-learn makes of them ---------------------------------------------

    def _fitted(self) -> tuple[SimpleImputer | None, OneHotEncoder | None]:
        """Return scikit-learn's parts, fitted to the training."""
        numbers, texts = self._numbers(self.training), self._texts(self.training)
        imputer, encoder = SimpleImputer(add_indicator=True), OneHotEncoder(
            handle_unknown="ignore", sparse_output=False
        )
        return (
            imputer.fit(numbers) if numbers.size else None,
            encoder.fit(texts) if texts.size else None,
        )

    def _of(self, categories: bool) -> list[str]:
        return [
            name for name in self.names
            if (self.kinds[name] in ("text", "bool", "coded")) == categories
        ]

    def _numbers(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the columns of numbers, dates in days."""
        return np.array([
            (frame[name] - pd.Timestamp(1970, 1, 1)) / DAY
            if self.kinds[name] == "date" else frame[name].astype(float)
            for name in self._of(categories=False)
        ], float).T

    def _texts(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the columns of categories; a missing one is empty."""
        return np.array([
            [_text(value) for value in frame[name].tolist()]
            for name in self._of(categories=True)
        ], object).T

    def expected(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the columns that scikit-learn makes, in the order of the names."""
        parts: dict[str, list[np.ndarray]] = {}
        if self.imputer is not None:
            names = self._of(categories=False)
            values = self.imputer.transform(self._numbers(frame)).T
            parts = {name: [values[at]] for at, name in enumerate(names)}
            for place, at in enumerate(self.imputer.indicator_.features_):
                parts[names[at]].append(values[len(names) + place])
        if self.encoder is not None:
            values, start = self.encoder.transform(self._texts(frame)).T, 0
            for name, kinds in zip(
                self._of(categories=True), self.encoder.categories_, strict=True
            ):
                parts[name] = list(values[start : start + len(kinds)])
                start += len(kinds)
        return np.array([one for name in self.names for one in parts[name]]).T

    # --- how they are written --------------------------------------------------------

    def _written(self, frame: pd.DataFrame, name: str, shuffled: bool) -> Any:
        """Return a frame in the case's form: an object, or a path."""
        rng = self.rng
        if shuffled and not (self.numbered or self.bare):
            frame = frame[rng.sample(list(frame.columns), len(frame.columns))]
            if rng.random() < 0.3:
                frame = frame.assign(**{"one more": "text"})
        if self.form in FRAMES:
            return _as(self.form, frame)
        path = self.folder / f"{name}.{self.form.split()[-1]}"
        if self.form == "csv":
            return self._csv(frame, path)
        if self.form == "polars csv":
            polars = _polars(frame)
            polars.write_csv(path, separator=rng.choice(",;\t|"),
                             null_value=rng.choice(GAPS[:1]))
        elif self.form == "parquet":
            if rng.random() < 0.3:
                frame = frame.sample(frac=1, random_state=rng.randrange(99))
                frame = frame.sort_index() if rng.random() < 0.5 else frame
                self.order = frame.index.to_numpy()
            frame.to_parquet(path, row_group_size=rng.choice((2, 100)),
                             index=rng.choice((True, False)))
        elif self.form == "polars parquet":
            _polars(frame).write_parquet(path)
        else:
            feather.write_feather(pa.Table.from_pandas(frame, preserve_index=False),
                                  path, chunksize=rng.choice((2, 100)))
        return path

    def _csv(self, frame: pd.DataFrame, path: Path) -> Path:
        rng = self.rng
        separator = rng.choice(",;\t|")
        decimal = "," if separator != "," and rng.random() < 0.5 else "."
        if "short" in self.kinds.values():  # 1.234 has one meaning in all tables alike
            decimal = self.decimal = self.decimal or decimal
        gap = rng.choice(GAPS)
        index = not self.bare and rng.random() < 0.25
        table = frame.copy()
        for name in frame.columns:
            if self.kinds.get(name) not in ("text", "bool", None):
                groups = self.kinds[name] == "large" and rng.random() < 0.5
                table[name] = [
                    gap if pd.isna(value) else _number(value, decimal, groups)
                    for value in frame[name]
                ]
                if rng.random() < 0.1:
                    table[name] = [f" {cell} " for cell in table[name]]
                self.counts["thousands separators"] += groups
            elif self.kinds.get(name) == "bool":
                word = rng.choice((str, lambda one: str(one).lower(),
                                   lambda one: str(one).upper()))
                table[name] = ["" if one is None else word(one) for one in frame[name]]
            else:
                table[name] = [one if one is not None else "" for one in frame[name]]
        text = table.to_csv(
            sep=separator, index=index, header=not self.bare,
            quoting=rng.choice(QUOTING),
            lineterminator=rng.choice(("\n", "\r\n")),
        )
        if rng.random() < 0.1:
            text = f"\n{text}\n"
        encodings = ["utf-8", "utf-8-sig", "utf-16"]
        if all(ord(one) < 256 for one in text):
            encodings.append("latin-1")
        content = text.encode(rng.choice(encodings))
        self.counts[f"separator {separator!r}"] += 1
        self.counts[f"decimal {decimal!r}"] += 1
        if rng.random() < 0.2:
            path, content = path.with_suffix(".csv.gz"), gzip.compress(content)
        elif separator == "\t" and rng.random() < 0.5:
            path = path.with_suffix(".tsv")
        path.write_bytes(content)
        return path

    # --- the judgement ---------------------------------------------------------------

    def judge(self) -> None:
        """Judge both tables in one form."""
        self.form, self.decimal = self.rng.choice(self.forms), ""
        self.order: np.ndarray | None = None
        source = self._written(self.training, "training", shuffled=False)
        options = {
            "target": -1 if self.bare else self.target, "categories": self.categories,
            "dates": [name for name in self.names if self.kinds[name] == "date"],
            "dtype": "float64",
        }
        table, options = self._loaded(source, options)
        frame = self.training if self.order is None else self.training.loc[self.order]
        self._same(table.x, self.expected(frame), "training")
        self._same_targets(table.t, frame[self.target])
        self._scaled(table)
        columns = self._stored(table.columns)
        self.order = None
        source = self._written(self.other, "other", shuffled=True)
        again, _ = self._loaded(source, {"columns": columns, "dtype": "float64"})
        frame = self.other if self.order is None else self.other.loc[self.order]
        self._same(again.x, self.expected(frame), "another table")
        if isinstance(source, Path) and source.suffix in (".parquet", ".feather"):
            parts = [part.x for part in open_data(source, columns=columns).parts(3)]
            self._same(np.concatenate(parts), again.x, "by parts")
        self.counts[self.form] += 1
        for kind in self.kinds.values():
            self.counts[f"column: {kind}"] += 1

    def _loaded(self, source: Any, options: dict[str, Any]) -> tuple[Any, dict]:
        try:
            return load_table(source, **options), options
        except FormatError as error:  # a comma that may be either, and is asked for
            if "give decimal" not in str(error):
                raise
            self.counts["told: a comma that may be either"] += 1
            return load_table(source, **options, decimal=","), options

    def _stored(self, columns: Any) -> Any:
        """Return columns that went through the file of a network."""
        if self.rng.random() > 0.2:
            return columns
        network = Network.mlp([columns.n_in, 1], columns=columns, seed=0)
        network.save(self.folder / "a.safetensors")
        self.counts["columns of a file"] += 1
        return load(self.folder / "a.safetensors").columns

    def _same(self, found: np.ndarray, expected: np.ndarray, what: str) -> None:
        assert found.shape == expected.shape, (
            f"{self.form}, {what}: {found.shape} is not {expected.shape}, of "
            f"{self.kinds}"
        )
        close = np.isclose(found, expected, rtol=ULP, atol=0)
        assert close.all(), (
            f"{self.form}, {what}: {found[~close][:3]} is not {expected[~close][:3]} "
            f"of {self.kinds}"
        )
        self.counts[f"tables: {what}"] += 1

    def _same_targets(self, t: np.ndarray, expected: pd.Series) -> None:
        if self.kinds[self.target] == "text":
            assert t.tolist() == expected.tolist(), f"{t} is not {[*expected]}"
        else:
            assert np.array_equal(t[:, 0], expected.to_numpy()), f"{t}: {[*expected]}"

    def _scaled(self, table: Any) -> None:
        """Compare the scaling with that of scikit-learn, of numbers of some size."""
        if {"wide", "tiny"} & {*self.kinds.values()}:
            return
        scaler = StandardScaler().fit(table.x)
        scaling = Scaling.of(table.x, np.zeros((len(table.x), 1)))
        found = scaling.scale_input(table.x)
        spread = np.abs(table.x).max(axis=0) / scaler.scale_
        assert np.allclose(found, scaler.transform(table.x), rtol=1e-9,
                           atol=1e-12 * max(1.0, float(spread.max()))), "scaling"
        self.counts["scaled"] += 1


def _number(value: Any, decimal: str, groups: bool) -> str:
    """Return a cell of a number, or of a date."""
    if isinstance(value, pd.Timestamp):
        return value.isoformat() if value.hour else f"{value:%Y-%m-%d}"
    if groups:
        text = f"{value:,.1f}"
        return text.translate(str.maketrans(",.", ".,")) if decimal == "," else text
    whole = float(value).is_integer() and abs(value) < 1e15
    text = str(int(value)) if whole else repr(float(value))
    return text.replace(".", ",") if decimal == "," else text


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) else str(value)


def _polars(frame: pd.DataFrame) -> pl.DataFrame:
    return pl.DataFrame({
        name: [
            None if pd.isna(one) else one.to_pydatetime() if isinstance(
                one, pd.Timestamp) else one for one in frame[name].tolist()
        ] for name in frame
    }, strict=False)


def _as(form: str, frame: pd.DataFrame) -> Any:
    """Return a frame as one of another library."""
    if form == "objects":
        return frame.astype(object)
    if form == "nullable":
        return frame.convert_dtypes()
    if form == "pandas of pyarrow":
        return frame.convert_dtypes(dtype_backend="pyarrow")
    if form == "polars":
        return _polars(frame)
    if form == "lazy":
        return _polars(frame).lazy()
    if form == "pyarrow":
        return pa.Table.from_pandas(frame, preserve_index=False)
    if form == "batch":
        return pa.Table.from_pandas(frame, preserve_index=False).to_batches()[0]
    if form == "dict":
        return frame.to_dict("list")
    if form == "dicts":
        return frame.to_dict("records")
    return frame
