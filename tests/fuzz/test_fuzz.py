"""A short run of the fuzzer: the same files every time."""

from random import Random

import pytest

from clnet.formats import DATA_SUFFIXES, FANN_DATA_SUFFIXES, NETWORK_SUFFIXES
from clnet.formats.opening import SOURCE_SUFFIXES

from .parsers import PARSERS
from .runner import FINDINGS, Tally, check, fuzz, seeds

# The first files of a state are seldom accepted.
MUTANTS = {"store": 60, "net": 150, "safetensors": 150, "onnx": 150, "state": 1500}
OTHERS = 400


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_files_are_read_or_refused(tmp_path, name):
    tally = fuzz(name, 0, tmp_path, mutants=MUTANTS.get(name, OTHERS), predictions=0.1)
    assert not tally.failures, tally.failures[0]
    assert tally.accepted > tally.mutants / 50


@pytest.mark.parametrize("name", PARSERS)
def test_undamaged_files_and_former_findings(tmp_path, name):
    """Seeds are accepted, and their meaning is the oracle's."""
    parser, tally = PARSERS[name], Tally(name, 0)
    path = tmp_path / f"x{parser.suffix}"
    found = seeds(name)
    for content in found:
        path.write_bytes(content)
        check(parser, path, content, tally, Random(0), 1.0, measured=True)
    findings = len(list((FINDINGS / name).glob("*")))
    assert tally.accepted >= len(found) - findings


def test_every_format_is_fuzzed():
    suffixes = {parser.suffix for parser in PARSERS.values()}
    one_of_fann = {*FANN_DATA_SUFFIXES, *(f"{s}.gz" for s in FANN_DATA_SUFFIXES)}
    one_of_these = {".hdf5", ".feather"}
    extras = {"onnx": ".onnx", "hdf5": ".h5", "arrow": ".arrow", "parquet": ".parquet"}
    missing = {suffix for name, suffix in extras.items() if name not in PARSERS}
    known = {*DATA_SUFFIXES, *NETWORK_SUFFIXES, *SOURCE_SUFFIXES}
    assert known - one_of_fann - one_of_these - missing <= suffixes
