"""METIS, as pymetis carries it, with several weights a node.

METIS can balance several things at once, but ``pymetis.part_graph`` passes it one weight a node.
The extension module of pymetis also exports METIS's own C interface, so that is what is called
here. Where it does not (a build that hides its symbols, or that has another integer width), the
weights are added up in equal shares and go through ``part_graph``: that balances their sum, which
on graphs with hubs leaves each of them less even.

Letters: N nodes, A entries of the adjacency, M weights a node, P parts.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NUM_OPTIONS, OK = 40, 1  # METIS_NOPTIONS, METIS_OK
SEED_OPTION, IMBALANCE_OPTION = 8, 16  # METIS_OPTION_SEED, METIS_OPTION_UFACTOR
MAX_BISECTED = 8  # up to here recursive bisection cuts fewer edges than k-way does
TOTAL_WEIGHT = 1 << 30  # of a summed weight; METIS may have been built with 32-bit integers


def metis(offsets: Ints, neighbours: Ints, weights: Ints, num_parts: int, seed: int) -> Ints:
    """The part of every node, int64 [N]; the same arguments give the same parts.

    offsets [N + 1], neighbours [A]: a symmetric adjacency without loops and duplicates, A >= 1.
    weights [N, M]: not negative, no column all zero; each column is balanced over the parts.
    Raises RuntimeError when METIS reports an error.
    """
    library = _library()
    if library is None or weights.shape[1] == 1:
        return _one_weight(offsets, neighbours, weights, num_parts, seed)
    return _many_weights(library, offsets, neighbours, weights, num_parts, seed)


def _library() -> ctypes.CDLL | None:
    """METIS's C interface with 64-bit integers, or None where pymetis does not export it."""
    try:
        from pymetis import _internal

        library = ctypes.CDLL(_internal.__file__)
        exported = all(
            hasattr(library, name) for name in ("METIS_PartGraphRecursive", "METIS_PartGraphKway")
        )
        return library if exported and _internal._idx_type_width() == 64 else None
    except (ImportError, AttributeError, OSError):
        return None


def _many_weights(
    library: ctypes.CDLL, offsets: Ints, neighbours: Ints, weights: Ints, num_parts: int, seed: int
) -> Ints:
    num_nodes, num_weights = weights.shape
    arrays = [np.ascontiguousarray(a, dtype=np.int64) for a in (offsets, neighbours, weights)]
    options = np.full(NUM_OPTIONS, -1, dtype=np.int64)  # -1 is METIS's own default
    options[SEED_OPTION] = seed
    bisect = num_parts <= MAX_BISECTED
    if bisect:  # in thousandths; 10 is the default for several weights, and the cut is no better
        options[IMBALANCE_OPTION] = 3
    part = np.empty(num_nodes, dtype=np.int64)
    cut = ctypes.c_int64()
    call = library.METIS_PartGraphRecursive if bisect else library.METIS_PartGraphKway
    status = call(
        *(ctypes.byref(ctypes.c_int64(size)) for size in (num_nodes, num_weights)),
        *(_pointer(array) for array in arrays),
        *(None, None),  # vertex sizes, edge weights: all 1
        ctypes.byref(ctypes.c_int64(num_parts)),
        *(None, None),  # target weights, allowed imbalance: equal parts, METIS's default
        _pointer(options),
        ctypes.byref(cut),
        _pointer(part),
    )
    if status != OK:
        raise RuntimeError(f"METIS failed with status {status} for {num_parts} parts")
    return part


def _pointer(array: Ints) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def _one_weight(offsets: Ints, neighbours: Ints, weights: Ints, num_parts: int, seed: int) -> Ints:
    import pymetis  # here, as it takes a quarter of a second

    shares = (weights / weights.sum(axis=0)).mean(axis=1)
    result = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(offsets, neighbours),
        vweights=np.maximum((shares * TOTAL_WEIGHT).astype(np.int64), 1),
        recursive=num_parts <= MAX_BISECTED,
        options=pymetis.Options(seed=seed),
    )
    return np.asarray(result.vertex_part, dtype=np.int64)
