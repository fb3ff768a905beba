"""Mutations guided by coverage, with atheris (the extra ``fuzz``)."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random


def guided(name: str, folder: Path, seed: int) -> int:
    """Fuzz one parser until libFuzzer is stopped; a failing file ends the run.

    New files are kept in a corpus below the folder, which the next run starts from.
    """
    import atheris

    with atheris.instrument_imports(include=["clnet.formats", "clnet.training.history",
                                             "clnet.opencl.store"]):
        import clnet.formats
        import clnet.opencl.store
        import clnet.training.history  # noqa: F401
    from .parsers import PARSERS
    from .runner import Tally, check, limit_memory, seeds

    corpus = folder / f"corpus-{name}"
    corpus.mkdir(parents=True, exist_ok=True)
    good = seeds(name)
    for number, content in enumerate(good):
        (corpus / f"seed-{number}").write_bytes(content)
    parser, tally, rng = PARSERS[name], Tally(name, seed), Random(seed)
    path = folder / f"guided-{name}{parser.suffix}"

    def one(content: bytes) -> None:
        path.write_bytes(content or b"\0")
        check(parser, path, content, tally, rng, 0.0, measured=False)

    def mutated(content: bytes, most: int, number: int) -> bytes:
        made = Random(number)
        if made.random() < 0.3:
            return bytes(atheris.Mutate(content, most))
        return parser.mutate(made, content, good)[:most]

    limit_memory()
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-seed={seed or 1}", "-max_len=65536",
         f"-artifact_prefix={folder}/"], one, custom_mutator=mutated,
    )
    atheris.Fuzz()
    return 0
