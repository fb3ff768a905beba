"""The checks of one damaged file, and a loop over many."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import resource
import time
import traceback
import tracemalloc
import warnings
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from bounds import span_bound

from clnet import Dense, FormatError, Network
from clnet.errors import ClnetWarning

from . import mutations
from .oracle import MEMORY_LIMIT
from .parsers import PARSERS, Parser

SECONDS = 2.0  # of the processor, for one file
SENTENCE = 1000  # characters of an error, the path aside
FACTOR = 100  # bytes of memory for each byte of a file
FLOOR = 10 * MEMORY_LIMIT  # bytes besides: what unpacks may be copied a few times
ADDRESSES = 2 << 30  # bytes of addresses beyond those of the start: a hard limit
MEASURED = 64  # one in so many files is read with its memory measured
FAILURES = 100  # that end a run
CORPUS = 400  # files that behaved in a new way, and are damaged further
LARGEST = mutations.LARGEST  # bytes of a file that is damaged further
WIDEST = 1 << 16  # values of a layer of networks that are predicted with
MOST_BUILT = 20  # structures of networks that kernels are built for
BATCH = 4  # samples of a data file that are predicted
NARROW = 8  # columns of data files that are predicted
MODERATE = 1e6  # weights and steepnesses up to it cannot overflow
ACCEPTED = "accepted"
FINDINGS = Path(__file__).parent / "findings"

_BUILT: set[str] = set()  # structures of networks whose kernels were built


@dataclasses.dataclass
class Tally:
    """Counts of one run."""

    parser: str
    seed: int
    mutants: int = 0
    accepted: int = 0
    predicted: int = 0
    compared: int = 0
    ways: int = 0
    slowest: float = 0.0
    most_memory: float = 0.0
    failures: list[str] = dataclasses.field(default_factory=list)


def seeds(name: str) -> list[bytes]:
    """Return a parser's undamaged files, and those that it once failed on."""
    found = [path.read_bytes() for path in sorted((FINDINGS / name).glob("*"))]
    return [*PARSERS[name].seeds(), *found]


def limit_memory() -> None:
    """Limit the process's addresses: an allocation beyond is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def fuzz(
    name: str,
    seed: int,
    folder: Path,
    *,
    mutants: int | None = None,
    seconds: float = np.inf,
    predictions: float = 1.0,
) -> Tally:
    """Damage files of a parser, and check what it makes of each."""
    parser, rng, tally = PARSERS[name], Random(f"{name} {seed}"), Tally(name, seed)
    good, odd, ways = seeds(name), [], set()
    path = folder / f"{name}-{seed}{parser.suffix}"
    start = time.monotonic()
    numbers: Any = iter(range(mutants)) if mutants is not None else iter(int, 1)
    for _ in numbers:
        if time.monotonic() - start > seconds or len(tally.failures) >= FAILURES:
            break
        content = rng.choice(odd if odd and rng.random() < 0.3 else good)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            content = parser.mutate(rng, content, good) or b"\0"
        path.write_bytes(content)
        measured = tally.mutants % MEASURED == 0
        tally.mutants += 1
        try:
            way = check(parser, path, content, tally, rng, predictions, measured)
        except Exception:
            digest = hashlib.sha256(content).hexdigest()[:12]
            kept = folder / f"failure-{name}-{digest}{parser.suffix}"
            kept.write_bytes(content)
            tally.failures.append(f"{kept}\n{traceback.format_exc()}")
            continue
        if way not in ways and len(content) <= LARGEST:
            ways.add(way)
            corpus = good if way.startswith(ACCEPTED) else odd
            if len(corpus) < CORPUS:
                corpus.append(content)
            else:
                corpus[rng.randrange(CORPUS)] = content
    tally.ways = len(ways)
    path.unlink(missing_ok=True)
    return tally


def check(
    parser: Parser, path: Path, content: bytes, tally: Tally, rng: Random,
    predictions: float, measured: bool,
) -> str:
    """Read a file; return its way: the form of the error, or of what was read."""
    result = None
    if measured:
        tracemalloc.start()
    before = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ClnetWarning)
            result = parser.load(path)
            way = ACCEPTED
    except FormatError as error:
        way = str(error).replace(str(path), "")
        assert way.isprintable(), repr(way)
        assert len(way) <= SENTENCE, way
    finally:
        took = time.perf_counter() - before
        if took > SECONDS:  # of a busy machine, perhaps: the processor's time counts
            took = processor_time(parser, path)
        tally.slowest = max(tally.slowest, took)
        if measured:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            tally.most_memory = max(tally.most_memory, peak)
    assert took <= SECONDS, f"{took:.3g} s"
    if measured:
        assert peak <= FLOOR + FACTOR * len(content), f"{peak} bytes"
    if result is None:
        return re.sub(r"\d+|'.*?'", "", way)
    tally.accepted += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = parser.check(content, result)
    if x is not None:
        predict_samples(x, tally)
    if isinstance(result, Network):
        if rng.random() < predictions:
            predict(result, tally)
        return f"{ACCEPTED} {result.layers}"
    return ACCEPTED


def processor_time(parser: Parser, path: Path) -> float:
    """Return the seconds of the processor that reading a file takes."""
    before = time.process_time()
    with contextlib.suppress(FormatError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser.load(path)
    return time.process_time() - before


@cache
def layer_of(n_in: int) -> tuple[Network, Any]:
    """Return a network of one layer, and its plan for `BATCH` samples."""
    network = Network(n_in, [Dense(2, "tanh")], seed=n_in)
    return network, network.compile(batch=BATCH, tune=False, variants=["generic"])


def predict_samples(x: np.ndarray, tally: Tally) -> None:
    """Predict the first samples of a file by kernels, and compare with NumPy."""
    if x.shape[1] > NARROW:
        return
    samples = np.zeros((BATCH, x.shape[1]), np.float32)
    with np.errstate(over="ignore"):
        samples[: len(x)] = x[:BATCH]
    network, plan = layer_of(x.shape[1])
    y = plan(samples)
    tally.predicted += 1
    weights, exact = network.weights(0).astype(float), samples.astype(float)
    with np.errstate(all="ignore"):
        z = exact @ weights.T
        errors = (x.shape[1] + 1) * np.abs(exact) @ np.abs(weights).T + 10
    known = np.abs(samples).max(axis=1) <= MODERATE
    bound = errors * np.finfo(np.float32).eps
    assert (np.abs(y - np.tanh(z)) <= bound)[known].all()
    tally.compared += 1


def predict(network: Network, tally: Tally) -> None:
    """Predict with a network by kernels, and compare with the oracle if it can be."""
    if max(network.sizes) > WIDEST or len(network.layers) > 20:
        return
    x = np.random.default_rng(0).normal(size=(3, network.n_in)).astype(network.dtype)
    # Kernels of a new structure are built in a second: most are computed by the host.
    structure = repr((network.sizes, network.layers, network.dtype))
    if len(_BUILT) < MOST_BUILT:
        _BUILT.add(structure)
    variant = "generic" if structure in _BUILT else "host"
    plan = network.compile(batch=3, tune=False, variants=[variant])
    y = plan(x)
    tally.predicted += 1
    assert y.shape == (3, network.n_out)
    steepness = np.concatenate([np.ravel(layer.steepness) for layer in network.layers])
    with np.errstate(invalid="ignore"):  # of NaNs that signal
        largest = np.abs(np.concatenate([network.parameters, steepness])).max()
    if not largest <= MODERATE:  # or NaN
        return
    program = network.program
    span = program.span(0, len(program.ops), len(x))
    with np.errstate(all="ignore"):
        exact, bound = span_bound(span, {program.input.name: x}, network.parameters)
    name = program.output.name
    known = np.isfinite(exact[name]) & np.isfinite(bound[name])
    assert (np.abs(y - exact[name]) <= bound[name])[known].all()
    tally.compared += 1
