"""``clnet doctor``: examine the OpenCL set-up, name faults and their cures.

`drivers`, `caches` and `devices` yield findings; `probe` runs a kernel in a child.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from clnet.cli import json_output
from clnet.cli.doctor import probe
from clnet.cli.doctor.caches import cache_findings
from clnet.cli.doctor.devices import device_finding, gpu_findings, platform_findings
from clnet.cli.doctor.drivers import icd_files, icd_findings, nvidia_findings
from clnet.cli.doctor.finding import Finding
from clnet.errors import WIDTH, counted
from clnet.opencl.child_process import run_child
from clnet.opencl.discovery import discover


def examine() -> Iterator[Finding]:
    """Examine set-up, from the files that name drivers to a kernel on each device."""
    files = icd_files()
    yield from icd_findings(files)
    yield from nvidia_findings(files)
    yield from cache_findings()
    outcome = run_child(probe.COMMAND)
    if outcome:
        yield Finding(
            "platforms",
            False,
            f"the query of OpenCL's platforms failed: {outcome}",
            "move the .icd files away one by one to find the faulty driver, then update"
            " or remove it",
        )
        return
    yield from platform_findings(files)
    yield from gpu_findings(discover().devices)
    for main in discover().devices:
        for one in main.places:
            yield device_finding(one)


def report(as_json: bool = False) -> int:
    """Print every finding, `WIDTH` columns wide unless a word is longer."""
    if as_json:
        findings = list(examine())
        bad = sum(finding.ok is False for finding in findings)
        json_output.show({"findings": [*map(asdict, findings)], "faults": bad})
        return 1 if bad else 0
    marks = {True: "ok", False: "BAD", None: "note"}
    bad = 0
    for finding in examine():
        bad += finding.ok is False
        text = f"{finding.subject}: {finding.found}"
        print(_wrapped(f"{marks[finding.ok]:4}  ", text))
        if finding.cure:
            print(_wrapped("      -> ", finding.cure))
    print(f"\n{counted(bad, 'thing')} to cure." if bad else "\nAll is well.")
    return 1 if bad else 0


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )
