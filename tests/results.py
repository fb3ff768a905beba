"""Results of a long command, in a file from which the command goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path


def key_of(*parts: object) -> str:
    """Return a name for what a result depends on."""
    return sha256(repr(parts).encode()).hexdigest()[:24]


@dataclass
class Results:
    """Faults by key; with a path, of earlier runs too.

    A run that was killed may leave a part of a line, which is ignored.
    """

    path: Path | None = None
    faults: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text(encoding="utf-8").split("\n")[:-1]:
                row = json.loads(line)
                self.faults[row["key"]] = row["faults"]

    def add(self, key: str, name: str, faults: list[str]) -> None:
        """Keep a result, and append it to the file."""
        self.faults[key] = faults
        if self.path is not None:
            line = json.dumps({"key": key, "name": name, "faults": faults})
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
