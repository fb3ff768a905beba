"""No branch ends a condition behind its last barrier, at the end of a loop's body.

PoCL by loops takes such a branch for all work-items or for none
(docs/explanation/runtimes.md). The kernels' paths in plain C are preprocessed, and read
as statements by their brackets; a function stands in the place of its call. The
statements behind a conditional jump are those of its ``else``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from shutil import which
from subprocess import run

import pytest
from devices import DEVICE, H200
from kernel_corpus import NUMBER, cases, sample

from clnet.opencl.program import kernel_text, source_text

PLAIN = replace(DEVICE, compute_capability=None)
GPU = replace(
    DEVICE, companions=(), type="gpu", simd_width=32, largest_group=256,
    forward_progress=True, compute_capability=None,
)
TOKEN = re.compile(r"\w+|\S")
LOOPS, JUMPS = {"for", "while", "do"}, {"break", "continue", "return"}
RIGHT = {  # conditions of branches that are right
    ("fused_step_gradients.cl", "0 > = 80 & & k > = to"): "never true in plain C",
}
CC = which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C preprocessor")


@dataclass
class Node:
    """A statement: its keyword, the tokens of its parentheses, its statements."""

    kind: str
    tokens: list[str] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)
    calls: list[Node] = field(default_factory=list)

    def has_barrier(self):
        inner = [*self.body, *self.calls]
        return "barrier" in self.tokens or any(node.has_barrier() for node in inner)


class Reader:
    """The statements of a preprocessed text."""

    def __init__(self, text):
        self.tokens, self.at, self.functions = TOKEN.findall(text), 0, {}

    def enclosed(self):
        """Return the tokens of the brackets that begin here."""
        first, depth = self.at, 0
        while depth or self.at == first:
            depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(self.tokens[self.at], 0)
            self.at += 1
        return self.tokens[first + 1 : self.at - 1]

    def node(self, kind, tokens, body=()):
        calls = [self.functions[name] for name in tokens if name in self.functions]
        return Node(kind, tokens, [*body], calls)

    def statement(self):
        while self.tokens[self.at] in ("case", "default"):
            self.at = self.tokens.index(":", self.at) + 1
        kind = self.tokens[self.at]
        if kind not in ("{", "if", "switch", *LOOPS):
            first = self.at
            while self.tokens[self.at] != ";":
                if self.tokens[self.at] in ("(", "{"):
                    self.enclosed()
                else:
                    self.at += 1
            self.at += 1
            return self.node("", self.tokens[first : self.at])
        self.at += 1
        if kind == "{":
            return Node(kind, [], self.block())
        if kind == "do":
            body = [self.statement()]
            self.at += 1
            return self.node(kind, self.enclosed(), body)
        tokens, body = self.enclosed(), [self.statement()]
        if kind == "if" and self.tokens[self.at] == "else":
            self.at += 1
            body.append(self.statement())
        return self.node(kind, tokens, body)

    def block(self):
        found = []
        while self.tokens[self.at] != "}":
            found.append(node := self.statement())
            last = node.body[0] if node.kind == "if" else Node("")
            while last.kind == "{" and last.body:
                last = last.body[-1]
            if len(node.body) == 1 and {*last.tokens[:1]} & JUMPS:
                node.body.append(Node("{", [], self.block()))
                return found
        self.at += 1
        return found

    def kernels(self):
        """Return the kernels by their names."""
        found, name = {}, ""
        start = 0
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token == "(":
                previous = self.tokens[self.at - 1]
                name = name if previous == "__attribute__" else previous
                self.enclosed()
            elif token == "{" and self.tokens[self.at - 1] == ")":
                head = self.tokens[start : self.at]
                self.functions[name] = self.statement()
                if "__kernel" in head:
                    found[name] = self.functions[name]
                start = self.at
            elif token == "{":
                self.enclosed()
            else:
                self.at += 1
                start = self.at if token == ";" else start
        return found


def flat(nodes):
    """Return statements, those of blocks and of functions called in their places."""
    found = []
    for node in nodes:
        inner = node.body if node.kind == "{" else node.calls if not node.kind else []
        found += flat(inner) if inner else [node] if node.kind != "{" else []
    return found


def wrong(nodes, ends_loop=False):
    """Return the conditions that end with a branch behind their last barrier."""
    rows, found = flat(nodes), []
    for row in rows:
        last = ends_loop and row is rows[-1]
        for branch in row.body:
            inner = flat([branch])
            if (
                last and row.kind not in LOOPS and inner[-1:] and inner[-1].body
                and not inner[-1].has_barrier() and branch.has_barrier()
            ):
                found.append(" ".join(row.tokens))
            found += wrong([branch], last or row.kind in LOOPS)
    return found


def preprocessed(text):
    done = run(
        [CC, "-E", "-P", "-x", "c", "-"], input=text, capture_output=True, text=True,
        check=True,
    )
    return re.sub(r"^\s*#.*$", "", done.stdout, flags=re.MULTILINE)


@cache
def conditions(source):
    """Return the words of a text's conditions, macros among them."""
    rows = re.findall(r"^\s*#\s*(?:el)?if(.*)", kernel_text(source), re.MULTILINE)
    return {*re.findall(r"\w+", " ".join(row for row in rows if "!defined" not in row))}


def texts():
    """Return the programs of all kernels: one of each set of conditions."""
    found = {}
    for device in (PLAIN, GPU, H200):
        for case in cases(device, sample):
            for launch in case.launches(device):
                if launch.source == "dense/persistent_ring.cl":  # no path in plain C
                    continue
                names = conditions(launch.source) & launch.defines.keys()
                key = launch.source, launch.kernel, *(
                    (name, NUMBER.sub("2", str(launch.defines[name])))
                    for name in sorted(names)
                )
                if key not in found:
                    text = source_text(launch.source, launch.defines, PLAIN)
                    found[key] = launch.source, launch.kernel, text
    return [row for row in found.values() if "barrier(CLK" in row[2]]


def test_no_branch_ends_a_condition_behind_its_last_barrier():
    found, right = set(), set()
    for source, kernel, text in texts():
        for condition in wrong([Reader(preprocessed(text)).kernels()[kernel]]):
            known = source.rpartition("/")[2], condition
            (right if known in RIGHT else found).add((source, kernel, condition))
    assert not found
    assert len(right) == len(RIGHT)


SMALL = """
static inline void put(__global int *y, int v, int live) { if (live) *y = v; }
__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void small(__global int *y, const int n, const int turns)
{
    __local int v[32];
    const int id = get_local_id(0);
    for (int i = 0; i < turns; ++i) {
        BEFORE
        v[id] = i;
        barrier(1);
        BRANCH
        BEHIND
    }
}
"""


@pytest.mark.parametrize(("before", "branch", "behind", "conditions"), [
    ("if (i < 3) {", "if (id < n) y[id] = v[31 - id];", "}", ["i < 3"]),
    ("if (i < 3) {", "put(y + id, v[31 - id], id < n);", "}", ["i < 3"]),
    ("if (i > 2) continue;", "for (int k = id; k < n; ++k) y[k] = 1;", "", ["i > 2"]),
    ("if (i < 3) {", "if (id < n) y[id] = v[31 - id];", "barrier(1); }", []),
    ("if (i < 3) {", "if (id < n) y[id] = v[31 - id];", "} y[id] = 2;", []),
    ("if (i < 3) {", "y[id] = v[31 - id];", "}", []),
    ("", "if (id < n) y[id] = v[31 - id];", "", []),
])
def test_a_branch_is_found(before, branch, behind, conditions):
    text = SMALL.replace("BEFORE", before).replace("BRANCH", branch)
    kernel = Reader(text.replace("BEHIND", behind)).kernels()["small"]
    assert wrong([kernel]) == conditions
