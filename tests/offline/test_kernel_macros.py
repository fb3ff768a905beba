"""Kernels require the host's macros by ``#error``, and state no defaults."""

import re
from functools import cache

import pytest
from kernel_corpus import sampled_launches

from clnet.opencl.device import Device
from clnet.opencl.program import kernel_directory, kernel_text, source_text

FILES = sorted(
    path.relative_to(kernel_directory()).as_posix()
    for path in kernel_directory().rglob("*") if path.suffix in (".cl", ".h")
)
KERNELS = [name for name in FILES if name.endswith(".cl")]
# Macros whose absence chooses, by file: a kernel of it, a rule, a path without them.
CHOICES = {
    "dense/mma_chain.cl": {"NARROW"},
    "include/activations.h": {"ACTIVATION"},
    "include/optimisers.h": {
        "ADAM", "ADAMW", "BATCH", "INCREMENTAL", "QUICKPROP", "RMSPROP", "RPROP",
        "SARPROP", "SGD",
    },
    "reference/generic.cl": {"ACTIVATIONS"},
    "reference/generic_backward.cl": {
        "DERIVATIVES", "GROUP", "MEAN", "PARTIALS", "ROWS",
    },
    "sparse/sparse_input.cl": {"GROUP", "SAMPLES", "SHUFFLED"},
    "stencil/bands.h": {"ACTIVATION"},
    "stencil/stencil.cl": {"GROUP"},
    "tensor_core/wgmma.h": {"NARROW"},
    "training/gemm_backward.cl": {"GRADIENT"},
    "training/mma_backward.cl": {"GRADIENT"},
    "training/sequential.cl": {"CONSTANT_LAYERS"},
    "training/stencil_backward.cl": {"BANDS"},
    "training/wide.cl": {"GRADIENT", "MEAN"},
}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
TEXT = re.compile(r'"(?:\\.|[^"\\])*"')
KERNEL = re.compile(
    r"__kernel\s+(?:__attribute__\s*\(\(.*?\)\)\)\s*)?void\s+(\w+)\s*\("
)
WORD = re.compile(r"\b[A-Za-z_]\w*")
ABSENT = re.compile(r"!\s*defined\((\w+)\)|#\s*ifndef\s+(\w+)")
ASKED = re.compile(r"defined\((\w+)\)|#\s*ifn?def\s+(\w+)")


def lines_of(text):
    """Return a text's lines, joined where they go on, without comments and strings."""
    code = COMMENT.sub("", text.replace("\\\n", " "))
    return [TEXT.sub('""', line).strip() for line in code.split("\n")]


def names(pattern, line):
    return {name for found in pattern.findall(line) for name in found if name}


class Program:
    """The macros of a kernel file: required, asked for, defined, used, compared."""

    def __init__(self, text):
        self.required, self.asked, self.defined = set(), set(), set()
        self.used, self.compared = set(), set()
        lines = [line for line in lines_of(text) if line]
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith(("#error", "#line", "#include", "#undef")):
                continue
            if line.startswith("#if") and following.startswith("#error"):
                self.required |= names(ABSENT, line)
                continue
            if line.startswith(("#if", "#elif")):
                self.asked |= names(ASKED, line)
                words = set(WORD.findall(ASKED.sub("", line)))
                self.compared |= words - {"if", "elif", "defined"}
            elif line.startswith("#define"):
                name, *body = WORD.findall(line)[1:]
                self.defined.add(name)
                self.used.update(body)
                continue
            self.used.update(WORD.findall(ASKED.sub("", line)))


def choices(source):
    """Return those of a kernel file and its headers."""
    files = {source, *re.findall(r'^#line \d+ "(.*)"', kernel_text(source), re.M)}
    return set().union(*(CHOICES.get(file, set()) for file in files))


@cache
def host_macros():
    """The macros that launches give to each kernel file."""
    shared = Program(source_text("probes/launch.cl", {}, Device("d"))).defined
    found = {source: set(shared) for source in KERNELS}
    for launch in sampled_launches():
        found[launch.source] |= {name.partition("(")[0] for name in launch.defines}
    return found


def test_every_kernel_is_in_a_case_of_the_corpus():
    texts = {
        file: (kernel_directory() / file).read_text(encoding="utf-8")
        for file in KERNELS
    }
    kernels = {(path, name) for path in texts for name in KERNEL.findall(texts[path])}
    assert len(kernels) == sum(text.count("__kernel ") for text in texts.values())
    found = {(launch.source, launch.kernel) for launch in sampled_launches()}
    assert kernels - found == set()


@pytest.mark.parametrize("source", KERNELS)
def test_macros_of_the_host_are_required(source):
    program = Program(kernel_text(source))
    needed = host_macros()[source] & program.used - program.defined
    assert needed - program.required - choices(source) == set()


@pytest.mark.parametrize("source", KERNELS)
def test_few_macros_may_be_absent(source):
    """Others have the values 0 and 1."""
    program = Program(kernel_text(source))
    assert program.asked & host_macros()[source] - choices(source) == set()


@pytest.mark.parametrize("source", KERNELS)
def test_conditions_have_no_unknown_macros(source):
    """They would be 0 without a word."""
    program = Program(kernel_text(source))
    known = program.required | program.defined | choices(source)
    unknown = {name for name in program.compared - known if not name.startswith("__")}
    assert unknown == set()


def test_choices_are_made():
    for file, macros in CHOICES.items():
        text = (kernel_directory() / file).read_text(encoding="utf-8")
        assert macros <= Program(text).asked, file


@pytest.mark.parametrize("source", FILES)
def test_no_macro_has_a_default(source):
    lines = lines_of((kernel_directory() / source).read_text(encoding="utf-8"))
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        for name in names(ABSENT, line) if line.startswith("#if") else ():
            assert not re.match(rf"#\s*define\s+{name}\b", following), name
