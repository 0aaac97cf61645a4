from __future__ import annotations

import pytest
import torch

from fullgraph.graph.splits import choose_split, random_split


@pytest.mark.parametrize("num_known", [1, 2, 3, 10, 1000])
def test_a_random_split_is_disjoint_covers_the_labelled_nodes_and_trains_on_some(
    num_known: int,
) -> None:
    known = torch.zeros(1200, dtype=torch.bool)
    known[:num_known] = True
    masks = random_split(known, 0.6, 0.2, seed=0)
    total = sum(mask.to(torch.int64) for mask in masks.values())
    assert torch.equal(total, known.to(torch.int64))
    assert masks["train"].any()
    if num_known >= 10:
        counts = [int(mask.sum()) / num_known for mask in masks.values()]
        assert counts == [0.6, 0.2, 0.2]


def test_a_random_split_depends_on_the_seed_alone() -> None:
    known = torch.ones(100, dtype=torch.bool)
    one, same, other = (random_split(known, 0.6, 0.2, seed)["train"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_nothing_labelled_gives_no_masks() -> None:
    assert random_split(torch.zeros(5, dtype=torch.bool), 0.6, 0.2, seed=0) == {}


@pytest.mark.parametrize(("train", "val"), [(0, 0.2), (0.9, 0.2), (1.1, 0), (0.5, -0.1)])
def test_impossible_fractions_are_refused(train: float, val: float) -> None:
    with pytest.raises(ValueError, match=f"train={train}"):
        random_split(torch.ones(5, dtype=torch.bool), train, val, seed=0)


def test_the_split_argument_picks_a_column() -> None:
    mask = torch.tensor([[True, False], [False, True]])
    assert choose_split("train_mask", mask, 1).tolist() == [False, True]
    assert choose_split("train_mask", mask[:, 0], 7).tolist() == [True, False]
    with pytest.raises(ValueError, match="train_mask: split 2 does not exist; there are 2"):
        choose_split("train_mask", mask, 2)
