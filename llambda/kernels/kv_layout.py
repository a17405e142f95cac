"""Where keys and values lie in a cache, so that one register reads LANES of them. Lesson 11.

A cache is one flat array, float32 or halves (uint16), zeros at the start. Head follows head, all
of the first layer before those of the second. A head has room for some positions, a multiple of
LANES, and in this order

    keys     [room / LANES][head_dim][LANES]    a panel is LANES positions, element by element
    values   [width / LANES][room][LANES]       a panel is LANES elements, position by position

where width is head_dim rounded up to LANES. So the scores of LANES positions, and LANES elements
of the mixed values, are sums of whole registers: no sum goes across lanes.
"""

from typing import Any

import numpy.typing as npt
from llvmlite import ir
from numba.core import types

from ..simd.jit import entry, inlined
from ..simd.memory import float_to_half
from ..simd.registers import FLOAT, HALF, SHORT, Code, instruction, is_place
from ..simd.target import target_has
from ..simd.widest import LANES, floats, load, load_f16

# ---------------------------------------------------------------- sizes


@entry
def up_to_lanes(n: int) -> int:
    """n, or the next multiple of LANES."""
    return (n + LANES - 1) // LANES * LANES


@entry
def head_size(room: int, head_dim: int) -> int:
    """Numbers that the keys and values of one head take; the values begin at room * head_dim."""
    return room * (head_dim + up_to_lanes(head_dim))


# ---------------------------------------------------------------- numbers of either kind


def is_number(array: Any, at: Any) -> bool:
    return is_place(array, at) and array.dtype in (types.float32, types.uint16)


@instruction(lambda array, at: floats if is_number(array, at) else None)
def load_numbers(code: Code, array: Any, at: Any) -> Any:
    """LANES numbers: float32, or halves kept as uint16.

    array[at:at+lanes].view(kind).astype(np.float32)
    """
    halves = code.signature.args[0].dtype == types.uint16
    return (load_f16 if halves else load).write(code, array, at)


@instruction(
    lambda array, at, x: types.none if is_number(array, at) and x == types.float32 else None
)
def store_number(code: Code, array: Any, at: Any, x: Any) -> None:
    """A float32, rounded to the nearest half where the array holds halves.

    array.view(kind)[at] = x
    """
    if code.signature.args[0].dtype == types.uint16:
        x = half_of(code, x)
    code.builder.store(x, code.place(array, at, x.type))


def half_of(code: Code, x: Any) -> Any:
    if target_has("f16c"):
        return code.builder.bitcast(code.builder.fptrunc(x, HALF), SHORT)
    alone = code.builder.bitcast(x, ir.VectorType(FLOAT, 1))
    return code.builder.bitcast(float_to_half(code, alone), SHORT)


# ---------------------------------------------------------------- one position of a head


@inlined
def store_key(cache: Any, head_at: int, position: int, k: Any, at: int, head_dim: int) -> None:
    """k[at : at + head_dim] becomes the key of a position; the head begins at head_at."""
    panel = head_at + position // LANES * head_dim * LANES
    for d in range(head_dim):
        store_number(cache, panel + d * LANES + position % LANES, k[at + d])


@inlined
def store_value(cache: Any, head_at: int, room: int, position: int, v: Any, at: int,
                head_dim: int) -> None:  # fmt: skip
    """v[at : at + head_dim] becomes the value of a position; the head begins at head_at."""
    values = head_at + room * head_dim
    for d in range(head_dim):
        panel = values + d // LANES * room * LANES
        store_number(cache, panel + position * LANES + d % LANES, v[at + d])


# ---------------------------------------------------------------- the same in NumPy


def keys_of(cache: npt.NDArray[Any], head: int, room: int, head_dim: int) -> npt.NDArray[Any]:
    """All keys of a head, [room, head_dim]; head counts through the layers."""
    first = head * head_size(room, head_dim)
    panels = cache[first:][: room * head_dim].reshape(-1, head_dim, LANES)
    return panels.swapaxes(1, 2).reshape(room, head_dim)


def values_of(cache: npt.NDArray[Any], head: int, room: int, head_dim: int) -> npt.NDArray[Any]:
    """All values of a head, [room, head_dim]."""
    size = head_size(room, head_dim)
    panels = cache[head * size + room * head_dim : (head + 1) * size].reshape(-1, room, LANES)
    return panels.swapaxes(0, 1).reshape(room, -1)[:, :head_dim]
