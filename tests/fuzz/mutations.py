"""Mutations of files: of their bytes, their numbers, and the structure of formats.

Each takes a random generator, a file's content, and other files' contents to splice
with, and returns damaged content.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]

NUMBERS = [
    b"0", b"1", b"2", b"-1", b"3.5", b"-0", b"1e30", b"1e39", b"1e400", b"-1e400",
    b"1e-400", b"nan", b"-inf", b"infinity", b"0x1.8p3", b"0x", b".", b"1e", b"+7",
    b"2147483647", b"2147483648", b"4294967295", b"4294967296", b"1_0", b"1,5",
    b"18446744073709551616", b"9" * 400, b"1" * 3000 + b"x", "٣".encode(), b"",
]
BYTES = [b"\0", b"\n", b"\r", b"\x1b[2J", b"\xff", b"\xc3", b"(", b")", b",", b"=",
         b'"', b"{", b"[", b" ", b"\t", b"\xef\xbb\xbf", b"-", b"e", b"x"]
VALUES: list[Any] = [
    0, 1, 2, -1, 3, 7, 0.5, -2.5, 1e300, 10**400, 2**31 - 1, 2**31, 2**32, 2**40,
    2**63, True, False, None, "", "x", "\x1b[2J", "y" * 5000, [], {}, [0], [0, 1],
    [[0]], {"a": 1}, "dense", "sparse", "local", "csr", "ell", "dia", "sell", "hyb",
    "relu", "softmax", "shared", "float64", "F32", "I32", "F64", "BF16", "F8_E4M3",
]
LARGEST = 1 << 16  # bytes of a text that is changed
_TOKEN = re.compile(rb"[-+.\w]*\d[-+.\w]*")
_NPY = b"\x93NUMPY"


def binary(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change bytes: one to a few, or a span."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 4, 8, rng.randrange(1, 200))))
        kind = rng.randrange(8)
        if kind == 0:
            del data[at:end]
        elif kind == 1:
            data[at:at] = data[at:end]
        elif kind == 2:
            data[at:at] = rng.choice(BYTES)
        elif kind == 3:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data[at:end] = other[start : start + end - at]
        elif kind == 4:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice((0, 1, 2**7, 2**15, 2**31, 2**63 - 1, 2**64 - 1))
            data[at : at + size] = (number % 256**size).to_bytes(size, "little")
        elif kind == 5 and rng.random() < 0.2:
            del data[at:]
        elif at < len(data):
            data[at] = rng.randrange(256) if kind == 6 else data[at] ^ (
                1 << rng.randrange(8))
    return bytes(data)


def text(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change numbers, mostly; or lines, or bytes."""
    kind = rng.randrange(10)
    if kind < 6 and (tokens := list(_TOKEN.finditer(content))):
        for _ in range(rng.choice((1, 1, 2))):
            token = rng.choice(tokens)
            number = token[0]
            if kind < 3:  # stays a number
                at = rng.randrange(len(number))
                number = number[:at] + b"%d" % rng.randrange(10) + number[at + 1 :]
            elif kind == 3:
                number = rng.choice(tokens)[0]
            elif kind == 4:
                number = rng.choice(NUMBERS)
            else:
                number = rng.choice((b"", number + b" " + number, b" " + number))
            start, end = token.span()
            if content[start:end] == token[0]:
                content = content[:start] + number + content[end:]
        return content
    if kind < 8:
        lines = content.splitlines(keepends=True) or [b""]
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        change = rng.randrange(4)
        if change == 0:
            del lines[at]
        elif change == 1:
            lines.insert(at, lines[other])
        elif change == 2:
            lines[at], lines[other] = lines[other], lines[at]
        else:
            blank = rng.choice((b"\n", b"\r\n", b"\t", b"  ", b"\v"))
            lines[at] = lines[at].replace(b" ", blank, 1)
        return b"".join(lines)
    return binary(rng, content, others)


def gzipped(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change the text within, or the stream."""
    try:
        inner = gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return binary(rng, content, others)
    if rng.random() < 0.3:
        return binary(rng, content, others)
    if rng.random() < 0.01:
        return gzip.compress(inner + b" " * rng.randrange(1 << 22), 1, mtime=0)
    inner = inner[:LARGEST]
    return gzip.compress(text(rng, inner, [inner]), 1, mtime=0)


def archive(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change an array, its header, the members, or the bytes of an ``.npz`` file."""
    if rng.random() < 0.3:
        return binary(rng, content, others)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            members = {name: file.read(name) for name in file.namelist()}
    except Exception:
        return binary(rng, content, others)
    name = rng.choice(sorted(members) or ["x.npy"])
    member, kind = members.get(name, b""), rng.randrange(8)
    if kind == 0:
        members.pop(name, None)
    elif kind == 1:
        members[rng.choice(("t.npy", "x", "y.npy", "seed.npy", "\x1b.npy"))] = member
    elif kind == 2:
        members[name] = text(rng, member[:128], [member]) + member[128:]
    elif kind == 3:
        members[name] = with_header(rng, member)
    elif kind == 4:
        members[name] = _as_npy(rng.choice(VALUES))
    else:  # an array of other numbers
        start = min(128, len(member))
        members[name] = member[:start] + binary(rng, member[start:], [member])
        if kind > 5:
            members[name] = members[name][: len(member)].ljust(len(member), b"\0")
    made = io.BytesIO()
    compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED,
                              zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(made, "w", compression) as file:
        for key, value in members.items():
            file.writestr(key, value)
    return made.getvalue()


def with_header(rng: Random, member: bytes) -> bytes:
    """Return an array whose header announces something else."""
    header = io.BytesIO()
    shape = tuple(
        rng.choice((0, 1, 2, 3, 9, 10**9, 2**40, 2**62, -1))
        for _ in range(rng.choice((0, 1, 2, 2, 3, 33, 70)))
    )
    fields = {
        "descr": rng.choice(("<f4", "<f8", ">f8", "<i8", "|u1", "<f2", "|b1", "<U0",
                             "|V0", "|O", "<c16", "<f16", "|S9", "<M8[s]")),
        "fortran_order": rng.random() < 0.5, "shape": shape,
    }
    writers = (np.lib.format.write_array_header_1_0,
               np.lib.format.write_array_header_2_0)
    try:
        rng.choice(writers)(header, fields)
    except (ValueError, TypeError):
        return member
    return header.getvalue() + member[128:]


def _as_npy(value: Any) -> bytes:
    made = io.BytesIO()
    array = np.asarray(value) if not isinstance(value, dict) else np.zeros(3)
    np.lib.format.write_array(made, array.astype(str) if array.dtype == object
                              else array)
    return made.getvalue()


def safetensors(
    rng: Random, content: bytes, others: Sequence[bytes], key: str = "clnet"
) -> bytes:
    """Change a value of the header or the description, the tensors, or the bytes."""
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
        description = json.loads(header["__metadata__"][key])
    except (ValueError, TypeError, LookupError, RecursionError):
        return binary(rng, content, others)
    data, kind = content[8 + length :], rng.randrange(10)
    if kind == 0:
        return binary(rng, content, others)
    if kind < 4:
        changed = binary(rng, data, [data])
        return content[: 8 + length] + changed[: len(data)].ljust(len(data), b"\0")
    if kind < 8:
        change(rng, description)
    elif kind == 8:
        change(rng, header)
    try:
        described = json.dumps(description)
        if kind == 9:
            described = rng.choice((
                "[" * 2000 + "]" * 2000, described.replace("1", "9" * 400, 1),
                text(rng, described.encode(), others).decode("utf-8", "replace"),
            ))
        if kind != 8:
            header["__metadata__"][key] = described
        made = json.dumps(header).encode()
    except (ValueError, TypeError, LookupError):
        return binary(rng, content, others)
    return struct.pack("<Q", len(made)) + made + data


def checkpoint(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change the training of a checkpoint, as `safetensors` does the network."""
    return safetensors(rng, content, others, "clnet.training")


def change(rng: Random, tree: Any) -> None:
    """Change one value, at random depth, of nested lists and dictionaries."""
    parent = tree
    while True:
        keys = range(len(parent)) if isinstance(parent, list) else sorted(parent)
        if not keys:
            return
        key = rng.choice(keys)
        child = parent[key]
        if not isinstance(child, (list, dict)) or not child or rng.random() < 0.2:
            break
        parent = child
    kind = rng.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, parent[rng.randrange(len(parent))])
    elif kind == 2 and isinstance(child, (int, float)) and abs(child) < 1e300:
        parent[key] = child + rng.choice((1, -1, 0.5))
    elif kind == 3 and isinstance(parent, dict):
        parent[rng.choice(("n_out", "x", "window", "density", "pattern"))] = child
    elif kind == 4 and isinstance(parent, list) and isinstance(child, int):
        parent[key] = rng.choice((*range(10), -1, 2**31, 2**63))
    else:
        parent[key] = rng.choice(VALUES)
