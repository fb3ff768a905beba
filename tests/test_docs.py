"""The site's pages stay in step with the tree; `.ci/run` builds the site itself."""

import doctest
import io
import re
import subprocess
import sys
from math import inf
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import clnet
from clnet.opencl import process
from clnet.runtime.plan import Plan

DOCS = Path(__file__).parents[1] / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]

import check_site  # noqa: E402  from the folders above
import kernel_parts  # noqa: E402
import prose  # noqa: E402
import row_tables  # noqa: E402
import screenshots  # noqa: E402
import standings  # noqa: E402
import timelines  # noqa: E402

PAGES = sorted(DOCS.rglob("*.md"))
NEWCOMERS = {"tutorials", "how_to"}
USES = [
    (page, use) for page in PAGES for use in kernel_parts.uses(page.read_text("utf-8"))
]
AUTODOC = re.compile(r"^\.\. auto\w+:: (?:clnet\.)?([\w.]+)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "use"), USES, ids=[f"{page.stem}-{use.path}" for page, use in USES]
)
def test_notes_on_kernels_have_their_lines(page, use):
    assert use.terms
    use.check()


def test_a_note_whose_line_is_gone_is_an_error():
    use = kernel_parts.Use("dense/naive.cl", {"from": "__kernel"}, ["no such"])
    with pytest.raises(ValueError, match=r"ive\.cl: 'no such' is in no line from \d+"):
        use.check()
    use.terms = ["sum"]
    with pytest.raises(ValueError, match=r"is in lines \[\d+, .*expected in one"):
        use.check()
    use.options = {"from": "no such"}
    with pytest.raises(ValueError, match="no line from 1 on contains 'no such'"):
        use.check()
    with pytest.raises(ValueError, match=r"no\.cl: there is no such file"):
        kernel_parts.part("no.cl")


def test_every_public_name_is_in_the_reference():
    found = {
        name for page in (DOCS / "reference").glob("*.md")
        for name in AUTODOC.findall(page.read_text("utf-8"))
    }
    found |= {name.removeprefix("nn.") for name in found}
    assert set(clnet.__all__) <= found


LINES = "case", {"config-1": "one"}
COLUMNS = "candidate", {"naive": "n", "split": "s"}
WHERE = {"table": "configurations", "batch": "1", "basis": "device"}
ROWS = "feedforward-nvidia-h200.csv"


def test_tables_are_of_committed_rows():
    found = row_tables.values(ROWS, WHERE, LINES, COLUMNS)
    ratios = row_tables.values(ROWS, WHERE, LINES, COLUMNS, "ratio naive")
    assert ratios["one", "n"] == 1
    assert ratios["one", "s"] == pytest.approx(found["one", "n"] / found["one", "s"])
    (head, line), drawn = row_tables.cells(found), row_tables.chart(found, "us")
    assert head == ["", "n", "s"]
    assert line == ["one", "228", "54.1"]
    assert drawn.count("<rect") == 2
    assert "228" in drawn


@pytest.mark.parametrize(("change", "message"), [
    ({"path": "no.csv"}, "there is no such file"),
    ({"where": {"table": "no"}}, "no row has"),
    ({"lines": ("case", {"no": "no"})}, "no row of .* has the case 'no'"),
])
def test_tables_of_no_rows_are_errors(change, message):
    with pytest.raises(ValueError, match=message):
        row_tables.values(**{
            "path": ROWS, "where": WHERE, "lines": LINES, "columns": COLUMNS, **change
        })


@pytest.mark.parametrize(("number", "text"), [
    (3.14159, "3.14"), (54.08, "54.1"), (99.97, "100"), (228.2, "228"),
    (1280.8, "1280"), (68_600.0, "68600"),
])
def test_numbers_have_three_digits(number, text):
    assert row_tables.number(number) == text


def test_faults_of_a_site_are_found(tmp_path):
    style = "<style>@import '//a.example/b.css'; p {background: url(c.png)}</style>"
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="https://a.example/a.css"><h1 id="here">'
        '<script src="//a.example/a.js"></script><a href="https://a.example/"></a>'
        '<a href="#here"></a><a href="b.html#there"></a><a href="c.html"></a>' + style
        + "<pre>/bin/sh: 1: clnet: not found</pre>"
    )
    (tmp_path / "b.html").write_text("<p>")
    (tmp_path / "b.css").write_text("p {background: url( 'https://a.example/c.png')}")
    found = "\n".join(check_site.faults(tmp_path))
    assert found.count("\n") == 6
    for words in (
        "a.html loads https://a.example/a.css", "a.html loads //a.example/a.js",
        "a.html loads @import '//", "b.html#there: there is no such anchor",
        "c.html: there is no such file", "b.css loads from another host",
        "a.html shows ': 1: clnet: not found'",
    ):
        assert words in found
    assert list(check_site.faults(tmp_path / "none")) == [
        f"{tmp_path / 'none'}: there is no page"
    ]


NAMES = [name for name in clnet.__all__ if name != "BuildError"]  # of a broken driver
METHODS = ("mlp", "from_state_dict", "prune", "compile", "predict", "classify", "fit",
           "evaluate", "save", "weights", "set_layer", "initialise")
PARSER = doctest.DocTestFinder(recurse=False)


def run_examples(subject, folder, monkeypatch):
    """Run the examples of an object's docstring in a folder; there must be some."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CLNET_DEVICE", "cpu")
    (found,) = PARSER.find(subject, "example", globs={"clnet": clnet, "np": np})
    assert found.examples
    flags = doctest.ELLIPSIS | doctest.REPORT_ONLY_FIRST_FAILURE
    runner, report = doctest.DocTestRunner(optionflags=flags), io.StringIO()
    runner.run(found, out=report.write)
    assert not runner.failures, report.getvalue()


@pytest.mark.parametrize("name", [*NAMES, *(f"Network.{name}" for name in METHODS)])
def test_examples_of_the_reference(name, tmp_path, monkeypatch):
    if name == "TensorBoard":
        pytest.importorskip("tensorboardX")
    run_examples(attrgetter(name)(clnet), tmp_path, monkeypatch)


def test_examples_of_plans(tmp_path, monkeypatch):
    run_examples(Plan, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["MLPClassifier", "MLPRegressor"])
def test_examples_of_estimators(name, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    from clnet import sklearn

    run_examples(getattr(sklearn, name), tmp_path, monkeypatch)


def test_timelines_are_drawn_to_scale():
    drawn = timelines.drawing("""
        group 0: weights 3 memory, publish 1 sync #a
        group 1: wait 4 wait <a, products 2
    """)
    assert re.findall(r'class="(\w+)" x="([\d.]+)"', drawn)[:2] == [
        ("memory", "110.0"), ("middle", "240.0")
    ]
    assert drawn.count("<rect") == 4
    assert drawn.count('class="arrow"') == 1
    assert "group 1: wait, products" in drawn


@pytest.mark.parametrize(("text", "message"), [
    ("lane", "timeline: '', expected a name"), ("lane: work", "'work', expected"),
    ("lane: work 2 <a", "'a' is no mark of \\[\\]"),
])
def test_timelines_that_cannot_be_read_are_errors(text, message):
    with pytest.raises(ValueError, match=message):
        timelines.drawing(text)


@pytest.mark.parametrize("page", [
    *PAGES, *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md")),
    DOCS.parent / "benchmarks" / "NOTES.md",
], ids=lambda page: page.stem)
def test_sentences_are_short_of_figures_and_begin_with_their_object(page):
    first = page.stem in {"README", "index", "NOTES"} or page.parent.name in NEWCOMERS
    words = prose.MOST_WORDS if first else inf
    assert not prose.faults(page.read_text("utf-8"), words)


def test_faults_of_prose_are_found():
    page = "# What is it\n\n| What | 1 2 3 4 |\n\nOf `5` 1, 2, 3.5 or 4 000. It is 7.\n"
    assert prose.faults(page) == ["What is it", "Of ` 1, 2, 3.5 or 4 000."]
    assert prose.faults("One two three. `clnet x` four.", 2) == ["One two three."]
    assert not prose.faults("One two. clnet two.", 2)


def test_cases_behind_a_peer_are_those_that_are_not_ahead():
    found = list(standings.committed())
    counted = standings.counts(found)[1:]
    behind = [
        line for device in ("H200", "H100", "EPYC", "Xeon")
        for line in standings.behind(found, device)[1:]
    ]
    assert len(found) == sum(int(line[2]) for line in counted)
    assert len(behind) == sum(int(line[2]) - int(line[3]) for line in counted)
    assert all(float(line[-1]) < 1 for line in behind)


def test_cards_are_compared_by_the_same_candidates():
    heads, *lines = standings.cards("H100", "H200")
    assert lines
    for line in lines:
        one = dict(zip(heads, line, strict=True))
        first, second, share, clnet, peer = map(float, line[len(standings.NAMES):])
        assert share == pytest.approx(first / second, rel=0.02), one
        assert peer == pytest.approx(share * clnet, rel=0.02), one


@pytest.mark.sweep
def test_pages_fit_a_phone_and_a_desktop(tmp_path):
    pytest.importorskip("sphinx")
    if screenshots.browser() is None:
        pytest.skip("no Chromium draws the pages")
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "sphinx", "-q", DOCS, site], check=True)
    assert screenshots.main(site, tmp_path / "pictures") == 0


# How-to guides ----------------------------------------------------------------------

GUIDES = sorted((DOCS / "how_to").glob("*.md"))
PLACES = re.compile(r"^\| file \|.*\n\|[ |-]*\n((?:\|.*\n)+)", re.MULTILINE)


def program(page):
    """Return the blocks of a page that run, as one program; `py` marks fragments."""
    found = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    return "".join(found)


@pytest.mark.parametrize("page", filter(program, GUIDES), ids=lambda page: page.stem)
def test_python_of_guides_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLNET_DEVICE", "cpu")
    exec(compile(program(page), str(page), "exec"), {"__name__": page.stem})


def places():
    """Yield the rows of the guides' tables of places: a file, and names in it."""
    for page in GUIDES:
        for table in PLACES.findall(page.read_text("utf-8")):
            for row in table.splitlines():
                file, place = row.strip("| `").split("` | ")
                yield pytest.param(file, place, id=f"{page.stem}-{file}")


@pytest.mark.parametrize(("file", "place"), places())
def test_places_of_additions_are_there(file, place):
    path = DOCS.parent / file
    if place.startswith("new"):  # the reader adds it
        assert path.parent.is_dir()
        return
    text = path.read_text("utf-8")
    assert [name for name in re.findall("`([^`]+)`", place) if name not in text] == []


def named_files():
    """Yield the pages that tell where things are, and the files that each names."""
    root = DOCS.parent
    for page in (root / "CONTRIBUTING.md", *sorted((root / "kernels").rglob("*.cl"))):
        text = page.read_text("utf-8")
        for file in re.findall(r"\b(?:clnet|variants)/[\w/]+\.py\b", text):
            if not file.endswith("/x.py"):  # the reader adds it
                yield pytest.param(file, id=f"{page.name}-{file}")


@pytest.mark.parametrize("file", named_files())
def test_files_that_are_named_are_there(file):
    root = DOCS.parent
    assert (root / file).is_file() or (root / "clnet" / file).is_file()


def test_modules_of_the_table_of_packages_are_there():
    text = (DOCS.parent / "CONTRIBUTING.md").read_text("utf-8")
    table = re.search(r"^\| package \|.*\n\|[ |-]*\n((?:\|.*\n)+)", text, re.MULTILINE)
    gone = []
    for row in table.group(1).splitlines():
        packages, content = row.strip("|").split(" | ")
        package = DOCS.parent / re.search("`([^`]+)`", packages).group(1)
        for name in re.findall("`([a-z_]+)`", content):
            module = package / name
            if not (module.is_dir() or module.with_suffix(".py").is_file()):
                gone.append(str(module.relative_to(DOCS.parent)))
    assert gone == []


def test_the_guide_to_services_has_the_error_of_forks(monkeypatch):
    monkeypatch.setattr(process, "_forked", True)
    with pytest.raises(clnet.DeviceError) as found:
        process.check_process()
    page = (DOCS / "how_to" / "service.md").read_text("utf-8")
    assert f"DeviceError: {found.value}" in " ".join(page.split())
