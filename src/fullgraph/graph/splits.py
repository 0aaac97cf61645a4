"""Train, validation and test masks: choosing one of several, and making one where none exists.

Letters: N nodes, S splits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def choose_split(name: str, mask: Tensor, split: int) -> Tensor:
    """bool [N] out of a mask [N] (which every split shares) or column `split` of [N, S].

    Raises ValueError when there is no such column.
    """
    if mask.dim() != 2:
        return mask
    if not 0 <= split < mask.shape[1]:
        raise ValueError(
            f"{name}: split {split} does not exist; there are {mask.shape[1]}, "
            f"numbered from 0 (mask of shape {list(mask.shape)})"
        )
    return mask[:, split].contiguous()


def random_split(known: Tensor, train: float, val: float, seed: int) -> dict[str, Tensor]:
    """Disjoint random masks [N] over the nodes where `known` [N] is True; the rest is "test".

    `train` and `val` are fractions of the known nodes; at least one node is for training. No
    masks at all when nothing is known. The same arguments give the same masks.
    """
    if not (0 < train <= 1 and 0 <= val <= 1 and train + val <= 1):
        raise ValueError(
            f"train={train}, val={val}: the fractions must be 0 < train, 0 <= val and "
            "train + val <= 1; what is left over is for testing"
        )
    nodes = known.nonzero().view(-1).numpy()
    if nodes.size == 0:
        return {}
    order = np.random.default_rng([seed, 0x5B117]).permutation(nodes)
    num_train = max(1, round(train * nodes.size))
    num_val = min(round(val * nodes.size), nodes.size - num_train)
    pieces = np.split(order, [num_train, num_train + num_val])
    masks = {}
    for key, piece in zip(("train", "val", "test"), pieces):
        masks[key] = torch.zeros(known.numel(), dtype=torch.bool)
        masks[key][torch.from_numpy(piece)] = True
    return masks
