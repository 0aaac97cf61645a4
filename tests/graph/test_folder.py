from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fullgraph.graph import check_part
from fullgraph.graph import folder as module
from fullgraph.graph.folder import GraphFolderError, PartitionedFolder, save
from fullgraph.graph.partition import PartitionedInMemory, PartitionedVertexCut, partition
from fullgraph.graph.parts import Part
from fullgraph.graph.whole import WholeGraph
from tests.data import shared_data
from tests.graph.small import graph, random_cut, random_graph, star, with_types


def assert_same(found: Part, wanted: Part) -> None:
    assert vars(found).keys() == vars(wanted).keys()
    for key, value in vars(wanted).items():
        other = getattr(found, key)
        pairs = {key: (other, value)}
        if key == "masks":
            assert list(other) == list(value)
            pairs = {name: (other[name], value[name]) for name in value}
        for name, (one, two) in pairs.items():
            if isinstance(two, Tensor):
                assert one.dtype == two.dtype, name
                assert torch.equal(one, two), name
            else:
                assert one == two, name


GRAPHS: dict[str, Callable[[], WholeGraph]] = {
    "multigraph": lambda: random_graph(60, 900),
    "star": lambda: star(50),
    "no edges": lambda: graph([], num_nodes=10),
    "one node": lambda: graph([(0, 0)], num_nodes=1),
    "edges alone": lambda: WholeGraph("bare", torch.tensor([[0], [1]]), 3),
    "several labels": lambda: replace(
        graph([(0, 1)], 9), y=torch.ones(9, 4, dtype=torch.float64), num_classes=4
    ),
    "bfloat16": lambda: replace(graph([(0, 1)], 9), x=torch.randn(9, 3).bfloat16()),
    "float64": lambda: replace(graph([(0, 1)], 9), x=torch.randn(9, 3, dtype=torch.float64)),
    "typed edges": lambda: with_types(random_graph(60, 900)),
    "no features": lambda: replace(graph([(0, 1)], 9), x=torch.zeros(9, 0)),
}


@pytest.mark.parametrize("num_parts", [1, 3, 12])
@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_saved_is_opened(name: str, num_parts: int, tmp_path: Path) -> None:
    whole = GRAPHS[name]()
    partitioned = partition(whole, num_parts)
    save(partitioned, tmp_path / "graph")
    opened = PartitionedFolder.open(tmp_path / "graph")
    opened.verify()
    assert opened.meta == partitioned.meta
    for k in range(num_parts):
        assert_same(opened.part(k), partitioned.part(k))


@pytest.mark.parametrize("num_parts", [1, 3, 12])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_vertex_cut_that_is_saved_is_opened(name: str, num_parts: int, tmp_path: Path) -> None:
    cut = random_cut(GRAPHS[name](), num_parts)
    save(cut, tmp_path / "cut")
    opened = PartitionedFolder.open(tmp_path / "cut")
    opened.verify()
    assert opened.meta == cut.meta
    for k in range(num_parts):
        assert_same(opened.part(k), cut.part(k))
    save(opened, tmp_path / "again")
    assert PartitionedFolder.open(tmp_path / "again").meta == cut.meta


ROWS = random_cut(random_graph(60, 900), 3).meta.part_nodes[0]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dst_part", 3, r"dst_part\[5\] is 3, but there are 3 parts"),
        ("dst_part", -1, r"dst_part\[5\] is -1, but there are 3 parts"),
        ("dst", ROWS, rf"dst\[5\] is {ROWS} in part 0, but there are {ROWS} rows"),
        ("dst", -1, r"dst\[5\] is -1 in part 0, but there are \d+ rows"),
    ],
)
def test_an_edge_of_a_vertex_cut_that_leads_nowhere_is_refused_when_it_is_loaded(
    name: str, value: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_part, "CHUNK", 4)

    class Wrong(PartitionedVertexCut):
        def part(self, k: int) -> Part:
            part = super().part(k)
            if k == 1:
                getattr(part, name)[5] = value
            return part

    cut = random_cut(random_graph(60, 900), 3)
    save(Wrong(cut.graph, cut.assignment, cut.edge_part, 3), tmp_path / "cut")
    opened = PartitionedFolder.open(tmp_path / "cut")
    opened.part(0)
    for load in (lambda: opened.part(1), lambda: opened.part(1), opened.verify):
        with pytest.raises(GraphFolderError, match=f"{PART} is not valid: {message}"):
            load()
    unchecked = PartitionedFolder.open(tmp_path / "cut", check=False)
    assert int(getattr(unchecked.part(1), name)[5]) == value


@pytest.fixture(scope="module")
def cora() -> PartitionedInMemory:
    return partition(shared_data("cora"), 3)


@pytest.fixture
def path(cora: PartitionedInMemory, tmp_path: Path) -> Path:
    save(cora, tmp_path / "cora")
    return tmp_path / "cora"


def test_a_folder_can_be_copied_from_a_folder_and_moved(path: Path) -> None:
    opened = PartitionedFolder.open(path)
    part = opened.part(2)
    save(opened, path, overwrite=True)
    moved = PartitionedFolder.open(path.rename(path.with_name("moved")))
    assert moved.meta == opened.meta
    assert_same(moved.part(2), part)
    with pytest.raises(GraphFolderError, match=r"part-00002.safetensors is missing"):
        opened.part(2)


def test_only_typed_graphs_need_a_fullgraph_that_knows_them(path: Path) -> None:
    assert json.loads((path / "graph.json").read_text())["version"] == 1
    save(partition(with_types(star(9)), 2), path, overwrite=True)
    assert json.loads((path / "graph.json").read_text())["version"] == 2
    assert PartitionedFolder.open(path).meta.num_relations == 4


def test_files_are_readable_by_whom_the_folder_is(path: Path) -> None:
    modes = {file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert modes == {path.stat().st_mode & 0o666}


def test_nothing_in_a_folder_is_pickled(path: Path) -> None:
    assert sorted(file.suffix for file in path.iterdir()) == [".json", *[".safetensors"] * 3]


def test_writing_to_a_loaded_part_leaves_the_file_alone(path: Path) -> None:
    opened = PartitionedFolder.open(path)
    part = opened.part(0)
    part.x.fill_(7)  # type: ignore[union-attr]
    opened.verify()
    assert not torch.equal(opened.part(0).x, part.x)  # type: ignore[arg-type]


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 16
    file.write_bytes(bytes(data))


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def swap_parts(folder: Path) -> None:
    one, two = folder / "part-00000.safetensors", folder / "part-00001.safetensors"
    content = json.loads((folder / "graph.json").read_text())
    data = one.read_bytes(), two.read_bytes()
    one.write_bytes(data[1])
    two.write_bytes(data[0])
    sizes = [part["bytes"] for part in content["parts"]]
    assert sizes[0] != sizes[1]


PART = "part-00001.safetensors"
ON_OPENING = [
    (lambda p: (p / "graph.json").unlink(), "has no graph.json"),
    (lambda p: cut(p / "graph.json", 300), "graph.json is damaged"),
    (lambda p: flip(p / "graph.json", 200), "graph.json"),
    (lambda p: (p / PART).unlink(), f"{PART} is missing"),
    (lambda p: cut(p / PART, 1000), f"{PART} has 1000 bytes instead of"),
    (lambda p: cut(p / PART, 0), f"{PART} has 0 bytes instead of"),
    (lambda p: (p / PART).open("ab").close() or (p / PART).write_bytes(b"x"), "has 1 bytes"),
    (lambda p: flip(p / PART, 2), f"{PART} is damaged"),
    (lambda p: flip(p / PART, 12), PART),
    (swap_parts, "has .* bytes instead of"),
]


@pytest.mark.parametrize(("spoil", "message"), ON_OPENING)
def test_a_folder_that_is_not_whole_is_refused_on_opening(
    path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(path)
    with pytest.raises(GraphFolderError, match=message):
        PartitionedFolder.open(path)


@pytest.mark.parametrize("kind", ["missing", "a file", "empty", "foreign"])
def test_what_is_no_partitioned_folder_is_refused(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "graph"
    if kind == "a file":
        target.write_text("")
    elif kind != "missing":
        target.mkdir()
    if kind == "foreign":
        (target / "graph.json").write_text('{"nodes": [], "links": []}')
    with pytest.raises(
        GraphFolderError, match=r"is not a (folder|partitioned)|not the descr|no gra"
    ):
        PartitionedFolder.open(target)


def test_a_part_of_another_graph_is_refused(path: Path, tmp_path: Path) -> None:
    other = partition(shared_data("cora"), 3)
    other.graph.x[0, 0] += 1  # type: ignore[index]
    save(other, tmp_path / "other")
    (path / PART).write_bytes((tmp_path / "other" / PART).read_bytes())
    with pytest.raises(GraphFolderError, match=f"{PART} is not part 1 of this graph"):
        PartitionedFolder.open(path)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.999999])
def test_a_flipped_bit_in_the_data_is_found_when_the_part_is_loaded(
    path: Path, place: float
) -> None:
    size = (path / PART).stat().st_size
    flip(path / PART, max(4000, int(place * size)))
    opened = PartitionedFolder.open(path)
    opened.part(0)
    for load in (lambda: opened.part(1), lambda: opened.part(1), opened.verify):
        with pytest.raises(GraphFolderError, match=f"{PART} is damaged: its checksum"):
            load()
    unchecked = PartitionedFolder.open(path, check=False)
    assert unchecked.part(1).num_nodes == opened.meta.part_nodes[1]


def test_a_checksum_is_computed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[str] = []
    original = module._sha256
    monkeypatch.setattr(module, "_sha256", lambda p: summed.append(p.name) or original(p))
    opened = PartitionedFolder.open(path)
    assert summed == []
    opened.part(1)
    opened.part(1)
    assert summed == [PART]


def test_arrays_that_do_not_fit_the_description_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = list(module.expected_arrays(PartitionedFolder.open(path).meta, 0))
    for change in (wanted[:-1], [*wanted, ("extra", "int64", (1,))], [("y", "int32", (5,))]):
        monkeypatch.setattr(module, "expected_arrays", lambda meta, k, out=change: iter(out))
        with pytest.raises(GraphFolderError, match=r"part-00000.*array '.*' is .*the graph says"):
            PartitionedFolder.open(path)


@pytest.mark.parametrize("name", [PART, "graph.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_plain_file_is_refused(path: Path, name: str, kind: str) -> None:
    """Even where a link leads to what was written: nothing outside of the folder is read."""
    (path / name).rename(path.with_name(name))
    if kind == "link":
        (path / name).symlink_to(path.with_name(name))
    else:
        os.mkfifo(path / name)
    with pytest.raises(GraphFolderError, match=f"{name} cannot be read: it is|has no graph.json"):
        PartitionedFolder.open(path)


def test_a_node_or_edge_that_is_in_two_parts_is_found_by_verify(tmp_path: Path) -> None:
    class Twice(PartitionedInMemory):
        def part(self, k: int) -> Part:
            part = super().part(k)
            part.edge_id[-1] = 899 if k else part.edge_id[-1]
            return part

    made = partition(random_graph(60, 900), 2, "contiguous")
    save(Twice(made.graph, made.assignment, 2), tmp_path / "twice")
    opened = PartitionedFolder.open(tmp_path / "twice")
    with pytest.raises(GraphFolderError, match=r"twice is not valid: edge \d+ is in no part"):
        opened.verify()


def test_a_part_that_does_not_exist_is_refused(path: Path) -> None:
    for k in (-1, 3):
        with pytest.raises(ValueError, match=f"part {k} does not exist; there are 3"):
            PartitionedFolder.open(path).part(k)


def test_an_existing_folder_is_kept_unless_overwriting_is_asked_for(
    path: Path, cora: PartitionedInMemory
) -> None:
    before = (path / "graph.json").read_bytes()
    other = partition(star(9), 2)
    with pytest.raises(GraphFolderError, match="exists; choose another name, or overwrite"):
        save(other, path)
    assert (path / "graph.json").read_bytes() == before
    save(other, path, overwrite=True)
    assert PartitionedFolder.open(path).meta == other.meta
    assert len(list(path.iterdir())) == 3


@pytest.mark.parametrize("kind", ["a file", "other files", "a graph and more", "a link"])
def test_overwriting_removes_nothing_but_partitioned_graphs(path: Path, kind: str) -> None:
    target = path.with_name("target")
    if kind == "a file":
        target.write_text("precious")
    elif kind == "other files":
        target.mkdir()
        (target / "thesis.tex").write_text("precious")
    elif kind == "a graph and more":
        target = path
        (target / "thesis.tex").write_text("precious")
    else:
        target.symlink_to(path)
    with pytest.raises(GraphFolderError, match="not overwritten"):
        save(partition(star(9), 2), target, overwrite=True)
    precious = target if kind == "a file" else target / "thesis.tex"
    assert kind == "a link" or precious.read_text() == "precious"


@pytest.mark.parametrize("before", [True, False])
def test_a_failure_half_way_leaves_what_was_there(
    path: Path, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = path if before else path.with_name("new")
    written = []

    def fail(arrays: object, file: Path, metadata: object) -> None:
        file.write_bytes(b"half")
        written.append(file)
        if len(written) == 2:
            raise OSError("no space left on device")

    monkeypatch.setattr(module, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        save(partition(star(9), 3), target, overwrite=True)
    assert [entry.name for entry in path.parent.iterdir()] == ["cora"]
    PartitionedFolder.open(path).verify()


KILLED = """
import os, sys
from fullgraph.graph import folder
from fullgraph.graph.partition import partition
folder.write_manifest = lambda *args: os._exit(9)
folder.save(partition("planted:nodes=50,edges=100", 2), sys.argv[1], overwrite=True)
"""


@pytest.mark.parametrize("before", [True, False])
def test_a_process_killed_half_way_leaves_what_was_there(path: Path, before: bool) -> None:
    target = path if before else path.with_name("new")
    result = subprocess.run([sys.executable, "-c", KILLED, str(target)], timeout=120, check=False)
    assert result.returncode == 9
    assert target.exists() == before
    PartitionedFolder.open(path).verify()


RESIDENT = """
import sys
import psutil, torch
from fullgraph.graph.folder import PartitionedFolder

def load(path, k):
    part = PartitionedFolder.open(path).part(k)
    tensors = [*part.masks.values(), *vars(part).values()]
    return [t for t in tensors if isinstance(t, torch.Tensor)]

def touch(tensors):
    for t in tensors:
        t.view(-1).view(torch.uint8)[::1024].sum()  # every page

touch(load(sys.argv[1], 0))  # so that code is loaded, too
resident = psutil.Process().memory_info
before = resident().rss
tensors = load(sys.argv[2], 5)
mapped = resident().rss - before
touch(tensors)
print(mapped, resident().rss - before, sum(t.nbytes for t in tensors))
"""


def test_loading_part_k_of_8_adds_an_eighth_of_the_graph_to_memory(tmp_path: Path) -> None:
    save(partition(random_graph(60, 900), 2), tmp_path / "warm")
    save(partition("planted:nodes=200000,edges=4000000", 8), tmp_path / "graph")
    files = (tmp_path / "graph").glob("*.safetensors")
    graph_bytes = sum(file.stat().st_size for file in files)
    command = [sys.executable, "-c", RESIDENT, str(tmp_path / "warm"), str(tmp_path / "graph")]
    done = subprocess.run(command, timeout=120, check=True, capture_output=True, text=True)
    mapped, touched, held = map(int, done.stdout.split())
    print(f"graph {graph_bytes:,}; part {held:,}; after load {mapped:,}; after use {touched:,}")
    assert graph_bytes > 150e6, "so large that a process's own noise does not matter"
    assert mapped < 0.3 * held, "opening and checking a part keeps next to nothing of it"
    assert 0.9 * held < touched < 1.2 * held
    assert 0.9 / 8 < touched / graph_bytes < 1.2 / 8
