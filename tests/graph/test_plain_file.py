from __future__ import annotations

import json

import pytest

from fullgraph.graph.plain_file import DEPTH, parse_json


@pytest.mark.parametrize(
    "value", [None, 1.5, "text", [], {}, [[], {}, "ab", [1, {"a": {"b": [None, True]}}]]]
)
def test_json_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("depth", [DEPTH - 1, DEPTH + 1, 900, 980, 100_000])
def test_json_is_nested_so_deep_and_no_deeper(opening: str, closing: str, depth: int) -> None:
    text = opening * depth + ("1" if closing == "}" else "") + closing * depth
    if depth < DEPTH:
        json.dumps(parse_json(text))
        return
    with pytest.raises(ValueError, match="nested more than 300 deep"):
        parse_json(text)
