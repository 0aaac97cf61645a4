"""What a layer's message code reads besides its arguments, kept for when it runs again.

The backward pass runs `message` once more, perhaps after the layer was put in another mode, or ran
on other inputs and left other tensors on itself. `LayerState` puts back what was there, and hides
from the layer whatever the code writes on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fullgraph.nn.message_run import Recording, tensors_in

_SCALARS = (bool, int, float, complex, str, type(None))


def _own_dicts(layer: nn.Module) -> list[dict[str, Any]]:
    """Where a layer and the modules in it have their attributes, parameters and buffers."""
    return [
        found
        for module in layer.modules()
        for found in (module.__dict__, module._parameters, module._buffers)
    ]


@contextmanager
def attributes_undone(layer: nn.Module) -> Iterator[list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Attributes that are set inside are as before afterwards; gives them and what they were."""
    found = [(own, dict(own)) for own in _own_dicts(layer)]
    try:
        yield found
    finally:
        for own, before in found:
            for name in [name for name in own if name not in before]:
                del own[name]
            own.update(before)


class LayerState:
    """Attributes of a layer as they are now: scalars, and those of its tensors that its code uses.

    ``draw_seed``: seeds the random numbers of a piece, given its first edge's id; None where the
    code draws none.
    """

    def __init__(
        self, layer: nn.Module, recording: Recording | None, device: torch.device,
        draw_seed: Callable[[int], int] | None,
    ) -> None:  # fmt: skip
        self.layer, self.device, self.draw_seed = layer, device, draw_seed
        used = {} if recording is None else recording.outside
        self.versions = [] if recording is None else [
            (t, v) for key, (t, v) in used.items() if key not in recording.written
        ]  # fmt: skip
        self.then: list[tuple[dict[str, Any], str, Any]] = []
        for own in _own_dicts(layer):
            for name, value in own.items():
                tensors = tensors_in(value)
                if isinstance(value, _SCALARS) or any(id(t) in used for t in tensors):
                    self.then.append((own, name, value))
        kind = device.type
        self.autocast = (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))

    @contextmanager
    def restored(self, swaps: dict[int, Tensor], first_edge: int) -> Iterator[None]:
        """Everything as it was, with some tensors exchanged for others, by id."""
        for tensor, version in self.versions:
            if tensor._version != version:
                raise RuntimeError(
                    f"layer {getattr(self.layer, 'fullgraph_layer', '')!r}: a tensor of shape "
                    f"{tuple(tensor.shape)} that its message uses was written to between the "
                    "forward and the backward pass, which needs it as it was"
                )
        kind, enabled, dtype = self.autocast
        now = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        generator = None if self.draw_seed is None else _generator(self.device)
        state = torch.empty(0) if generator is None else generator.get_state()
        with attributes_undone(self.layer):
            for own, name, value in self.then:
                own[name] = swaps.get(id(value), value)
            try:
                if generator is not None and self.draw_seed is not None:
                    generator.manual_seed(self.draw_seed(first_edge))
                if now == (enabled, dtype):
                    yield
                else:
                    with torch.autocast(kind, dtype, enabled):
                        yield
            finally:
                if generator is not None:
                    generator.set_state(state)


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


@contextmanager
def draws_undone(device: torch.device, seen: Callable[[bool], None]) -> Iterator[None]:
    """Random numbers drawn inside are drawn again afterwards; tells whether there were any."""
    generator = _generator(device)
    state = generator.get_state()
    try:
        yield
    finally:
        seen(not torch.equal(state, generator.get_state()))
        generator.set_state(state)


class OfPieces(Tensor):
    """Stands for a tensor with a row for each edge that a message left on its layer: there are
    only those of the piece that came last."""

    what: str

    @staticmethod
    def of(what: str) -> OfPieces:
        made = torch.empty(0).as_subclass(OfPieces)
        made.what = what
        return made

    def __deepcopy__(self, memo: Any) -> OfPieces:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OfPieces.of, (self.what,)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = next(t for t in tensors_in((args, kwargs or {})) if isinstance(t, OfPieces))
        raise NotImplementedError(
            f"{found.what} has a row for each edge of a piece, and pieces do not stay. Compute "
            "such values in edge_update (self.edge_updater), whose results stay"
        )
