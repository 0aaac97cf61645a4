"""Gathering, adding back and dropout against the reference and published values."""

from __future__ import annotations

import pytest
import torch

from fullgraph import kernels
from fullgraph.kernels import _ops, reference
from tests.kernels.csr import DTYPES, WIDTHS, generator, normal

pytestmark = pytest.mark.usefixtures("isa")

# Random123's known answers for philox4x32-10: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, output: str) -> None:
    c, (key_low, key_high) = words(counter), words(key)
    seed = key_low | key_high << 32
    assert [int(w) for w in reference.philox([torch.tensor(w) for w in c], seed)] == words(output)
    row_id, layer = c[0] | (c[1] & 0xFFFF) << 32, c[1] >> 16
    assert _ops.native.philox_draws(row_id, c[2], seed, c[3], layer) == words(output)


@pytest.mark.parametrize("column", range(4))
def test_an_element_is_kept_from_its_draw_upwards(column: int) -> None:
    """The first known answer is the draw of seed 0, step 0, layer 0, id 0, columns 0 to 3."""
    draw = words(KNOWN_ANSWERS[0][2])[column]
    for p, kept in ((draw / 2**32, True), ((draw + 1) / 2**32, False)):
        out = torch.zeros(1, 4)
        kernels.dropout(torch.ones(1, 4), torch.zeros(1).long(), out, p=p, seed=0, step=0, layer=0)
        assert (out[0, column] > 0) == kept


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_features", [*WIDTHS, 20, 65, 500])
def test_dropout_is_the_reference_bit_by_bit(num_features: int, dtype: torch.dtype) -> None:
    x = normal(201, num_features, dtype=dtype)
    ids = torch.randint(0, 2**48, (201,), generator=generator())
    for p, seed, step, layer in (
        (0.5, 2**63 + 5, 2**32 + 7, 65535),
        (0.1, -3, 0, 0),
        (0.9, 1, 2, 3),
    ):
        args = {"p": p, "seed": seed, "step": step, "layer": layer}
        out, expected = torch.empty_like(x), torch.empty_like(x)
        kernels.dropout(x, ids, out, **args)
        reference.dropout(x, ids, expected, p, seed, step, layer)
        assert torch.equal(out, expected)
        if num_features > 50:
            assert abs((out == 0).double().mean() - p) < 0.02
        in_place = x.clone()
        kernels.dropout(in_place, ids, in_place, **args)
        assert torch.equal(in_place, out)


def test_dropout_depends_on_the_id_not_on_the_position() -> None:
    x, ids = torch.ones(100, 33), torch.arange(100) * 2**40
    out, shuffled, order = torch.empty(100, 33), torch.empty(100, 33), torch.randperm(100)
    args = {"p": 0.4, "seed": 1, "step": 2, "layer": 3}
    kernels.dropout(x, ids, out, **args)
    kernels.dropout(x, ids[order], shuffled, **args)
    assert torch.equal(shuffled, out[order])
    column = torch.empty(100)
    kernels.dropout(x[:, 0].contiguous(), ids, column, **args)
    assert torch.equal(column, out[:, 0])
    for other in ({"seed": 2}, {"seed": 1 + 2**32}, {"step": 3}, {"layer": 4}):
        kernels.dropout(x, ids, shuffled, **{**args, **other})
        assert not torch.equal(shuffled, out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_of_nothing_copies_and_of_all_gives_zeros(dtype: torch.dtype) -> None:
    x = torch.full((9, 7), float("inf"), dtype=dtype)
    out, ids = torch.empty_like(x), torch.arange(9)
    kernels.dropout(x, ids, out, p=0, seed=0, step=0, layer=0)
    assert torch.equal(out, x)
    kernels.dropout(x, ids, out, p=1, seed=0, step=0, layer=0)
    assert torch.equal(out, torch.zeros_like(x))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("num_features", WIDTHS)
@pytest.mark.parametrize("num_rows", [0, 1, 500])
def test_gather_rows_copies(num_rows: int, num_features: int, dtype: torch.dtype) -> None:
    x = normal(60, num_features).mul(10).to(dtype)
    index = torch.randint(0, 60, (num_rows,), generator=generator(), dtype=torch.int32)
    out = torch.zeros(num_rows, num_features, dtype=dtype)
    kernels.gather_rows(x, index, out)
    assert torch.equal(out, x[index.long()])


def test_gather_rows_rounds_float32_to_bfloat16_as_torch_does() -> None:
    x = normal(200, 37, dtype=torch.float32)
    x[:3] = torch.tensor([[float("nan")], [float("inf")], [1 + 2**-8]])  # the last one is a tie
    index = torch.randperm(200, dtype=torch.int32)
    out = torch.zeros(200, 37, dtype=torch.bfloat16)
    kernels.gather_rows(x, index, out)
    torch.testing.assert_close(out, x[index.long()].bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_features", WIDTHS)
@pytest.mark.parametrize("num_rows", [0, 1, 500])
def test_scatter_add_rows_adds(num_rows: int, num_features: int, dtype: torch.dtype) -> None:
    out = normal(600, num_features, dtype=dtype)
    x = normal(num_rows, num_features, dtype=dtype, seed=2)
    index = torch.randperm(600, generator=generator())[:num_rows]
    expected = out.clone()
    expected[index] += x
    kernels.scatter_add_rows(out, index.int(), x)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("num_keys", "num_groups"), [(0, 0), (0, 5), (1000, 1), (5000, 300)])
def test_group_by_is_a_stable_sort(num_keys: int, num_groups: int, dtype: torch.dtype) -> None:
    keys = torch.randint(0, max(num_groups, 1), (num_keys,), generator=generator()).to(dtype)
    offsets, order = kernels.group_by(keys, num_groups)
    assert torch.equal(order, keys.argsort(stable=True))
    assert torch.equal(offsets.diff(), torch.bincount(keys, minlength=num_groups)[:num_groups])
    assert int(offsets[0]) == 0
    by_torch = torch.empty_like(offsets), torch.empty_like(order)
    assert reference.group_by(keys, *by_torch) == -1
    assert torch.equal(by_torch[0], offsets)
    assert torch.equal(by_torch[1], order)


def test_group_by_takes_every_second_key() -> None:
    assert kernels.group_by(torch.tensor([1, 9, 0, 9]).long()[::2], 2)[1].tolist() == [1, 0]
