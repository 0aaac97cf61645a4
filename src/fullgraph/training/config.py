"""`RunConfig`: all that a training run was asked to do, as it stands in config.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from fullgraph.comm.exchange import wire_dtype
from fullgraph.comm.load import partition_options
from fullgraph.comm.placement import Placement
from fullgraph.comm.schedule import EXACT, Schedule
from fullgraph.training.model_options import ModelOptions
from fullgraph.training.options import FitOptions
from fullgraph.training.profile import WARM_UP

Options = TypeVar("Options")


@dataclass(frozen=True)
class GraphOptions:
    """Which graph, and how it is shared out.

    Attributes:
        source: a partitioned folder, or what `fullgraph.graph.sources.read` accepts, as text.
        split: which split, where a source has several.
        parts: how many to make; None: one a worker. Not for a partitioned folder.
        method: of partitioning; None: the placement's default.
        normalize_features: divide each row by the sum of its absolute values.
    """

    source: str
    split: int = 0
    parts: int | None = None
    method: str | None = None
    normalize_features: bool = False


@dataclass(frozen=True)
class RunConfig:
    """A training run.

    ``threads``: of each worker. ``placement``: where edges live; None: as the graph was partitioned
    for. ``wire``: the dtype that rows travel in. ``exact``: whether what is
    approximate is refused. ``timeout``: the longest any single wait between workers may take, in
    seconds. ``profile``: how many epochs to profile; 0: none.
    """

    graph: GraphOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    training: FitOptions = field(default_factory=FitOptions)
    workers: int = 1
    threads: int = 1
    schedule: str = "sequential"
    placement: str | None = None
    wire: str = "float32"
    exact: bool = False
    timeout: float = 300.0
    profile: int = 0

    @property
    def approximate(self) -> str:
        """What makes training approximate, in words; empty where nothing does."""
        return approximations(Schedule.parse(self.schedule), self.wire)

    def validate(self) -> None:
        """Raises ValueError naming the option; does not look at the graph."""
        self.model.validate()
        self.training.validate()
        wire_dtype(self.wire)
        if self.approximate and self.exact:
            raise ValueError(
                f"--exact was given, and {self.approximate} is approximate. Exact schedules are "
                f"{EXACT}, and the exact wire is 'float32'"
            )
        for key in ("workers", "threads"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if not 0 < self.timeout <= LONGEST:
            raise ValueError(
                f"timeout must be positive, got {self.timeout} (and at most {LONGEST:.0e})"
            )
        check_parts(self.graph.parts, self.workers)
        placement = None if self.placement is None else Placement.parse(self.placement)
        if placement is not None:
            placement.check_ranks(self.workers)
        partition_options(placement, self.graph.method)
        if self.profile < 0:
            raise ValueError(f"profile must be at least 0, got {self.profile}")
        if self.profile and self.training.epochs < WARM_UP + self.profile:
            raise ValueError(
                f"a profile of {self.profile} epochs comes after {WARM_UP} that warm up, and "
                f"epochs is {self.training.epochs}; train {WARM_UP + self.profile} or more"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> RunConfig:
        """What `to_json` gave; other keys are ignored. Raises ValueError where it is no such."""
        try:
            parts = {name: _read(kind, content[name]) for name, kind in PARTS.items()}
            return _read(RunConfig, {**content, **parts})
        except (AttributeError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"not the configuration of a run: {error}") from error


LONGEST = 1e8  # seconds, three years
PARTS: dict[str, Any] = {"graph": GraphOptions, "model": ModelOptions, "training": FitOptions}
KINDS: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool}


def approximations(schedule: Schedule, wire: str) -> str:
    """What makes training approximate, in words; empty where nothing does."""
    words = [] if schedule.exact else [f"schedule {schedule}"]
    words += [] if wire == "float32" else [f"wire {wire}"]
    return " with ".join(words)


def check_parts(parts: int | None, workers: int) -> None:
    """Raises ValueError where there are fewer parts than workers."""
    if parts is not None and parts < 1:
        raise ValueError(f"parts must be at least 1, got {parts}")
    if parts is not None and workers > parts:
        raise ValueError(
            f"{workers} workers cannot share {parts} part(s), of which each is owned by one "
            f"worker: use at most {parts} workers, or partition into {workers} or more parts"
        )


def _read(kind: type[Options], content: dict[str, Any]) -> Options:
    given = {f.name: content[f.name] for f in fields(kind) if f.name in content}  # type: ignore[arg-type]
    for name, value in given.items():
        wanted, _, optional = str(kind.__annotations__[name]).partition(" | ")
        if wanted not in KINDS or (value is None and optional):
            continue
        if not isinstance(value, KINDS[wanted]) or (isinstance(value, bool) and wanted != "bool"):
            raise TypeError(f"{name} is {value!r}")
        given[name] = float(value) if wanted == "float" else value
    return kind(**given)
