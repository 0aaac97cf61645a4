"""What is fuzzed: for each kind of input a way to change one, to read it, and to judge the result.

A reader ends in one of its own errors, which names what it read, or in a result that is right:
that of what was written, or, where the writer may be hostile, one that is valid throughout.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullgraph.comm.exchange import wire_dtype
from fullgraph.comm.group import Group
from fullgraph.comm.load import share
from fullgraph.comm.placement import DESTINATION, Placement
from fullgraph.comm.schedule import Schedule
from fullgraph.graph import manifest
from fullgraph.graph.folder import GraphFolderError, PartitionedFolder
from fullgraph.graph.planted import PlantedSpec, parse_planted
from fullgraph.graph.sources import read
from fullgraph.graph.validate import validate, validate_typed
from fullgraph.ops.aggregate import aggregate
from fullgraph.planner import units
from fullgraph.planner.figures import GraphFigures, parse_figures
from fullgraph.planner.shares import expect_shares
from fullgraph.training import checkpoint, snapshot
from fullgraph.training.config import RunConfig
from fullgraph.training.models import check_weights
from fullgraph.training.run_folder import RunFolder, RunFolderError
from fullgraph.training.snapshot import CheckpointError
from tests.fuzz import corpus, mutate
from tests.fuzz.assemble import whole_graph

REFUSED, READ, SAME = "refused", "read", "as it was"


class WrongError(AssertionError):
    """What a reader gave, or raised, is not what it promises."""


@dataclass(frozen=True)
class Link:
    """In place of a file: a link to another, outside of the folder."""

    to: str


PIPE, FOLDER = "pipe", "folder"  # in place of a file; None: it is not there
MAY_LACK = [("metrics.jsonl", None)]


@dataclass
class Case:
    """An input. ``changes``: of a folder's files; ``text``: of what is no file. ``sealed``: whether
    checksums were made to fit again, as by a hostile writer."""

    seed: int
    changes: dict[str, Any] = field(default_factory=dict)
    text: Any = None
    sealed: bool = False


class Target(ABC):
    """``share``: the fraction of all mutations. ``refusals``: the types that a reader may raise."""

    name: str
    share: float
    refusals: tuple[type[ValueError], ...] = (ValueError,)
    root = ""  # the folder that is read, where there is one

    @abstractmethod
    def case(self, rng: random.Random) -> Case: ...

    def put(self, case: Case) -> str:
        """Write the input; the folder that may be read, as a real path."""
        return ""

    @abstractmethod
    def read(self, case: Case) -> str:
        """READ or SAME; raises what the reader raises, or WrongError."""

    def names(self, case: Case) -> list[str]:
        """What a refusal has to name, any of them."""
        return [self.root]

    def take_away(self, case: Case) -> None:  # noqa: B027
        """Undo `put`, where there is anything to undo."""


# Folders ------------------------------------------------------------------------------------------


def _files(folder: str) -> list[Path]:
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


class Folders(Target):
    """Folders of files, of which some are changed and then put back."""

    def __init__(self, root: Path, seeds: list[Path], outside: Path) -> None:
        self.root, self.seeds = os.path.realpath(root), [os.path.realpath(seed) for seed in seeds]
        self.outside = outside
        self.originals = [
            {str(file.relative_to(seed)): file.read_bytes() for file in _files(seed)}
            for seed in self.seeds
        ]
        for i, files in enumerate(self.originals):  # a twin of every file, for links to lead to
            for name, data in files.items():
                twin = outside / self.name / str(i) / name
                twin.parent.mkdir(parents=True, exist_ok=True)
                twin.write_bytes(data)

    def case(self, rng: random.Random) -> Case:
        seed = rng.randrange(len(self.seeds))
        files = self.originals[seed]
        case = Case(seed)
        if rng.random() < 0.06:
            self._misplace(rng, case, files)
            return case
        for name in {self.pick(rng, [*files]) for _ in range(rng.choice((1, 1, 1, 2)))}:
            case.changes[name] = self.change(rng, name, files)
        if rng.random() < 0.7:
            case.sealed = self.seal(rng, case, files)
        return case

    def pick(self, rng: random.Random, names: list[str]) -> str:
        return rng.choice(names)

    def change(self, rng: random.Random, name: str, files: dict[str, bytes]) -> bytes:
        data, other = files[name], files[rng.choice([*files])]
        if name.endswith(".safetensors"):
            return mutate.mutate_tensors(rng, data, other)
        if name.endswith(".json") and rng.random() < 0.85:
            return mutate.to_text(rng, mutate.mutate_json(rng, json.loads(data)))
        return mutate.mutate_bytes(rng, data, other)

    def seal(self, rng: random.Random, case: Case, files: dict[str, bytes]) -> bool:
        return False

    def _misplace(self, rng: random.Random, case: Case, files: dict[str, bytes]) -> None:
        name, other = self.pick(rng, [*files]), rng.choice([*files])
        link = Link(str(self.outside / self.name / str(case.seed) / name))
        case.changes[name] = rng.choice((None, link, link, PIPE, FOLDER, files[other]))

    def put(self, case: Case) -> str:
        folder = Path(self.seeds[case.seed])
        for name, change in case.changes.items():
            path = folder / name
            if not isinstance(change, bytes):
                path.unlink()
            if isinstance(change, bytes):
                path.write_bytes(change)
            elif isinstance(change, Link):
                path.symlink_to(change.to)
            elif change == PIPE:
                os.mkfifo(path)
            elif change == FOLDER:
                path.mkdir()
        return str(folder)

    def take_away(self, case: Case) -> None:
        folder = Path(self.seeds[case.seed])
        for name, change in case.changes.items():
            path = folder / name
            if change == FOLDER:
                path.rmdir()
            elif change is not None and not isinstance(change, bytes):
                path.unlink()
            path.write_bytes(self.originals[case.seed][name])

    def names(self, case: Case) -> list[str]:
        return [self.seeds[case.seed]]

    def refuse_misplaced(self, case: Case) -> None:
        for name, change in case.changes.items():
            if not isinstance(change, bytes) and (name, change) not in MAY_LACK:
                raise WrongError(f"{name} is {change}, no plain file, and was read")


class Manifest(Folders):
    """graph.json alone."""

    name, share, refusals = "graph.json", 0.15, (GraphFolderError,)

    def __init__(self, root: Path, outside: Path) -> None:
        super().__init__(root, corpus.graph_folders(root), outside)
        self.meta = [manifest.read_manifest(Path(seed, "graph.json")) for seed in self.seeds]

    def pick(self, rng: random.Random, names: list[str]) -> str:
        return manifest.FILE

    def change(self, rng: random.Random, name: str, files: dict[str, bytes]) -> bytes:
        if rng.random() < 0.2:
            return mutate.mutate_bytes(rng, files[name])
        return super().change(rng, name, files)

    def seal(self, rng: random.Random, case: Case, files: dict[str, bytes]) -> bool:
        return seal_graph(case, files)

    def read(self, case: Case) -> str:
        meta, files = manifest.read_manifest(Path(self.seeds[case.seed], manifest.FILE))
        self.refuse_misplaced(case)
        if (meta, files) == self.meta[case.seed]:
            return SAME
        if not case.sealed:
            raise WrongError("a change is not noticed")
        for k in range(meta.num_parts):
            arrays = [*manifest.expected_arrays(meta, k)]
            if any(min(shape, default=0) < 0 for _, _, shape in arrays):
                raise WrongError(f"arrays of negative size: {arrays}")
        if sum(meta.part_nodes) != meta.num_nodes or meta.num_nodes < 1:
            raise WrongError("nodes do not add up")
        if (x := meta.field("x")) is not None and x.shape != (meta.num_features,):
            raise WrongError(f"x is {x.shape}, of {meta.num_features} features")
        return READ


def seal_graph(case: Case, files: dict[str, bytes]) -> bool:
    """Have sizes and checksums of a partitioned graph fit again; whether that can be done."""
    now = {**files, **case.changes}
    try:
        content = json.loads(now[manifest.FILE])
        for name in case.changes:
            for entry in content["parts"] if name != manifest.FILE else ():
                if entry["file"] == name:
                    entry["bytes"] = len(now[name])
                    entry["sha256"] = hashlib.sha256(now[name]).hexdigest()
        content["checksum"] = manifest._checksum(content)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    case.changes[manifest.FILE] = json.dumps(content).encode()
    return True


class Graphs(Folders):
    """Partitioned graphs, opened, every part loaded and checked, and, where that is well, shared
    out and summed over."""

    name, share, refusals = "graph folders", 0.06, (GraphFolderError,)

    def __init__(self, root: Path, outside: Path) -> None:
        super().__init__(root, corpus.graph_folders(root), outside)
        self.tensors = [self._tensors(self._open(seed)) for seed in self.seeds]

    def _open(self, seed: str) -> PartitionedFolder:
        opened = PartitionedFolder.open(seed)
        opened.verify()
        return opened

    @staticmethod
    def _tensors(opened: PartitionedFolder) -> list[Any]:
        found: list[Any] = [opened.meta]
        for k in range(opened.meta.num_parts):
            for name, value in vars(opened.part(k)).items():
                inner = value.items() if isinstance(value, dict) else [("", value)]
                found += [
                    (k, name, key, v.clone() if isinstance(v, Tensor) else v) for key, v in inner
                ]
        return found

    def pick(self, rng: random.Random, names: list[str]) -> str:
        parts = [name for name in names if name != manifest.FILE]
        return rng.choice(parts) if rng.random() < 0.8 else manifest.FILE

    def seal(self, rng: random.Random, case: Case, files: dict[str, bytes]) -> bool:
        return seal_graph(case, files)

    def read(self, case: Case) -> str:
        opened = self._open(self.seeds[case.seed])
        self.refuse_misplaced(case)
        tensors = self._tensors(opened)
        if same(tensors, self.tensors[case.seed]):
            return SAME
        if not case.sealed:
            raise WrongError("a change is not noticed")
        graph = whole_graph(opened)
        try:
            if opened.meta.node_types:
                validate_typed(graph, allow_nonfinite=True)
            else:
                validate(graph, allow_nonfinite=True)
        except ValueError as error:
            raise WrongError(f"what was read is not valid: {error}") from error
        try:
            shared = share(opened, Group())
        except ValueError as error:
            raise GraphFolderError(f"{self.seeds[case.seed]}: {error}") from error
        if not opened.meta.node_types:
            total = aggregate(shared, torch.ones(opened.meta.num_nodes, 1))
            if int(total.sum()) != opened.meta.num_edges:
                raise WrongError(f"{opened.meta.num_edges} edges sum to {int(total.sum())}")
        return READ


def same(one: list[Any], other: list[Any]) -> bool:
    """Bit for bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, tuple) and isinstance(b, tuple):
            return len(a) == len(b) and all(map(equal, a, b))
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            alike = a.dtype == b.dtype and a.shape == b.shape
            bytes_of = (t.reshape(-1).view(torch.uint8) for t in (a, b))
            return alike and torch.equal(*bytes_of)
        return type(a) is type(b) and a == b

    return len(one) == len(other) and all(map(equal, one, other))


class Npz(Target):
    """Graphs in .npz files."""

    name, share = ".npz", 0.08

    def __init__(self, root: Path, outside: Path) -> None:
        root.mkdir()
        self.root, self.path = os.path.realpath(root), root / "graph.npz"
        self.files = [*corpus.npz_files().values()]
        self.bombs = [mutate.bomb("x", how) for how in (8, 12, 14)]

    def case(self, rng: random.Random) -> Case:
        seed = rng.randrange(len(self.files))
        data, other = self.files[seed], rng.choice(self.files)
        if rng.random() < 0.01:
            return Case(seed, {self.path.name: rng.choice(self.bombs)})
        return Case(seed, {self.path.name: mutate.mutate_npz(rng, data, other)})

    def put(self, case: Case) -> str:
        self.path.write_bytes(case.changes[self.path.name])
        return self.root

    def names(self, case: Case) -> list[str]:
        return [self.path.name]

    def read(self, case: Case) -> str:
        graph = read(self.path)
        validate(graph)  # type: ignore[arg-type]
        tensors = [graph.edge_index, graph.x, graph.y, graph.edge_type, graph.edge_weight]  # type: ignore[union-attr]
        if any(t is not None and not t.is_contiguous() for t in tensors):
            raise WrongError("a tensor is not contiguous")
        return READ


class Runs(Folders):
    """Run folders, but for their checkpoints."""

    name, share, refusals = "run folders", 0.06, (RunFolderError,)

    def __init__(self, root: Path, outside: Path) -> None:
        corpus.run_folder(root / "run")
        shutil.rmtree(root / "run" / "checkpoints")
        super().__init__(root, [root / "run"], outside)

    def read(self, case: Case) -> str:
        run = RunFolder(self.seeds[0])
        config, weights = run.run_config(), run.weights()
        lines, result = run.metrics(), run.result()
        self.refuse_misplaced(case)
        if not all(isinstance(line, dict) for line in (*lines, result)):
            raise WrongError("a line is no object")
        try:
            config.validate()
            check_weights(config.model, *run.sizes(), weights)
        except ValueError as error:  # of options, which have no file
            raise RunFolderError(f"{run.path}: {error}") from error
        return READ


class Checkpoints(Folders):
    """Checkpoints as they are looked through before one is loaded. One that is damaged is passed
    over, so a refusal means that there is no other."""

    name, share, refusals = "checkpoints", 0.08, (CheckpointError,)

    def __init__(self, root: Path, outside: Path) -> None:
        corpus.run_folder(root / "run")
        seed = root / "run" / "checkpoints"
        shutil.rmtree(seed / "epoch-000001")
        super().__init__(root, [seed], outside)

    def change(self, rng: random.Random, name: str, files: dict[str, bytes]) -> bytes:
        return super().change(rng, name, files)

    def seal(self, rng: random.Random, case: Case, files: dict[str, bytes]) -> bool:
        header = f"epoch-000002/{snapshot.HEADER}"
        now = {**files, **case.changes}
        try:
            content = json.loads(now[header])
            for name in case.changes:
                if name != header:
                    data = now[name]
                    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                    content["files"][Path(name).name] = entry
            content["checksum"] = snapshot._checksum(content)
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        case.changes[header] = json.dumps(content).encode()
        return True

    def read(self, case: Case) -> str:
        found = checkpoint._newest(Path(self.seeds[0]))
        self.refuse_misplaced(case)
        if found is None:
            raise WrongError("a checkpoint is not seen")
        path, header, _ = found
        snapshot.read_file(path, header, snapshot.rank_file(0))
        return READ


class Resumes(Checkpoints):
    """The same, loaded into a model and its optimizer."""

    name, share = "checkpoints, loaded", 0.02

    def __init__(self, root: Path, outside: Path) -> None:
        super().__init__(root, outside)
        self.model, self.optimizer, self.graph = corpus.model_and_graph()

    def read(self, case: Case) -> str:
        given = {"model": self.model, "optimizer": self.optimizer, "graph": self.graph}
        checkpoint.load(self.seeds[0], **given, options={"lr": 0.01})
        self.refuse_misplaced(case)
        return READ


# Texts --------------------------------------------------------------------------------------------


def _read_path(text: str) -> None:
    if not text.startswith(("pyg:", "ogb:", "planted:")):  # which are names, not paths
        read(text)
        raise WrongError("a graph is read from nothing")


def _planted(text: str) -> None:
    spec = parse_planted(text)
    if parse_planted(str(spec)) != spec:
        raise WrongError(f"{spec} is not what it says")


def _figures(text: str) -> None:
    shares = expect_shares(parse_figures(text), 2, DESTINATION)
    if min(shares.owned) < 0:
        raise WrongError(f"{shares}")


def _placement(text: str) -> None:
    placement = Placement.parse(text)
    if Placement.parse(str(placement)) != placement:
        raise WrongError(f"{placement}")
    placement.check_ranks(4)


def _schedule(text: str) -> None:
    schedule = Schedule.parse(text)
    if Schedule.parse(str(schedule)) != schedule:
        raise WrongError(f"{schedule}")


def _quantity(parse: Callable[[str, str], float]) -> Callable[[str], None]:
    def run(text: str) -> None:
        if not 0 <= parse(text, "--option") < float("inf"):
            raise WrongError("no quantity")

    return run


PARSERS: dict[str, tuple[Callable[[str], None], tuple[str, ...]]] = {
    "graph": (_read_path, ("graph.npz", "~/x.npz", "../x.npz", "~nobody/x", "a/b", "x" * 300)),
    "planted": (_planted, (
        "planted:nodes=1e5,edges=2000000,mix=0.3", "planted:nodes=100_000,edges=0,seed=7,train=0.5",
    )),
    "figures": (_figures, (
        "nodes=111e6,edges=3.2e9,features=128,classes=172,halo=0.3",
        "nodes=10,edges=0,features=1,classes=2,train=0.1",
    )),
    "placement": (_placement, ("destination", "vertex-cut", "grid:2x2x1", "grid:12x3")),
    "schedule": (_schedule, ("sequential:prefetch=2,remat=off", "oneshot", "delayed:5")),
    "wire": (lambda text: void(wire_dtype(text)), ("float32", "bf16")),
    "bytes": (_quantity(units.parse_bytes), ("16GB", "1.5 GiB", "2e9B")),
    "rate": (_quantity(units.parse_rate), ("10Gbps", "1.2GB/s", "1e3 kbps")),
    "seconds": (_quantity(units.parse_seconds), ("50us", "1ms", "0s", "2 µs")),
    "flops": (_quantity(units.parse_flops), ("500GFLOPS", "2TFLOPS")),
}  # fmt: skip


def void(value: object) -> None:
    """For a lambda that returns nothing."""


class Texts(Target):
    """What is given on the command line."""

    name, share = "command line", 0.4

    def __init__(self, root: Path, outside: Path) -> None:
        root.mkdir()

    def case(self, rng: random.Random) -> Case:
        names = [*PARSERS]
        which = rng.randrange(len(names))
        seeds = PARSERS[names[which]][1]
        data = mutate.mutate_bytes(rng, rng.choice(seeds).encode(), rng.choice(seeds).encode())
        text = data.decode("utf-8", rng.choice(("replace", "surrogateescape")))
        if rng.random() < 0.1:
            digits = rng.choice(("9" * 400, "9" * 5000, "1e999", "-1", "0", "nan", "٣", "0x7"))
            text = text.translate({ord(d): digits for d in rng.sample("0123456789", 2)})
        return Case(which, text=text)

    def names(self, case: Case) -> list[str]:
        path = os.path.expanduser(case.text.replace("\0", ""))
        keys = [f"{f.name}=" for f in (*fields(GraphFigures), *fields(PlantedSpec))]
        shown = [repr(text)[1:-1] for text in (case.text, case.text.strip(), path)]
        return [*shown, *(text.replace("'", "\\'") for text in shown), *keys, "--option"]

    def read(self, case: Case) -> str:
        [*PARSERS.values()][case.seed][0](case.text)
        return READ


class Configs(Target):
    """The JSON of a run's configuration, once it is parsed."""

    name, share = "configurations", 0.15

    def __init__(self, root: Path, outside: Path) -> None:
        root.mkdir()
        corpus.run_folder(root / "run")
        self.content = RunFolder(root / "run").config()

    def case(self, rng: random.Random) -> Case:
        return Case(0, text=mutate.mutate_json(rng, self.content))

    def names(self, case: Case) -> list[str]:
        return [""]

    def read(self, case: Case) -> str:
        RunConfig.from_json(case.text).validate()
        return READ


TARGETS: tuple[type[Target], ...] = (
    Texts, Configs, Manifest, Runs, Checkpoints, Npz, Graphs, Resumes,
)  # fmt: skip
