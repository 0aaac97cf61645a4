"""Which model to train: options that are checked without PyG, which takes seconds to load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# `fullgraph.training.models` has how each is built.
NAMES = ("gcn", "sage", "gin", "gat", "graphconv", "sgc", "appnp", "mlp")
NORMS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {}),
    "batch": ("BatchNorm", {}),
    "layer": ("LayerNorm", {"mode": "node"}),
}


@dataclass(frozen=True)
class ModelOptions:
    """A named model, without the sizes that the graph decides.

    Attributes:
        name: one of `NAMES`.
        layers: message-passing layers; steps of propagation for "sgc"; for "appnp", layers of the
            perceptron before its 10 steps.
        hidden: columns between layers; "sgc" has none.
        dropout: before every layer but the first, in training.
        input_dropout: on the input features, before the first layer.
        norm: between layers: "none", "batch" or "layer".
        heads: of "gat", which share the columns between layers; the last layer takes their mean.
    """

    name: str = "sage"
    layers: int = 2
    hidden: int = 64
    dropout: float = 0.5
    input_dropout: float = 0.0
    norm: str = "none"
    heads: int = 4

    def validate(self) -> None:
        """Raises ValueError naming the option."""
        if self.name not in NAMES:
            raise ValueError(f"model {self.name!r} is unknown; choose one of {', '.join(NAMES)}")
        if self.norm not in NORMS:
            raise ValueError(f"norm {self.norm!r} is unknown; choose one of {', '.join(NORMS)}")
        for key in ("layers", "hidden", "heads"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("dropout", "input_dropout"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(
                    f"{key} must be at least 0 and less than 1, got {getattr(self, key)}"
                )
        if self.name == "sgc" and self.norm != "none":
            raise ValueError("norm: sgc is one linear layer, with nothing to normalise")
        if self.name == "gat" and self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of heads for gat, got {self.hidden} and {self.heads}"
            )
