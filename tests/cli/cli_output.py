"""Outputs of commands, and findings of the doctor."""

from clnet.errors import WIDTH


def ok(result):
    """Return the output of a command that must succeed."""
    status, out, err = result
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= WIDTH
    return out


def bad(findings):
    """Return the findings that are bad; they have a cure, and good ones none."""
    findings = list(findings)
    for finding in findings:
        assert (finding.ok is True) == (not finding.cure)
        assert "\n" not in finding.found + finding.cure
    return [finding for finding in findings if finding.ok is False]
