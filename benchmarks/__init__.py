"""Benchmarks: clnet's kernels beside each other and beside other libraries.

Start reading at `command`. A study (`studies/`) lists trials: cases (`cases/`) and
their candidates, clnet's (`candidates`) and others' (`baselines/`); the `harness`
checks and times them; `report/` shows the rows.
"""
