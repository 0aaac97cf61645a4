"""``graph.json`` of a partitioned folder: what is in it, and every check of it.

Keys: format, version, name, num_nodes, num_edges, num_features, num_classes, num_parts, placement,
fingerprint, fields (name, dtype, shape), parts (file, nodes, edges, labelled, bytes, sha256), and
checksum: sha256 of all the others, so that a changed number is noticed. Version 2 adds
num_relations; and node_types (name, num_features, num_classes, part_nodes) and relations (source,
name, target, part_edges), which are empty where nodes have no types. Names of types are nowhere
else: arrays go by the index of their type. Version 3, which only vertex cuts have, adds part_held,
and dst_part to the arrays of a part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fullgraph.graph.parts import (
    EDGE_FIELDS,
    MASK,
    NODE_FIELDS,
    PLACEMENTS,
    VERTEX_CUT,
    Field,
    GraphMeta,
    NodeTypeMeta,
    RelationMeta,
)
from fullgraph.graph.plain_file import parse_json, plain_file
from fullgraph.graph.whole import SPLITS

FORMAT = "fullgraph-partitioned"
# A graph is written as the first version that can express it, so that an older fullgraph reads
# what it can: 1, with types 2, as a vertex cut 3.
VERSION = 3
FILE = "graph.json"
FIELD_NAMES = (*NODE_FIELDS, *EDGE_FIELDS, *(MASK + key for key in SPLITS))
FLOATS = ("bfloat16", "float32", "float64")
DTYPES = (*FLOATS, "int64", "bool")
COUNTS = ("num_nodes", "num_edges", "num_features", "num_classes", "num_parts")


class GraphFolderError(ValueError):
    """A partitioned folder cannot be used or written; says which file, why, and what to do."""


@dataclass(frozen=True)
class PartFile:
    """One line of the part table; ``sha256`` is of the whole file, in hex."""

    file: str
    nodes: int
    edges: int
    labelled: int
    bytes: int
    sha256: str


def part_file_name(k: int) -> str:
    return f"part-{k:05d}.safetensors"


def expected_arrays(meta: GraphMeta, k: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of every array that the file of part k holds."""
    nodes, edges = meta.part_nodes[k], meta.part_edges[k]
    yield "node_id", "int64", (nodes,)
    yield "source_offsets", "int64", (meta.num_parts + 1,)
    yield "src", "int32", (edges,)
    yield "dst", "int32", (edges,)
    yield "edge_id", "int64", (edges,)
    if meta.placement == VERTEX_CUT:
        yield "dst_part", "int32", (edges,)
    for field in meta.fields:
        rows = edges if field.of_edges else nodes
        if field.of is not None and field.of_edges:
            rows = meta.relations[field.of].part_edges[k]
        elif field.of is not None:
            rows = meta.node_types[field.of].part_nodes[k]
        yield field.name, field.dtype, (rows, *field.shape)


def write_manifest(path: Path, meta: GraphMeta, files: list[PartFile]) -> None:
    cut = meta.placement == VERTEX_CUT
    version = 3 if cut else 2 if meta.field("edge_type") is not None else 1
    content: dict[str, Any] = {"format": FORMAT, "version": version, "name": meta.name}
    content |= {key: getattr(meta, key) for key in COUNTS}
    if version > 1:
        content["num_relations"] = meta.num_relations
        content["node_types"] = [asdict(node_type) for node_type in meta.node_types]
        content["relations"] = [asdict(relation) for relation in meta.relations]
    if cut:
        content["part_held"] = list(meta.part_held)
    content |= {"placement": meta.placement, "fingerprint": meta.fingerprint}
    content["fields"] = [asdict(field) for field in meta.fields]
    content["parts"] = [asdict(file) for file in files]
    content["checksum"] = _checksum(content)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _checksum(content: dict[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: Path) -> tuple[GraphMeta, tuple[PartFile, ...]]:
    """What `write_manifest` wrote. Raises GraphFolderError for anything else."""
    content = _parse(path)
    if content.get("format") != FORMAT:
        raise GraphFolderError(f"{path} is not the description of a partitioned fullgraph graph")
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise GraphFolderError(f"{path}: version is {version!r}, not a version number")
    if version > VERSION:
        raise GraphFolderError(
            f"{path} has format version {version}; this fullgraph reads up to {VERSION}. "
            "Upgrade it: pip install --upgrade fullgraph"
        )
    if content.get("checksum") != _checksum(content):
        raise GraphFolderError(
            f"{path} was damaged or changed by hand (its checksum does not fit); restore it, or "
            "partition the graph again"
        )
    try:
        return _build(content)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise GraphFolderError(f"{path} is not valid: {reason}; partition it again") from error


def _parse(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(plain_file(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise GraphFolderError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise GraphFolderError(
            f"{path} is damaged: it is not JSON ({error}); restore it, or partition again"
        ) from error
    if not isinstance(content, dict):
        raise GraphFolderError(f"{path} is not the description of a partitioned fullgraph graph")
    return content


def _build(content: dict[str, Any]) -> tuple[GraphMeta, tuple[PartFile, ...]]:
    counts = {key: _count(content, key) for key in COUNTS}
    files = tuple(_part_file(k, entry) for k, entry in enumerate(content["parts"]))
    typed = content["version"] > 1
    node_types = tuple(_node_type(entry) for entry in content["node_types"]) if typed else ()
    relations = tuple(_relation(entry) for entry in content["relations"]) if typed else ()
    num_types = {False: len(node_types), True: len(relations)}
    num_relations = _count(content, "num_relations") if typed else 0
    fields = tuple(_field(entry, num_types) for entry in content["fields"])
    for key, listed in (
        ("num_parts", len(files)),
        ("num_nodes", sum(file.nodes for file in files)),
        ("num_edges", sum(file.edges for file in files)),
    ):
        if counts[key] != listed:
            raise ValueError(f"{key} is {counts[key]}, but the parts add up to {listed}")
        if counts[key] < 1 and key != "num_edges":
            raise ValueError(f"{key} is 0; a graph has at least one")
    placement = _placement(content, typed=bool(node_types))
    _check_fields(counts, fields, node_types)
    if node_types:
        _check_types(files, node_types, relations, num_relations)
    held = content["part_held"] if placement == VERTEX_CUT else ()
    part_held = tuple(_count({"part_held": n}, "part_held") for n in held)
    if placement == VERTEX_CUT:
        _check_held(files, part_held, counts["num_nodes"])
    meta = GraphMeta(
        name=_text(content, "name"),
        **counts,
        part_nodes=tuple(file.nodes for file in files),
        part_edges=tuple(file.edges for file in files),
        part_labelled=tuple(file.labelled for file in files),
        fields=fields,
        fingerprint=_text(content, "fingerprint"),
        placement=placement,
        part_held=part_held,
        num_relations=num_relations,
        node_types=node_types,
        relations=relations,
    )
    return meta, files


def _placement(content: dict[str, Any], typed: bool) -> str:
    placement = _text(content, "placement")
    if placement not in PLACEMENTS:
        raise ValueError(f"placement {placement!r} is not one of {PLACEMENTS}")
    if (placement == VERTEX_CUT) != (content["version"] == 3):
        raise ValueError(f"placement {placement!r} does not go with version {content['version']}")
    if placement == VERTEX_CUT and typed:
        raise ValueError("a vertex cut has no node types")
    return placement


def _check_held(files: tuple[PartFile, ...], part_held: tuple[int, ...], num_nodes: int) -> None:
    """Raise ValueError unless each part holds at least the nodes that it has, at most all."""
    if len(part_held) != len(files):
        raise ValueError("part_held does not have a count for each part")
    for k, (held, file) in enumerate(zip(part_held, files)):
        if not file.nodes <= held <= num_nodes:
            raise ValueError(
                f"part {k} holds {held} nodes, which is not {file.nodes} (its own) .. {num_nodes}"
            )


def _part_file(k: int, entry: dict[str, Any]) -> PartFile:
    # Only this name, so that no name can lead out of the folder.
    if entry["file"] != part_file_name(k):
        raise ValueError(f"part {k} is in {entry['file']!r}, not in {part_file_name(k)!r}")
    counts = {key: _count(entry, key) for key in ("nodes", "edges", "labelled", "bytes")}
    if counts["labelled"] > counts["nodes"]:
        raise ValueError(f"part {k} has {counts['nodes']} nodes, of which more are labelled")
    return PartFile(file=entry["file"], **counts, sha256=_text(entry, "sha256"))


def _node_type(entry: dict[str, Any]) -> NodeTypeMeta:
    counts = tuple(_count({"part_nodes": n}, "part_nodes") for n in entry["part_nodes"])
    features, classes = _count(entry, "num_features"), _count(entry, "num_classes")
    return NodeTypeMeta(_text(entry, "name"), features, classes, counts)


def _relation(entry: dict[str, Any]) -> RelationMeta:
    counts = tuple(_count({"part_edges": n}, "part_edges") for n in entry["part_edges"])
    source, name, target = (_text(entry, key) for key in ("source", "name", "target"))
    return RelationMeta(source, name, target, counts)


def _check_types(
    files: tuple[PartFile, ...],
    node_types: tuple[NodeTypeMeta, ...],
    relations: tuple[RelationMeta, ...],
    num_relations: int,
) -> None:
    """Raise ValueError unless the types of a part add up to what the part has."""
    if num_relations != len(relations):
        raise ValueError(f"num_relations is {num_relations}, but {len(relations)} are listed")
    known = {node_type.name for node_type in node_types}
    for relation in relations:
        if not {relation.source, relation.target} <= known:
            raise ValueError(f"relation {relation.key} is between types that are not there")
    for what, listed, per_part in (
        ("node types", [t.part_nodes for t in node_types], [file.nodes for file in files]),
        ("relations", [r.part_edges for r in relations], [file.edges for file in files]),
    ):
        if any(len(counts) != len(files) for counts in listed):
            raise ValueError(f"the {what} do not have a count for each part")
        if [sum(counts) for counts in zip(*listed)] != per_part and (listed or any(per_part)):
            raise ValueError(f"the {what} do not add up to what the parts have")


def _field(entry: dict[str, Any], num_types: dict[bool, int]) -> Field:
    """num_types: how many node types (False) and relations (True) there are."""
    field = Field(_text(entry, "name"), entry["dtype"], ())
    of = field.of
    known = field.base in FIELD_NAMES and entry["dtype"] in DTYPES
    if of is not None:
        known &= of < num_types[field.of_edges] and field.name == f"{field.base}.{of}"
    if not known:
        raise ValueError(f"field {entry['name']!r} of dtype {entry['dtype']!r} is unknown")
    shape = tuple(_count({"shape": size}, "shape") for size in entry["shape"])
    return Field(entry["name"], entry["dtype"], shape)


def _check_fields(
    counts: dict[str, int], fields: tuple[Field, ...], node_types: tuple[NodeTypeMeta, ...]
) -> None:
    """Raise ValueError unless arrays are as in `WholeGraph`, each once; where nodes have types, all
    but edge_type are of one type."""
    names = {field.name for field in fields}
    if len(names) < len(fields):
        raise ValueError("an array is listed twice")
    widths = {f"x.{t}": kind.num_features for t, kind in enumerate(node_types)}
    for name, width in {"x": counts["num_features"], **widths}.items():
        if width and name not in names:
            raise ValueError(f"there are {width} features, but no array {name!r}")
    if node_types and "edge_type" not in names:
        raise ValueError("there are node types, but no array 'edge_type'")
    for field in fields:
        of_one_type = bool(node_types) and field.base != "edge_type"
        sizes = counts if field.of is None or field.of_edges else asdict(node_types[field.of])
        if of_one_type != (field.of is not None) or not _fits(field, sizes):
            raise ValueError(
                f"array {field.name!r} cannot be {field.dtype} of shape {list(field.shape)} a row"
            )


def _fits(field: Field, sizes: dict[str, Any]) -> bool:
    """sizes: has num_features and num_classes."""
    is_float, shape = field.dtype in FLOATS, field.shape
    if field.base == "x":
        return is_float and shape == (sizes["num_features"],)
    if field.base == "y" and is_float:
        return shape == (sizes["num_classes"],)
    if field.base == "edge_attr":
        return is_float and len(shape) == 1
    if field.base == "edge_weight":
        return is_float and shape == ()
    wanted = "int64" if field.base in ("y", "edge_type") else "bool"
    return field.dtype == wanted and shape == ()


def _count(entry: dict[str, Any], key: str) -> int:
    value = entry[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key} is {value!r}, not a count")
    return value


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, not a text")
    return value
