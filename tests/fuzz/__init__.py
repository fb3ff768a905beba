"""A fuzzer of every parser of files: damaged files are read, or refused as promised.

``python -m tests.fuzz`` runs it; `parsers` lists the parsers with their oracles,
`mutations` damages files by their structure, `runner` checks each damaged file.
"""
