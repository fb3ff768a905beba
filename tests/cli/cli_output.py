"""Outputs of commands, and findings of the doctor."""

from clnet.errors import WIDTH


def ok(result):
    """Return the output of a command that must succeed."""
    status, out, err = result
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= WIDTH
    return out


def refused(result, sentence):
    """Check that a command failed, with one sentence."""
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.startswith("clnet: ") and err.count("\n") == 1
    assert sentence in err


def bad(findings):
    """Return the findings that are bad; they have a cure, and good ones none."""
    findings = list(findings)
    for finding in findings:
        assert (finding.ok is True) == (not finding.cure)
        assert "\n" not in finding.found + finding.cure
    return [finding for finding in findings if finding.ok is False]
