"""Mutations: of bytes, of JSON values, of safetensors and of .npz files. Each takes a random.Random
and gives the same result for the same state of it."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

EDGES = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53)
HUGE = (*EDGES, 2**63 - 1, 2**63, 2**64 - 1, 10**30, 10**400)
TEXTS = (
    "", ".", "..", "../../../../etc/passwd", "/etc/passwd", "part-00001.safetensors", "a" * 5000,
    "\0", "\ud800", "٣", "9" * 5000, "%s%n", "nan", "O", "<U9", "F64", "I64", "BOOL", "F8_E4M3",
    "F4", "U64", "C64", "float64", "int64", "bool", "x.0", "x.99999", "edge_attr.0", "mask.train",
    "vertex-cut",
)  # fmt: skip
NESTED = "\ue000nested {}\ue001"  # stands for so many brackets: json.dumps would run out of stack


def pick_int(rng: random.Random) -> int:
    value = rng.choice(HUGE) if rng.random() < 0.7 else rng.randrange(40)
    return -value if rng.random() < 0.3 else value


# Bytes --------------------------------------------------------------------------------------------


def mutate_bytes(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """One to three changes. other: bytes that a piece may come from."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(BYTES)(rng, data, other)
    return data


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, 16, 64, 300)))


def _flip(rng: random.Random, data: bytes, other: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _write_int(rng: random.Random, data: bytes, other: bytes) -> bytes:
    size = rng.choice((1, 2, 4, 8))
    start = rng.randrange(max(1, len(data) - size))
    value = pick_int(rng) % 2 ** (8 * size)
    return data[:start] + value.to_bytes(size, "little") + data[start + size :]


def _cut(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _extend(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data + rng.choice((b"\0", b" ", b"\xff", other[:9])) * rng.choice((1, 8, 4096))


def _repeat(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 3, 50)) + data[end:]


def _zero(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + bytes([rng.choice((0, 0xFF))]) * (end - start) + data[end:]


def _drop(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    (start, end), (first, last) = _span(rng, data), _span(rng, other)
    return data[:start] + other[first:last] + data[end:]


BYTES: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    _flip, _flip, _flip, _write_int, _write_int, _cut, _extend, _repeat, _zero, _drop, _splice,
)  # fmt: skip


# JSON ---------------------------------------------------------------------------------------------


def pick_value(rng: random.Random) -> Any:
    return rng.choice((
        pick_int, pick_int, lambda r: r.choice(TEXTS), lambda r: r.choice(TEXTS),
        lambda r: r.choice((None, True, False, [], {}, [[]], [None], {"": {}})),
        lambda r: r.choice((1.5, 1e308, float("nan"), float("inf"), -0.0, 2.0)),
        lambda r: NESTED.format(r.choice((3, 200, 900, 980, 100_000))),
    ))(rng)  # fmt: skip


def mutate_json(rng: random.Random, value: Any) -> Any:
    """A copy with one to three changes."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holders = [*_containers(value)]
        if not holders:
            return pick_value(rng)
        _change(rng, rng.choice(holders), value)
    return value


def _containers(value: Any) -> list[Any]:
    if not isinstance(value, (dict, list)) or not value:
        return []
    inside = value.values() if isinstance(value, dict) else value
    return [value, *(found for item in inside for found in _containers(item))]


def _change(rng: random.Random, holder: Any, root: Any) -> None:
    keys = [*holder] if isinstance(holder, dict) else [*range(len(holder))]
    key, other = rng.choice(keys), rng.choice(keys)
    places = _containers(root)
    what = rng.choice(
        ("set", "set", "set", "near", "drop", "swap", "copy", "grow", "rename", "alien")
    )
    if what == "set":
        holder[key] = pick_value(rng)
    elif what == "near" and isinstance(holder[key], int):
        holder[key] += rng.choice((-1, 1, 8))
    elif what == "drop":
        del holder[key]
    elif what == "swap":
        holder[key], holder[other] = holder[other], holder[key]
    elif what == "copy":
        holder[key] = json.loads(json.dumps(holder[other]))
    elif what == "grow" and isinstance(holder, list):
        holder.extend(holder[:1] * rng.choice((1, 2, 500 if len(places) < 200 else 3)))
    elif what == "rename" and isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = holder.pop(key)
    else:
        holder[key] = json.loads(json.dumps(rng.choice(places)))


def to_text(rng: random.Random, value: Any) -> bytes:
    """As JSON; now and then a key twice, a byte order mark, other spacing."""
    text = json.dumps(value, indent=rng.choice((None, 2)))
    for depth in (3, 200, 900, 980, 100_000):
        quoted = json.dumps(NESTED.format(depth))
        if quoted in text:
            opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
            inside = "1" if opening != "[" else ""
            text = text.replace(quoted, opening * depth + inside + closing * depth)
    if rng.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = '{"' + rng.choice(("format", "version", "parts", "num_nodes")) + '": 1,' + text[1:]
    data = text.encode()
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0")) + data if rng.random() < 0.02 else data


# safetensors --------------------------------------------------------------------------------------


def split_tensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes after it."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join_tensors(rng: random.Random, header: Any, body: bytes, aligned: bool = True) -> bytes:
    text = to_text(rng, header)
    text += b" " * (-len(text) % 8 if aligned else rng.randrange(8))
    return struct.pack("<Q", len(text)) + text + body


SIZES = {
    "BF16": "<u2",
    "F32": "<u4",
    "F64": "<u8",
    "I32": "<i4",
    "I64": "<i8",
    "BOOL": "u1",
    "U8": "u1",
}


def mutate_tensors(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Any of the bytes, the header, its length, or an element of an array."""
    kind = rng.choice(("bytes", "header", "header", "length", "element", "element", "element"))
    if kind == "bytes":
        return mutate_bytes(rng, data, other)
    if kind == "length":
        return struct.pack("<Q", abs(pick_int(rng)) % 2**64) + data[8:]
    header, body = split_tensors(data)
    if kind == "header":
        return join_tensors(rng, mutate_json(rng, header), body, rng.random() < 0.8)
    names = [name for name in header if name != "__metadata__"]
    changed = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 5))):
        entry = header[rng.choice(names)]
        values = np.frombuffer(changed, dtype=SIZES[entry["dtype"]], count=(
            entry["data_offsets"][1] - entry["data_offsets"][0]
        ) // np.dtype(SIZES[entry["dtype"]]).itemsize, offset=entry["data_offsets"][0])  # fmt: skip
        if values.size:
            _change_element(rng, values)
    return data[: len(data) - len(body)] + bytes(changed)


def _change_element(rng: random.Random, values: Any) -> None:
    at, other = rng.randrange(values.size), rng.randrange(values.size)
    what = rng.choice(("near", "near", "swap", "copy", "set", "set"))
    bits = 8 * values.dtype.itemsize
    if what == "swap":
        values[at], values[other] = values[other], values[at]
    elif what == "copy":
        values[at] = values[other]
    else:
        value = int(values[at]) + rng.choice((-1, 1)) if what == "near" else pick_int(rng)
        signed = (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        values[at] = value % 2**bits if values.dtype.kind == "u" else signed


# npz ----------------------------------------------------------------------------------------------

Members = dict[str, bytes]
BOMB = 250_000_000  # bytes of zeros


def members(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(parts: Members, how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name), data, how)
    return out.getvalue()


@cache
def bomb(name: str, how: int) -> bytes:
    """An .npz of one array that inflates to far more than its size."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (BOMB,)}
    )
    return zipped({f"{name}.npy": header.getvalue() + bytes(BOMB)}, how)


def mutate_npz(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The archive's bytes, what its directory says, or what is in it, packed again."""
    kind = rng.choice(("bytes", "directory", "member", "member", "member", "member", "names"))
    if kind == "bytes":
        return mutate_bytes(rng, data, other)
    if kind == "directory":
        return _mutate_directory(rng, data)
    parts = members(data)
    name = rng.choice([*parts])
    if kind == "names":
        wrong = rng.choice(
            ("../x.npy", "/tmp/x.npy", "x", "x/", "node_type.npy", "num_nodes.npy", "")
        )
        parts[wrong] = parts[name] if rng.random() < 0.5 else parts.pop(name)
        return zipped(parts)
    parts[name] = _mutate_npy(rng, parts[name])
    how = (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
    return zipped(parts, rng.choice(how))


def _mutate_directory(rng: random.Random, data: bytes) -> bytes:
    """A field of 2 or 4 bytes of an entry of the central directory, or of its end."""
    places = [i for i in range(len(data)) if data.startswith((b"PK\1\2", b"PK\5\6"), i)]
    place = rng.choice(places)
    size = rng.choice((2, 4))
    at = place + rng.randrange(4, 44, 2)
    value = pick_int(rng) % 256**size
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


DESCRIPTORS = (
    "'|O'", "'<i4'", "'>i4'", "'<u4'", "'<u8'", "'<f2'", "'<f16'", "'<c16'", "'|S9'", "'<U3'",
    "'|V8'", "'<M8[s]'", "'|b1'", "'|u1'", "'<f8'", "[('a', '<i4')]", "'|V999999999'",
    "'zz'", "3", "None",
)  # fmt: skip
SHAPES = (
    "()", "(1,)", "(2, 3)", "(-1,)", "(0,)", "(2, 0)", "(1000000000000,)", "(2, 500000000)",
    "(99999999999999999999,)", "(4294967296, 4294967296)", "(1,) * 9", "'x'", "(1.5,)", "(True,)",
    "(" + "1," * 70 + ")",
)  # fmt: skip


def _mutate_npy(rng: random.Random, data: bytes) -> bytes:
    end = data.index(b"\n") + 1
    kind = rng.choice(("bytes", "descr", "shape", "fortran", "order", "values", "values", "text"))
    if kind == "bytes":
        return mutate_bytes(rng, data)
    text, body = data[10:end].decode("latin1"), data[end:]
    told = np.lib.format.read_array_header_1_0(io.BytesIO(data[8:]))
    shape, descr = repr(told[0]), repr(np.lib.format.dtype_to_descr(told[2]))
    if kind == "values" and body and not told[2].hasobject:
        values = np.frombuffer(bytearray(body), dtype=f"<u{told[2].itemsize}")
        _change_element(rng, values)
        return data[:end] + values.tobytes()
    text = {
        "descr": text.replace(descr, rng.choice(DESCRIPTORS)),
        "shape": text.replace(shape, rng.choice(SHAPES)),
        "order": text.replace(shape, repr(told[0][::-1])),
        "fortran": text.replace("False", rng.choice(("True", "1", "None"))),
        "text": mutate_bytes(rng, text.encode("latin1")).decode("latin1"),
    }.get(kind, text)
    length = rng.choice((len(text), len(text), len(text), 65535, 0))
    return data[:8] + struct.pack("<H", length & 0xFFFF) + text.encode("latin1") + body
