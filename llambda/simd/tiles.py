"""Several registers at once: a tile of sums, a few for each of some tokens.

One load of weights serves all tokens of a tile, and as long as the sums fit into the registers
none of them touches memory. A tile is a tuple of vectors: Numba passes it around as a value, and
LLVM keeps its parts in registers.

The last line of each docstring says in NumPy what the function gives. There `acc` and `sums` are
arrays of [tokens, k, lanes] for k vectors a token, and `w` is one of [k, lanes], or of the bytes of
one vector. `x` is what the call reads from x[at] on: a number for each token, or [tokens, 4] bytes.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from .arithmetic import constant, fma, to_f32
from .integers import absolute, dot4, madd, maddubs, sign
from .registers import BYTE, FLOAT, INT, SHORT, Code, Vector, instruction, is_place
from .widest import LANES, floats, ints, shorts, unsigned

pack: Any = cgutils.pack_array
several: Any = types.UniTuple

TILE = 12 if LANES == 16 else 6  # tokens, so that two sums for each leave registers to work with


@cache
def zeros(vector: Vector, count: int) -> Any:
    """A function () that gives `count` registers of zeros."""

    @instruction(lambda: several(vector, count), f"{vector}_zeros_{count}")
    def tile(code: Code) -> Any:
        """np.zeros((count, lanes), dtype)"""
        kind = code.context.get_value_type(vector)
        return pack(code.builder, [constant(kind, 0)] * count)

    return tile


# Of floats: one register for each token, and two.
floats1, floats4, floats_tile = zeros(floats, 1), zeros(floats, 4), zeros(floats, TILE)
pair1, pair4, pair_tile = zeros(floats, 2), zeros(floats, 8), zeros(floats, 2 * TILE)


def is_tile(tile: Any, *vectors: Vector) -> bool:
    return isinstance(tile, types.UniTuple) and tile.dtype in vectors


def parts(code: Code, tile: Any) -> list[Any]:
    return [code.builder.extract_value(tile, i) for i in range(tile.type.count)]


def spread(code: Code, array: int, values: Any, at: Any, word: ir.Type, lanes: int) -> Any:
    """values[at] in all lanes, where `values` is the call's argument number `array`."""
    place = code.builder.bitcast(code.element(array, values, at), word.as_pointer())
    return code.splat(code.builder.load(place, align=1), lanes)


def after(code: Code, at: Any, steps: int) -> Any:
    return code.builder.add(at, ir.Constant(at.type, steps))


def of_weights(acc: Any, w: Any, x: Any, at: Any) -> Any:
    fits = is_tile(acc, floats) and is_tile(w, floats) and acc.count % w.count == 0
    return acc if fits and is_place(x, at) else None


@instruction(of_weights)
def fma_tile(code: Code, acc: Any, w: Any, x: Any, at: Any) -> Any:
    """Weights of one column times that column of every token, each rounded once.

    (acc + w.astype(np.float64) * x[:, None, None]).astype(np.float32)
    """
    return fma_each(code, acc, w, x, lambda t: after(code, at, t))


def fma_each(code: Code, acc: Any, w: Any, x: Any, place: Callable[[int], Any]) -> Any:
    """Onto the sums of each token t, the weights times x[place(t)]."""
    weights, sums = parts(code, w), parts(code, acc)
    made = []
    for t in range(len(sums) // len(weights)):
        number = spread(code, 2, x, place(t), FLOAT, LANES)
        for k, each in enumerate(weights):
            made.append(fma.write(code, each, number, sums[t * len(weights) + k]))
    return pack(code.builder, made)


def of_codes(sums: Any, w: Any, x: Any, at: Any) -> Any:
    fits = is_tile(sums, ints, shorts) and w == unsigned and is_place(x, at)
    return sums if fits else None


@instruction(of_codes)
def dot_tile(code: Code, sums: Any, w: Any, x: Any, at: Any) -> Any:
    """Unsigned codes of four columns times those four signed bytes of every token.

    In a tile of shorts two neighbouring products go to one lane, and must fit there.

    sums + (w.astype(int) * np.tile(x, lanes)).reshape(*sums.shape, -1).sum(-1)
    """
    kind = ir.VectorType(BYTE, w.type.count)
    made = []
    for t, total in enumerate(parts(code, sums)):
        word = spread(code, 2, x, after(code, at, 4 * t), INT, LANES)
        numbers = code.builder.bitcast(word, kind)
        if total.type.element == SHORT:
            made.append(code.builder.add(total, maddubs.write(code, w, numbers)))
        else:
            made.append(dot4.write(code, total, w, numbers))
    return pack(code.builder, made)


def of_signed(sums: Any, w: Any, x: Any, at: Any) -> Any:
    fits = is_tile(sums, ints) and w == unsigned and is_place(x, at)
    return sums if fits else None


@instruction(of_signed)
def dot_signed_tile(code: Code, sums: Any, w: Any, x: Any, at: Any) -> Any:
    """As dot_tile, of codes that are 128 too large, for targets that only multiply pairs.

    The sign goes from the weight to the token's number, which is at most 127, so that the sum of
    two products fits into a short.

    sums + ((w.astype(int) - 128) * np.tile(x, lanes)).reshape(*sums.shape, -1).sum(-1)
    """
    kind = w.type
    weight = code.builder.xor(w, ir.Constant(kind, [128] * kind.count))
    size = absolute.write(code, weight)
    made = []
    for t, total in enumerate(parts(code, sums)):
        word = spread(code, 2, x, after(code, at, 4 * t), INT, LANES)
        signed = sign.write(code, code.builder.bitcast(word, kind), weight)
        pairs = maddubs.write(code, size, signed)
        made.append(code.builder.add(total, madd.write(code, pairs, constant(pairs.type, 1))))
    return pack(code.builder, made)


@instruction(lambda sums, small: sums if is_tile(sums, ints) and is_tile(small, shorts) else None)
def widen_tile(code: Code, sums: Any, small: Any) -> Any:
    """Add the two shorts of every lane.

    sums + small.astype(int).reshape(*sums.shape, 2).sum(-1)
    """
    made = []
    for total, pair in zip(parts(code, sums), parts(code, small), strict=True):
        wide = madd.write(code, pair, constant(pair.type, 1))
        made.append(code.builder.add(total, wide))
    return pack(code.builder, made)


@instruction(lambda sums, x, at, n: sums if is_tile(sums, ints) and is_place(x, at) else None)
def offset_tile(code: Code, sums: Any, x: Any, at: Any, n: Any) -> Any:
    """Add each token's whole number, moved up by n bits.

    sums + (x.view(np.int32) << n)[:, None, None]
    """
    made = []
    for t, total in enumerate(parts(code, sums)):
        number = spread(code, 1, x, after(code, at, t), INT, LANES)
        bits = code.splat(code.argument(3, n, types.int32), LANES)
        made.append(code.builder.add(total, code.builder.shl(number, bits)))
    return pack(code.builder, made)


def of_scales(acc: Any, sums: Any, d: Any, x: Any, at: Any) -> Any:
    fits = is_tile(acc, floats) and is_tile(sums, ints) and d == floats and is_place(x, at)
    return acc if fits and acc.count == sums.count else None


@instruction(of_scales)
def scale_tile(code: Code, acc: Any, sums: Any, d: Any, x: Any, at: Any) -> Any:
    """Whole sums become numbers: times the scale of each row, times the scale of each token.

    (acc + (sums.astype(np.float32) * d).astype(np.float64) * x[:, None, None]).astype(np.float32)
    """
    made = []
    for t, (total, whole) in enumerate(zip(parts(code, acc), parts(code, sums), strict=True)):
        number = spread(code, 3, x, after(code, at, t), FLOAT, LANES)
        scaled = code.builder.fmul(to_f32.write(code, whole), d)
        made.append(fma.write(code, scaled, number, total))
    return pack(code.builder, made)


def places(code: Code, at: Any, stride: Any, k: int, count: int) -> Any:
    """Where the vectors of a tile lie: the k of a token in a row, token after token by stride."""
    for i in range(count):
        token = code.builder.mul(stride, ir.Constant(stride.type, i // k))
        yield after(code, code.builder.add(at, token), i % k * LANES)


def storer(k: int) -> Any:
    @instruction(
        lambda out, at, stride, acc: (
            types.none if is_place(out, at) and is_tile(acc, floats) else None
        )
    )
    def store_tile(code: Code, out: Any, at: Any, stride: Any, acc: Any) -> None:
        """Write the sums of each token, `stride` apart.

        for t, v in enumerate(acc): out[at + t * stride :][: k * lanes] = v.reshape(-1)
        """
        every = parts(code, acc)
        for v, place in zip(every, places(code, at, stride, k, len(every)), strict=True):
            code.builder.store(v, code.place(out, place, v.type), align=code.align)

    return store_tile


def reloader(k: int) -> Any:
    @instruction(
        lambda out, at, stride, acc: acc if is_place(out, at) and is_tile(acc, floats) else None
    )
    def load_tile(code: Code, out: Any, at: Any, stride: Any, acc: Any) -> Any:
        """What store_tile wrote; acc says only how many.

        np.array([out[at + t * stride :][: k * lanes].reshape(k, -1) for t in range(len(acc))])
        """
        kind = code.context.get_value_type(floats)
        made = [
            code.builder.load(code.place(out, place, kind), align=code.align)
            for place in places(code, at, stride, k, acc.type.count)
        ]
        return pack(code.builder, made)

    return load_tile


store_tile1, store_tile2 = storer(1), storer(2)
load_tile2 = reloader(2)
