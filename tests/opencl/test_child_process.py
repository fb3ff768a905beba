"""Child processes: their outcome in words."""

from __future__ import annotations

import sys

from clnet.opencl.child_process import run_child


def python(code):
    return (sys.executable, "-c", code)


def test_the_outcome_of_a_child():
    assert run_child(python("pass")) == ""
    assert run_child(python("import os; os.abort()")) == "killed by SIGABRT"
    assert (
        run_child(python("raise SystemExit('a\\nlast words\\n')")) == "last words"
    )
    assert run_child(python("raise SystemExit(3)")) == "exit status 3"
    code = "import os; raise SystemExit(os.environ['ANSWER'])"
    assert run_child(python(code), ANSWER="an answer") == "an answer"
    assert "no answer" in run_child(python("import time; time.sleep(60)"), seconds=0.2)


def test_standard_input():
    code = "import sys; raise SystemExit(sys.stdin.read())"
    assert run_child(python(code), b"given") == "given"
