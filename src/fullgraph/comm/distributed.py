"""The distributed graph: a rank's own rows, its blocks of edges, and the exchange plan.

Letters: n owned rows, N nodes of the whole graph, E edges on this rank, F columns, C classes.
"""

from __future__ import annotations

import copy
import hashlib
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from fullgraph.comm.exchange import wire_dtype
from fullgraph.comm.group import Group
from fullgraph.comm.placed_edges import PlacedEdges, check_placement
from fullgraph.comm.placement import DESTINATION, Placement
from fullgraph.comm.plan import ExchangePlan
from fullgraph.comm.schedule import Schedule, sequential
from fullgraph.comm.stale import StaleRows
from fullgraph.comm.targets import Targets
from fullgraph.comm.traffic import Traffic
from fullgraph.graph.blocks import Block, Ownership, build_blocks, edge_field, make_block
from fullgraph.graph.parts import GraphMeta, Part, Partitioned
from fullgraph.kernels import group_by

if TYPE_CHECKING:
    from fullgraph.comm.hetero import OwnedNodes
    from fullgraph.comm.reverse import EdgeMove
    from fullgraph.comm.seeds import SeedGraphs

DEFAULT_BLOCK_BYTES = 64 << 20
PIECE_BYTES = 4 << 20
SMALL_MESSAGE_BYTES = 512 << 10
MESSAGES_OF_A_RANK = 8  # at most, that its rows travel in, or a few more, where they are many
LARGER_IF_RECORDED = 4  # times as large as otherwise: messages of a forward pass that is recorded
PER_EDGE = (
    "in_degree", "edge_target", "edge_id", "edge_weight", "edge_attr", "edge_type", "is_self_loop",
)  # fmt: skip


@dataclass
class Edges:
    """The edges placed on this rank.

    ``blocks[q]`` has sources owned by rank q. ``origin``: integers [E], for one made from another,
    its base, the position of each edge there; for a self-loop that was added, the edges of the
    base plus the row; None where edges are those of the base, or there is none. ``adds_loops``:
    whether a self-loop may be among them, on some rank, that the base does not have.
    """

    blocks: list[Block]
    origin: Tensor | None = None
    adds_loops: bool = False

    @property
    def num_edges(self) -> int:
        return sum(block.num_edges for block in self.blocks)


@dataclass(frozen=True)
class _Version:
    """A tensor at one moment: the same object, not written to since. Holds no reference to it."""

    tensor: weakref.ref[Tensor] | None
    version: int

    @staticmethod
    def of(tensor: Tensor | None) -> _Version:
        return (
            _Version(None, 0) if tensor is None else _Version(weakref.ref(tensor), tensor._version)
        )

    def is_same(self, tensor: Tensor | None) -> bool:
        return tensor is None if self.tensor is None else self.tensor() is tensor

    def is_written(self, tensor: Tensor | None) -> bool:
        return tensor is not None and tensor._version != self.version


@dataclass(frozen=True)
class _Kept:
    """A result, and the tensors that it came from, as they were then."""

    versions: list[_Version]
    result: Tensor
    result_version: int

    def is_from(self, sources: Sequence[Tensor | None]) -> bool:
        return all(v.is_same(t) for v, t in zip(self.versions, sources))

    def is_outdated(self, sources: Sequence[Tensor | None]) -> bool:
        written = any(v.is_written(t) for v, t in zip(self.versions, sources))
        return written or self.result._version != self.result_version


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """For what outlives a step: not inference tensors, and by torch's own functions, whatever mode
    the caller is in."""
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        yield


@dataclass(eq=False)
class DistributedGraph:
    """One rank's share of a graph. Give it to a converted model where `edge_index` went.

    A rank *owns* rows: ``node_id[i]`` is the original id of row i, and ``x``, ``y``, masks and
    outputs have the same row order. Edges are in the order of ``edge_id``.

    Attributes:
        group: the ranks that share the graph.
        schedule: how exchange and compute interleave.
        wire: the dtype that rows travel in: "float32" (their own) or "bf16".
        stale: what an approximate schedule keeps from one training pass to the next.
        max_block_bytes: the largest message of rows; see `rows_of_message` for the usual one.
        meta: what is known of the whole graph.
        node_id: int64 [n], original ids of the owned rows.
        x: [n, F] or None; y: [n] or [n, C] or None; masks: bool [n] by name.
        traffic: bytes moved so far, by layer, direction and peer.
        base: the graph that this one was made from by `with_self_loops` or `for_seeds`, or None.
        source_rows, target_rows: int64 [m] and [n], in a layer of `for_seeds`: the owned row of
            the whole graph that each source row is, and the source row that each target is. None
            in a graph whose sources and targets are the owned rows, all of them.
        source_ownership: who owns the rows that edges start from, in a relation between two types
            of nodes, otherwise None. There x are features of the sources, all else is of the
            targets; see `DistributedHeteroGraph`.
        types: in a relation, the owned nodes of all types of its graph, by name.
        placement: where edges live.
        targets: the rows that this rank has partial results for, where edges may live elsewhere
            than with the owner of their target; otherwise None. The targets of its edges and
            blocks are then numbered as these are.
    """

    group: Group
    meta: GraphMeta
    schedule: Schedule
    max_block_bytes: int
    ownership: Ownership
    plan: ExchangePlan
    edges: Edges
    node_id: Tensor
    x: Tensor | None
    y: Tensor | None
    masks: dict[str, Tensor]
    _partitioned: Partitioned = field(repr=False)
    traffic: Traffic = field(default_factory=Traffic)
    _kept: dict[object, _Kept] = field(default_factory=dict, repr=False)
    layer_cache: weakref.WeakKeyDictionary[object, Any] = field(
        default_factory=weakref.WeakKeyDictionary, repr=False
    )
    _looped: DistributedGraph | None = field(default=None, repr=False)
    _reversed: tuple[DistributedGraph, EdgeMove] | None = field(default=None, repr=False)
    base: DistributedGraph | None = field(default=None, repr=False)
    source_rows: Tensor | None = None
    target_rows: Tensor | None = None
    source_ownership: Ownership | None = field(default=None, repr=False)
    types: dict[str, OwnedNodes] | None = field(default=None, repr=False)
    placement: Placement = DESTINATION
    targets: Targets | None = field(default=None, repr=False)
    wire: str = "float32"
    stale: StaleRows = field(default_factory=StaleRows, repr=False)

    @staticmethod
    def build(
        partitioned: Partitioned,
        group: Group,
        schedule: str | Schedule | None = None,
        max_block_bytes: int = DEFAULT_BLOCK_BYTES,
        placement: str | Placement | None = None,
        wire: str = "float32",
    ) -> DistributedGraph:
        """This rank's share of a partitioned graph; every rank of the group calls it.

        placement: by default the one that the graph was partitioned for.

        Raises ValueError when there are more ranks than parts, for a graph with several types of
        nodes, whose share is a `DistributedHeteroGraph`, and for a placement of another number of
        ranks or another way of partitioning.
        """
        if max_block_bytes < 1:
            raise ValueError(f"max_block_bytes must be positive, got {max_block_bytes}")
        meta = partitioned.meta
        if meta.node_types:
            raise ValueError(
                f"graph {meta.name!r} has types of nodes: give it to fullgraph.load or to "
                "DistributedHeteroGraph.build"
            )
        chosen = sequential() if schedule is None else Schedule.parse(schedule)
        wire_dtype(wire)
        placed_as = Placement.parse(meta.placement if placement is None else placement)
        check_agreement(group, f"{meta.fingerprint} {chosen} {max_block_bytes} {placed_as} {wire}")
        check_placement(partitioned, placed_as, group.size)
        ownership = Ownership.balance(meta, group.size)
        parts = _own_parts(partitioned, ownership, group.rank)
        node_id = torch.cat([part.node_id for part in parts])
        targets = None
        if placed_as.splits:
            edges = PlacedEdges(partitioned, ownership, placed_as, group.rank)
            blocks, needed, of_targets = edges.build()
            targets = Targets.build(group, edges, of_targets, node_id)
        else:
            blocks, needed = build_blocks(parts, ownership, group.rank)
        graph = DistributedGraph(
            group=group,
            meta=meta,
            schedule=chosen,
            max_block_bytes=max_block_bytes,
            ownership=ownership,
            plan=ExchangePlan.build(group, needed),
            edges=Edges(blocks),
            node_id=node_id,
            x=join([part.x for part in parts]),
            y=join([part.y for part in parts]),
            masks={
                name: torch.cat([part.masks[name] for part in parts]) for name in parts[0].masks
            },
            _partitioned=partitioned,
            placement=placed_as,
            targets=targets,
            wire=wire,
        )
        graph.count_in_degrees()
        return graph

    # Sizes -------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self.meta.num_nodes

    @property
    def num_owned(self) -> int:
        """Rows that this rank owns; in a layer of `for_seeds`, those of them that it computes."""
        return self.node_id.numel()

    @property
    def num_targets(self) -> int:
        """Rows that the edges of this rank end in: the owned rows, and in a placement that splits
        them from their edges those of other ranks after them (see `targets`)."""
        return self.num_owned if self.targets is None else self.targets.num_rows

    @property
    def num_sources(self) -> int:
        """Rows of this rank that edges start from: the owned rows, too, but for a relation between
        two types of nodes and for a layer of `for_seeds`."""
        return self.edges.blocks[self.group.rank].num_sources

    def require_edges_at_targets(self, what: str) -> None:
        """Raise ValueError in a placement where edges live elsewhere than their targets."""
        if self.targets is not None:
            raise ValueError(
                f"{what} needs every edge to live with the owner of its target, as under the "
                f"placement 'destination'; this graph is placed by {self.placement}"
            )

    def require_one_type(self, what: str) -> None:
        """Raise ValueError in a relation between two types of nodes, where `what` is undefined."""
        if self.source_ownership is not None:
            raise ValueError(
                f"{what} needs edges between nodes of one type, but {self.meta.name!r} is a "
                "relation between two types"
            )

    @property
    def num_classes(self) -> int:
        return self.meta.num_classes

    @property
    def num_features(self) -> int:
        return self.meta.num_features

    @property
    def num_relations(self) -> int:
        """Types that edges have; 0 where they have none."""
        return self.meta.num_relations

    @property
    def num_local_edges(self) -> int:
        """Edges on this rank; under the placement `destination`, the in-edges of its rows."""
        return self.edges.num_edges

    @cached_property
    def in_degree(self) -> Tensor:
        """int64 [n]: in-edges of each owned row, over the whole graph."""
        if self.targets is not None:  # as a collective cannot wait to be asked for
            raise RuntimeError("in-degrees were not counted; call count_in_degrees on every rank")
        with ordinary_tensors():
            return self._in_edges_here()

    def count_in_degrees(self) -> None:
        """Set `in_degree` where it takes an exchange; every rank of the group calls it."""
        if self.targets is not None:
            with ordinary_tensors():
                here = self._in_edges_here()
                if self.feature_slice > 0:  # which has the same edges as slice 0
                    here.zero_()
                self.in_degree = self.targets.sum_to_owners(self.group, here, "in-degrees")

    def _in_edges_here(self) -> Tensor:
        """int64 [T]: edges of this rank into each of its targets."""
        degree = self.node_id.new_zeros(self.num_targets)
        for block in self.edges.blocks:
            rows = slice(None) if block.rows is None else block.rows.long()
            degree[rows] += block.offsets.diff()
        return degree

    @property
    def target_id(self) -> Tensor:
        """int64 [T]: the original id of every target."""
        return self.node_id if self.targets is None else self.targets.node_id

    @property
    def feature_slice(self) -> int:
        """Which of the K slices of columns this rank works on; 0 outside of grids."""
        return self.placement.slice_of(self.group.rank)

    @cached_property
    def edge_target(self) -> Tensor:
        """int32 [E]: the owned row, or target (see `targets`), that each edge points to."""
        with ordinary_tensors():
            return torch.cat([block.edge_rows() for block in self.edges.blocks])

    @cached_property
    def is_self_loop(self) -> Tensor:
        """bool [E]: edges from a node to itself."""
        loop = torch.zeros(self.num_local_edges, dtype=torch.bool, device=self.node_id.device)
        if self.num_sources != self.num_owned:  # of another type
            return loop
        for q in self.with_loops_of():
            block = self.edges.blocks[q]
            loop[block.edges] = block.edge_rows() == block.cols + self._first_target(q)
        return loop

    def with_loops_of(self) -> list[int]:
        """The ranks whose nodes' self-loops are here."""
        return [self.group.rank] if self.targets is None else self.targets.placed.diagonal

    def _first_target(self, owner: int) -> int:
        """The first of the targets that this rank owns."""
        if owner == self.group.rank or self.targets is None:
            return 0
        return self.targets.first_row(owner)

    # Data --------------------------------------------------------------------------------------

    def _mask(self, name: str) -> Tensor:
        if name not in self.masks:
            raise AttributeError(
                f"graph {self.meta.name!r} has no {name} mask; it has {sorted(self.masks)}"
            )
        return self.masks[name]

    @property
    def train_mask(self) -> Tensor:
        return self._mask("train")

    @property
    def val_mask(self) -> Tensor:
        return self._mask("val")

    @property
    def test_mask(self) -> Tensor:
        return self._mask("test")

    @cached_property
    def edge_id(self) -> Tensor:
        """int64 [E]: the original position of each edge. A self-loop that was added to node v has
        the id (edges of the whole graph) + v."""
        if self.base is not None:
            with ordinary_tensors():
                ids, origin = self.base.edge_id.to(self.node_id.device), self.edges.origin
                if origin is None:
                    return ids
                if self.edges.adds_loops:
                    ids = torch.cat([ids, self.meta.num_edges + self.target_id])
                return ids[origin]
        ids_as_read = self._edge_field("edge_id")
        assert ids_as_read is not None  # every part has it
        return ids_as_read

    @cached_property
    def edge_weight(self) -> Tensor | None:
        """[E] or None, in the order of `edge_id`.

        Raises ValueError for a graph with self-loops added, which have none; see
        `extend_to_self_loops`.
        """
        return self._edge_field("edge_weight")

    @cached_property
    def edge_attr(self) -> Tensor | None:
        """[E, D] or None, in the order of `edge_id`; raises as `edge_weight` does."""
        return self._edge_field("edge_attr")

    @cached_property
    def edge_type(self) -> Tensor | None:
        """int64 [E] in 0 .. num_relations - 1, or None, in the order of `edge_id`.

        Raises ValueError for a graph with self-loops added, which have no type.
        """
        if self.edges.adds_loops:
            raise ValueError("edges have no edge_type here: the self-loops added have no type")
        return self._edge_field("edge_type")

    def _edge_field(self, name: str) -> Tensor | None:
        if self.base is not None:
            values = getattr(self.base, name)
            if values is None:
                return None
            with ordinary_tensors():
                return self.from_base_edges(values)
        with ordinary_tensors():
            if self.targets is not None:
                found = self.targets.placed.edge_field(name)
            else:
                parts = _own_parts(self._partitioned, self.ownership, self.group.rank)
                found = edge_field(parts, self.ownership, name)
            return None if found is None else found.to(self.node_id.device)

    def from_base_edges(self, values: Tensor) -> Tensor:
        """Values [E, ...] of the edges of this graph, from those of the edges of `base`.

        Differentiable. Raises ValueError for a graph with self-loops added, which `base` does not
        have (see `extend_to_self_loops`), and for one that was not made from another.
        """
        if self.base is None or self.edges.adds_loops:
            what = "were not made from others" if self.base is None else "have self-loops added"
            raise ValueError(f"the edges of this graph {what}: give it values of its own")
        if values.shape[:1] != (self.base.num_local_edges,):
            raise ValueError(
                f"values must have one entry for each of the {self.base.num_local_edges} edges of "
                f"the base on this rank, got shape {tuple(values.shape)}"
            )
        values = values.to(self.node_id.device)
        return values if self.edges.origin is None else values[self.edges.origin]

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a DistributedGraph has no edge_index to unpack or index: its edges are spread over "
            "ranks. Change the graph before fullgraph.load, take edges by a mask (graph[:, mask]), "
            "or use graph.edge_target, edge_id, in_degree and fullgraph.aggregate"
        )

    def __getitem__(self, index: object) -> DistributedGraph:
        """`select_edges`, for models that write edge_index[:, mask]."""
        if isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None):
            return self.select_edges(index[1])
        self.__iter__()

    def size(self, dim: int | None = None) -> NoReturn:
        """An error: models that ask edge_index for its size would get this rank's."""
        raise TypeError(
            "the size of edge_index was asked for, but edges are spread over ranks: this one has "
            f"{self.num_local_edges} of {self.meta.num_edges} (graph.num_local_edges, "
            "graph.meta.num_edges), and nodes are graph.num_nodes"
        )

    @property
    def shape(self) -> NoReturn:
        """An error, as `size` is."""
        self.size()

    def select_edges(self, mask: Tensor) -> DistributedGraph:
        """The graph with the edges of `mask` only, bool [E] in the order of `edge_id`.

        Every rank calls it; it takes an exchange, so keep the result where the mask stays.
        """
        from fullgraph.comm.select import select_edges

        return select_edges(self, mask)

    # Views -------------------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> DistributedGraph:
        """The same graph with its edges and rows on another device, where its models then are.

        Edges on anything but a CPU go through the kernels' torch reference.
        """
        view = copy.copy(self)
        view.node_id = self.node_id.to(device)
        view.x = None if self.x is None else self.x.to(device)
        view.y = None if self.y is None else self.y.to(device)
        view.masks = {name: mask.to(device) for name, mask in self.masks.items()}
        origin = self.edges.origin
        view.edges = Edges(
            [block.to(device) for block in self.edges.blocks],
            None if origin is None else origin.to(device),
            self.edges.adds_loops,
        )
        for name in ("source_rows", "target_rows"):
            rows = getattr(self, name)
            setattr(view, name, None if rows is None else rows.to(device))
        view.plan = replace(
            self.plan, send_rows=tuple(rows.to(device) for rows in self.plan.send_rows)
        )
        view.targets = None if self.targets is None else self.targets.to(device)
        view.stale = StaleRows()
        view._kept, view._looped, view._reversed = {}, None, None
        view.layer_cache = weakref.WeakKeyDictionary()
        for name in PER_EDGE:
            view.__dict__.pop(name, None)
        if self.targets is not None:
            view.in_degree = self.in_degree.to(device)
        return view

    @property
    def exact(self) -> bool:
        """Whether training on it gives what one process gives."""
        return self.schedule.exact and self.wire == "float32"

    def with_schedule(self, schedule: str | Schedule, wire: str | None = None) -> DistributedGraph:
        """The same graph under another schedule, and wire where given; edges, rows and the account
        are shared, and nothing that is stale."""
        view = copy.copy(self)
        view.schedule, view.stale = Schedule.parse(schedule), StaleRows()
        if wire is not None and wire != self.wire:
            wire_dtype(wire)
            view.wire, view._kept = wire, {}
        view._looped, view._reversed, view.layer_cache = None, None, weakref.WeakKeyDictionary()
        return view

    def reversed(self) -> tuple[DistributedGraph, EdgeMove]:
        """The graph with every edge turned round, and the way of edge values to its edges.

        Built at the first call, which all ranks make. Raises ValueError for a relation between two
        types of nodes and for a layer of `for_seeds`.
        """
        if self._reversed is None:
            from fullgraph.comm.reverse import reverse

            self._reversed = reverse(self)
        return self._reversed

    def flip(self, dims: int | Sequence[int]) -> DistributedGraph:
        """`reversed`, for models that write edge_index.flip([0])."""
        if tuple([dims] if isinstance(dims, int) else dims) not in ((0,), (-2,)):
            raise ValueError(f"only flip([0]), which turns edges round, is defined, got {dims}")
        return self.reversed()[0]

    def with_self_loops(self) -> DistributedGraph:
        """The same graph with exactly one self-loop a node, as PyG's `add_remaining_self_loops`:
        of a node's own loops the last one stays, a node without any gets one.

        Raises ValueError for a relation between two types of nodes.
        """
        self.require_one_type("with_self_loops")
        if self._looped is None:
            with ordinary_tensors():
                edges = self._edges_with_self_loops()
            # A view of its own on every rank, so that all ranks keep the same things.
            view = copy.copy(self)
            view._kept, view._looped, view._reversed, view.base = {}, view, None, self
            view.edges = edges or Edges(self.edges.blocks, None, adds_loops=True)
            for name in PER_EDGE:
                view.__dict__.pop(name, None)
            if self.targets is not None:  # all loops of the own nodes are here
                own = self.edges.blocks[self.group.rank]
                rows = own.edge_rows()
                loops = torch.bincount(rows[rows == own.cols], minlength=self.num_owned)
                view.in_degree = self.in_degree - loops + 1
            self._looped = view
        return self._looped

    def extend_to_self_loops(self, weight: Tensor, fill: float) -> Tensor:
        """Edge weights [E] of this graph for `with_self_loops`: `fill` for every added loop."""
        origin = self.with_self_loops().edges.origin
        if origin is None or self._looped is self:  # nothing was added
            return weight
        return torch.cat([weight, weight.new_full((self.num_targets,), fill)])[origin]

    def _edges_with_self_loops(self) -> Edges | None:
        """The edges with one loop a row, or None where every row has exactly one already."""
        rank, blocks = self.group.rank, [block.to("cpu") for block in self.edges.blocks]
        found = {}
        for q in self.with_loops_of():
            first = self._first_target(q)
            num_rows = self.num_owned if q == rank else blocks[q].num_sources
            rows = torch.arange(num_rows, dtype=torch.int32)
            as_source = rows if self.target_rows is None else self.target_rows.cpu().int()
            found[q] = self._with_one_loop(blocks[q], first + rows, as_source)
        if not any(new is not None for new in found.values()):
            return None
        origin, first_edge = [], 0
        for q, block in enumerate(blocks):
            new = found.get(q)
            old_edges = torch.arange(block.first_edge, block.edges.stop)
            origin.append(old_edges if new is None else new[1])
            blocks[q] = copy.copy(self.edges.blocks[q]) if new is None else new[0]
            blocks[q].first_edge = first_edge
            first_edge += blocks[q].num_edges
        device = self.node_id.device
        # As narrow as it can be: it stays as long as the graph.
        kind = torch.int32 if self.num_local_edges + self.num_targets < 2**31 else torch.int64
        places = torch.cat([o.to(kind) for o in origin]).to(device)
        return Edges([block.to(device) for block in blocks], places, adds_loops=True)

    def _with_one_loop(
        self, block: Block, rows: Tensor, as_source: Tensor
    ) -> tuple[Block, Tensor] | None:
        """A block, on the CPU, whose targets `rows` are its sources `as_source`, with one loop for
        each, and where its edges were (`Edges.origin`); None where it has exactly that already."""
        first, last = (int(rows[0]), int(rows[-1]) + 1) if rows.numel() else (0, 0)
        dst, src = block.edge_rows(), block.cols
        place = (dst - first).clamp(0, max(0, rows.numel() - 1)).long()
        loop = torch.zeros(block.num_edges, dtype=torch.bool)
        if rows.numel():
            loop = (dst >= first) & (dst < last) & (as_source[place] == src)
        loop_rows = dst[loop]  # ascending, and a row's own loops in their original order
        if torch.equal(loop_rows, rows):
            return None
        position = torch.arange(block.first_edge, block.edges.stop)
        remaining = self.num_local_edges + rows.long()
        is_last = torch.ones_like(loop_rows, dtype=torch.bool)
        is_last[:-1] = loop_rows[1:] != loop_rows[:-1]
        remaining[loop_rows[is_last].long() - first] = position[loop][is_last]
        dst, src = torch.cat([dst[~loop], rows]), torch.cat([src[~loop], as_source])
        position = torch.cat([position[~loop], remaining])
        by_src = group_by(src, block.num_sources)[1]
        order = by_src[group_by(dst[by_src], self.num_targets)[1]]
        new = make_block(
            block.source_rank, dst[order], src[order], self.num_targets, block.num_sources, 0,
            compact_rows=block.rows is not None,
        )  # fmt: skip
        return new, position[order]

    def for_seeds(self, mask: Tensor, num_layers: int) -> SeedGraphs:
        """Only what some rows need: a graph for each of `num_layers` layers, the outermost first.

        Layer by layer they give the seeds exactly what this graph gives them, and the loss of the
        seeds the same gradients. Worth it where the seeds are few: rows that cannot influence them
        are neither computed nor exchanged. Every rank of the group calls it.

        Args:
            mask: bool [n], the owned rows to compute; a rank may have none.

        Raises:
            ValueError: on every rank: no rank has a seed, a mask of another shape, `num_layers`
                below 1 or not the same everywhere, or a graph that is a layer or a relation.
        """
        from fullgraph.comm.seeds import seed_graphs

        self.require_one_type("for_seeds")
        self.require_edges_at_targets("for_seeds")
        with ordinary_tensors():
            return seed_graphs(self, mask, num_layers)

    # Results that do not change from step to step -------------------------------------------------

    def is_static(self, rows: Tensor) -> bool:
        """Whether these are the graph's own features, which no step changes."""
        return rows is self.x and not rows.requires_grad

    def keep(self, key: object, sources: Sequence[Tensor | None], result: Tensor) -> Tensor:
        """Remember `result`, computed from `sources`; not what inference mode made, which no
        gradient may pass through later."""
        tensors = [result, *(tensor for tensor in sources if tensor is not None)]
        if not any(tensor.is_inference() for tensor in tensors):
            versions = [_Version.of(tensor) for tensor in sources]
            self._kept[key] = _Kept(versions, result, result._version)
        return result

    def kept(self, key: object, sources: Sequence[Tensor | None]) -> Tensor | None:
        """What was kept under `key` from these very tensors, unless one was written to since."""
        found = self._kept.get(key)
        if found is None or not found.is_from(sources):
            return None
        return None if found.is_outdated(sources) else found.result

    def kept_by_all(self, key: object, sources: Sequence[Tensor | None]) -> Tensor | None:
        """`kept`, for a result that takes an exchange: all ranks have to agree that it is there.

        Raises RuntimeError where a tensor was written to since, as other ranks cannot know.
        """
        found = self._kept.get(key)
        if found is not None and found.is_from(sources) and found.is_outdated(sources):
            raise RuntimeError(
                "graph.x, or a result that was kept for it, was written to after it had been "
                "aggregated. Call graph.forget() on every rank after such a change, or work on a "
                "copy"
            )
        return self.kept(key, sources)

    def forget(self) -> None:
        """Drop what was kept from step to step. Every rank calls it, after a change to `x`."""
        self._kept.clear()
        self.layer_cache.clear()
        if self._looped is not None and self._looped is not self:
            self._looped.forget()

    # Results -----------------------------------------------------------------------------------

    def gather(self, rows: Tensor) -> Tensor | None:
        """Rows of all ranks in the original node order, [N, ...], on rank 0; None elsewhere.

        rows: [n, ...] of this rank, in the order of `node_id`.
        """
        if self.target_rows is not None:
            raise ValueError(
                "a layer of for_seeds computes some rows only: gather on the graph that it came "
                "from, with the other rows filled in"
            )
        return gather_rows(self.group, rows, self.node_id, self.ownership.num_owned, self.num_nodes)

    def rows_of_message(self, row_bytes: int, recorded: bool = False) -> int:
        """How many rows of `row_bytes` a message may have, the same on all ranks.

        An eighth of the rows of the rank that owns most: what is under way is then the same
        fraction of what a rank holds on any number of ranks, and so is what is kept for each
        message of where its edges are. On 2 and 3 ranks a quarter and a sixth: there is room, as
        fewer ranks hold more. Four times as many in a forward pass that is recorded, as more is
        held in the backward pass: targets are gone through once a message. Under a schedule that
        holds all remote rows, all rows.
        """
        owned = (self.source_ownership or self.ownership).num_owned
        messages = min(MESSAGES_OF_A_RANK, 2 * self.group.size)
        if recorded:
            messages = max(1, messages // LARGER_IF_RECORDED)
        if self.schedule.holds_all:
            messages = 1
        least = SMALL_MESSAGE_BYTES // max(1, row_bytes)
        most = self.max_block_bytes // max(1, row_bytes)
        return max(1, min(most, max(least, -(-max(owned) // messages))))

    def rows_of_piece(self, row_bytes: int) -> int:
        """How many rows of `row_bytes`, one for each edge, are computed at a time."""
        return max(1, min(self.max_block_bytes, PIECE_BYTES) // max(1, row_bytes))


def gather_rows(
    group: Group, rows: Tensor, node_id: Tensor, num_owned: Sequence[int], num_nodes: int
) -> Tensor | None:
    """Rows of all ranks, [num_nodes, ...], on rank 0; None elsewhere.

    rows: [n, ...]; node_id: int64 [n], where they go; num_owned: n of every rank.
    """
    if rows.shape[0] != node_id.numel():
        raise ValueError(
            f"rows must have one row for each of the {node_id.numel()} owned nodes, "
            f"got shape {tuple(rows.shape)}"
        )
    mine = [rows.detach().contiguous(), node_id]
    result = rows.new_empty((num_nodes, *rows.shape[1:])) if group.rank == 0 else None
    if result is None:
        for tensor in mine:
            if tensor.numel():
                what = "sending results to rank 0"
                group.wait(group.isend(tensor, 0, what), what)
        return None
    result[node_id] = mine[0]
    for peer in range(1, group.size):
        theirs = [rows.new_empty((num_owned[peer], *rows.shape[1:])),
                  node_id.new_empty(num_owned[peer])]  # fmt: skip
        for tensor in theirs:
            if tensor.numel():
                what = f"receiving results from rank {peer}"
                group.wait(group.irecv(tensor, peer, what), what)
        result[theirs[1]] = theirs[0]
    return result


def check_agreement(group: Group, text: str) -> None:
    """ValueError on every rank unless all of them give the same text."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
    digests = torch.zeros(group.size, dtype=torch.int64)
    digests[group.rank] = digest
    group.all_reduce(digests, "what the ranks are about to build")
    others = (digests != digest).nonzero().view(-1).tolist()
    if others:
        raise ValueError(
            f"rank {group.rank} was given another graph, schedule or max_block_bytes than ranks "
            f"{others}; give all ranks the same"
        )


def _own_parts(partitioned: Partitioned, ownership: Ownership, rank: int) -> list[Part]:
    return [partitioned.part(k) for k in ownership.parts_of(rank)]


def join(pieces: list[Tensor | None]) -> Tensor | None:
    """The pieces that are there, one after the other; None without any."""
    present = [piece for piece in pieces if piece is not None]
    if not present:
        return None
    return present[0] if len(present) == 1 else torch.cat(present)
