"""A matrix in panels times a few rows: both products of attention. Lesson 11.

A panel is LANES rows of the matrix side by side, column after column: [columns][LANES]. Two panels
are multiplied at once, with a tile of rows of x, so that enough sums run beside each other to hide
how long one takes. Each is added up from the first column to the last, whatever stands beside it.
"""

from typing import Any

from llvmlite import ir

from ..simd.jit import inlined, kernel
from ..simd.memory import prefetch
from ..simd.registers import Code, instruction, is_place
from ..simd.tiles import (
    floats1,
    floats4,
    floats_tile,
    fma_each,
    is_tile,
    pair1,
    pair4,
    pair_tile,
    store_tile1,
    store_tile2,
)
from ..simd.widest import LANES, floats
from .activations import tile_count, tile_of
from .kv_layout import load_numbers

AHEAD = 96  # columns that are asked for before they are needed: memory answers late


def of_rows(acc: Any, w: Any, x: Any, at: Any, stride: Any) -> Any:
    fits = is_tile(acc, floats) and is_tile(w, floats) and acc.count % w.count == 0
    return acc if fits and is_place(x, at) else None


@instruction(of_rows)
def fma_rows(code: Code, acc: Any, w: Any, x: Any, at: Any, stride: Any) -> Any:
    """Weights of one column times that column of every row of x, where rows are `stride` apart.

    acc + w * x[at :: stride][: len(acc), None, None]
    """

    def place(row: int) -> Any:
        return code.builder.add(at, code.builder.mul(stride, ir.Constant(stride.type, row)))

    return fma_each(code, acc, w, x, place)


@inlined
def load_one(w: Any, at: int, step: int) -> Any:
    return (load_numbers(w, at),)


@inlined
def load_pair(w: Any, at: int, step: int) -> Any:
    return load_numbers(w, at), load_numbers(w, at + step)


@inlined
def multiply_tile(panels: Any, store: Any, acc: Any, matrix: Any, panel: int, rows: Any, first: int,
                  out: Any) -> None:  # fmt: skip
    """As many panels as `panels` loads, times the tile that begins at row `first`."""
    w, at, stored, columns = matrix
    x, x_at, x_stride, _ = rows
    y, y_at, y_stride = out
    for c in range(columns):
        place = at + (panel * stored + c) * LANES
        if len(acc) <= 8:  # few rows: more reading than computing
            prefetch(w, place + AHEAD * LANES)
            prefetch(w, place + (stored + AHEAD) * LANES)
        column = panels(w, place, stored * LANES)
        acc = fma_rows(acc, column, x, x_at + first * x_stride + c, x_stride)
    store(y, y_at + first * y_stride + panel * LANES, y_stride, acc)


@inlined
def multiply_rows(panels: Any, store: Any, acc1: Any, acc4: Any, acc_tile: Any, matrix: Any,
                  panel: int, rows: Any, out: Any) -> None:  # fmt: skip
    count = rows[3]
    for i in range(tile_count(count)):
        first, _, width = tile_of(count, i)
        if width == 1:
            multiply_tile(panels, store, acc1, matrix, panel, rows, first, out)
        elif width == 4:
            multiply_tile(panels, store, acc4, matrix, panel, rows, first, out)
        else:
            multiply_tile(panels, store, acc_tile, matrix, panel, rows, first, out)


@kernel
def multiply(matrix: Any, first: int, last: int, rows: Any, out: Any) -> None:
    """Panels first to last of a matrix times rows, each added up from the first column on.

    matrix : (w, at, stored, columns): panels [stored][LANES], of which `columns` are used
    rows : (x, at, stride, count); in x and out there is room, holding anything, to fill a tile
    out : (y, at, stride); y[at + r * stride + p * LANES :] gets LANES products of panel p, row r
    """
    for panel in range(first, last - 1, 2):
        multiply_rows(load_pair, store_tile2, pair1(), pair4(), pair_tile(), matrix, panel, rows,
                      out)  # fmt: skip
    if (last - first) % 2 == 1:
        multiply_rows(load_one, store_tile1, floats1(), floats4(), floats_tile(), matrix, last - 1,
                      rows, out)  # fmt: skip
