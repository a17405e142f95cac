"""Every vector function equals its NumPy meaning: the last line of its docstring, evaluated.

The same tests hold for any target: with NUMBA_CPU_NAME=generic and NUMBA_CPU_FEATURES= (empty) they
test the portable forms.
"""

import functools
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from llambda.simd import arithmetic, cpu, foreign, integers, listing, memory, registers, target
from llambda.simd.arithmetic import add, fma, splat_f32x8, total
from llambda.simd.memory import load_f32x8, store
from llambda.simd.registers import Vector

ROWS = 64  # vectors that a function is tried on

LOAD = {
    registers.f32x8: memory.load_f32x8,
    registers.f32x16: memory.load_f32x16,
    registers.i32x8: memory.load_i32x8,
    registers.i32x16: memory.load_i32x16,
    registers.i16x16: memory.load_i16x16,
    registers.i16x32: memory.loader(registers.i16x32),
    registers.i8x32: memory.load_i8x32,
    registers.i8x64: memory.load_i8x64,
    registers.u8x32: memory.load_u8x32,
    registers.u8x64: memory.load_u8x64,
}
REAL = [registers.f32x8, registers.f32x16]
WORDS = [registers.i32x8, registers.i32x16]
BYTES = [registers.i8x32, registers.i8x64, registers.u8x32, registers.u8x64]
WHOLE = [*WORDS, registers.i16x16, *BYTES]


def dtype(vector: Vector) -> np.dtype:
    return np.dtype(str(vector.element))


def values(vector: Vector, seed: int, limit: float = 1e3) -> np.ndarray:
    """[ROWS, lanes]: random numbers, and rows of the extreme ones."""
    rng, kind = np.random.default_rng(seed), dtype(vector)
    shape = (ROWS, vector.lanes)
    if vector.real:
        made = rng.normal(0, limit / 4, shape).clip(-limit, limit).astype(kind)
        extreme = np.array([0.0, -0.0, 0.5, -1.5, 2.5, limit, -limit, 1e-30], kind)
    else:
        info = np.iinfo(kind)
        made = rng.integers(info.min, info.max, shape, kind, endpoint=True)
        extreme = np.array([info.min, info.min + 1, 0, 1, info.max // 2, info.max], kind)
    made[: ROWS // 2] = rng.choice(extreme, (ROWS // 2, vector.lanes))
    made[: len(extreme)] = extreme[:, None]
    return made


def meaning(function: Any) -> str:
    """The last line of a docstring: an expression."""
    return [line.strip() for line in function.__doc__.splitlines() if line.strip()][-1]


def compiled(function: Any, vectors: tuple[Vector, ...]) -> Callable[..., None]:
    """Rows of vectors in, rows of results out."""
    loads = [LOAD[vector] for vector in vectors]
    first, second, third = (loads * 3)[:3]
    lanes = vectors[0].lanes

    @njit
    def one(a, b, c, out):
        for row in range(ROWS):
            store(out, row * (out.size // ROWS), function(first(a, row * lanes)))

    @njit
    def two(a, b, c, out):
        for row in range(ROWS):
            result = function(first(a, row * lanes), second(b, row * (b.size // ROWS)))
            store(out, row * (out.size // ROWS), result)

    @njit
    def three(a, b, c, out):
        for row in range(ROWS):
            x, y = first(a, row * lanes), second(b, row * (b.size // ROWS))
            result = function(x, y, third(c, row * (c.size // ROWS)))
            store(out, row * (out.size // ROWS), result)

    return [one, two, three][len(vectors) - 1]


def assert_meant(function: Any, vectors: tuple[Vector, ...], limit: float = 1e3) -> None:
    """The function gives, bit for bit, what its docstring says."""
    inputs = [values(vector, seed, limit) for seed, vector in enumerate(vectors)]
    rows = []
    for row in range(ROWS):
        names = dict(zip("abc", [each[row] for each in inputs], strict=False))
        with np.errstate(all="ignore"):
            rows.append(eval(meaning(function), {"np": np, "v": inputs[0][row], **names}))
    wanted = np.array(rows)
    out = np.zeros(wanted.size, wanted.dtype)
    flat = [np.ascontiguousarray(each).reshape(-1) for each in inputs]
    compiled(function, vectors)(*(flat * 3)[:3], out)
    assert np.array_equal(out.view(np.uint8), wanted.reshape(-1).view(np.uint8))


# ---------------------------------------------------------------- lane by lane


@pytest.mark.parametrize("vector", [*REAL, *WHOLE], ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_arithmetic_of_all_kinds(name: str, vector: Vector):
    assert_meant(getattr(arithmetic, name), (vector, vector))


@pytest.mark.parametrize("vector", REAL, ids=str)
@pytest.mark.parametrize("name", ["maximum", "minimum", "div"])
def test_real_arithmetic(name: str, vector: Vector):
    assert_meant(getattr(arithmetic, name), (vector, vector))


@pytest.mark.parametrize("vector", WORDS, ids=str)
def test_the_larger_of_whole_numbers(vector: Vector):
    assert_meant(arithmetic.maximum, (vector, vector))


@pytest.mark.parametrize("vector", WHOLE, ids=str)
@pytest.mark.parametrize("name", ["bit_and", "bit_or", "bit_xor"])
def test_bits(name: str, vector: Vector):
    assert_meant(getattr(arithmetic, name), (vector, vector))


@pytest.mark.parametrize("vector", REAL, ids=str)
def test_a_product_and_a_sum_are_rounded_once(vector: Vector):
    assert_meant(fma, (vector,) * 3, limit=1e3)


@pytest.mark.parametrize("vector", REAL, ids=str)
@pytest.mark.parametrize("name", ["magnitude", "to_i32", "as_i32"])
def test_of_real_numbers(name: str, vector: Vector):
    assert_meant(getattr(arithmetic, name), (vector,))


@pytest.mark.parametrize("vector", WORDS, ids=str)
@pytest.mark.parametrize("name", ["to_f32", "as_f32"])
def test_of_whole_numbers(name: str, vector: Vector):
    assert_meant(getattr(arithmetic, name), (vector,))


@pytest.mark.parametrize("vector", WHOLE, ids=str)
@pytest.mark.parametrize("name", ["shift_left", "shift_right"])
def test_shifts(name: str, vector: Vector):
    function, lanes, load = getattr(arithmetic, name), vector.lanes, LOAD[vector]

    @njit
    def shifted(array, n, out):
        for at in range(0, array.size, lanes):
            store(out, at, function(load(array, at), n))

    v = values(vector, 1)
    for n in (0, 1, 4, 8 * v.itemsize - 1):
        out = np.zeros(v.size, v.dtype)
        shifted(v.reshape(-1), n, out)
        assert np.array_equal(out.reshape(v.shape), eval(meaning(function)))


@pytest.mark.parametrize(
    ("name", "number", "vector"),
    [
        ("splat_f32x8", 1.5, registers.f32x8),
        ("splat_f32x16", -3, registers.f32x16),
        ("splat_i32x8", -7, registers.i32x8),
        ("splat_i32x16", 2**31 - 1, registers.i32x16),
    ],
)
def test_one_number_in_every_lane(name: str, number: float, vector: Vector):
    splat = getattr(arithmetic, name)

    @njit
    def filled(x, out):
        store(out, 0, splat(x))

    out = np.zeros(vector.lanes + 1, dtype(vector))
    filled(number, out)
    assert out.tolist() == [number] * vector.lanes + [0]


# ---------------------------------------------------------------- across lanes


@pytest.mark.parametrize("vector", [*REAL, *WORDS], ids=str)
def test_the_sum_of_the_lanes_has_its_order(vector: Vector):
    lanes, load = vector.lanes, LOAD[vector]

    @njit
    def summed(array, out):
        for row in range(ROWS):
            out[row] = total(load(array, row * lanes))

    v = values(vector, 2)
    out = np.zeros(ROWS, v.dtype)
    summed(v.reshape(-1), out)
    halves = v
    with np.errstate(over="ignore"):
        for _ in range(int(math.log2(lanes))):
            half = halves.shape[1] // 2
            halves = halves[:, :half] + halves[:, half:]
    assert np.array_equal(out, halves[:, 0])


@pytest.mark.parametrize("vector", [*REAL, *WORDS], ids=str)
def test_the_largest_lane(vector: Vector):
    lanes, load = vector.lanes, LOAD[vector]

    @njit
    def found(array, out):
        for row in range(ROWS):
            out[row] = arithmetic.largest(load(array, row * lanes))

    v = values(vector, 3)
    out = np.zeros(ROWS, v.dtype)
    found(v.reshape(-1), out)
    assert np.array_equal(out, v.max(1))


# ---------------------------------------------------------------- whole numbers

TRIPLES = {
    "maddubs": [("u8x32", "i8x32"), ("u8x64", "i8x64")],
    "madd": [("i16x16", "i16x16"), ("i16x32", "i16x32")],
    "dot4": [("i32x8", "u8x32", "i8x32"), ("i32x16", "u8x64", "i8x64")],
    "sign": [("i8x32", "i8x32"), ("i8x64", "i8x64")],
    "absolute": [("i8x32",), ("i8x64",)],
}


@pytest.mark.parametrize(
    ("name", "kinds"), [(name, kinds) for name, all_ in TRIPLES.items() for kinds in all_]
)
def test_integer_products(name: str, kinds: tuple[str, ...]):
    assert_meant(getattr(integers, name), tuple(getattr(registers, kind) for kind in kinds))


def test_every_pair_of_bytes():
    """maddubs sees all pairs of an unsigned and a signed byte, and saturates where it must."""
    lanes = 32

    @njit
    def products(u, s, out):
        for row in range(u.size // lanes):
            at = row * lanes
            got = integers.maddubs(memory.load_u8x32(u, at), memory.load_i8x32(s, at))
            store(out, row * 16, got)

    pairs = np.array(list(product(range(256), range(-128, 128))))
    u = np.repeat(pairs[:, 0], 2).astype(np.uint8)
    s = np.repeat(pairs[:, 1], 2).astype(np.int8)
    out = np.zeros(len(pairs), np.int16)
    products(u, s, out)
    assert np.array_equal(out, (2 * pairs[:, 0] * pairs[:, 1]).clip(-32768, 32767))


UNSIGNED = [registers.u8x32, registers.u8x64]


@pytest.mark.parametrize("vector", UNSIGNED, ids=str)
def test_the_last_bits_of_bytes(vector: Vector):
    lanes, load = vector.lanes, LOAD[vector]

    @njit
    def masked(array, n, out):
        for at in range(0, array.size, lanes):
            store(out, at, integers.low_bits(load(array, at), n))

    v = np.arange(256, dtype=np.uint8)
    for n in range(8):
        out = np.zeros_like(v)
        masked(v, n, out)
        assert np.array_equal(out, eval(meaning(integers.low_bits)))


@pytest.mark.parametrize("vector", UNSIGNED, ids=str)
def test_a_bit_more_for_every_byte(vector: Vector):
    lanes, load = vector.lanes, LOAD[vector]

    @njit
    def joined(bytes_, array, at, n, out):
        for row in range(ROWS):
            v = integers.add_bit(load(bytes_, row * lanes), array, at + row, n)
            store(out, row * lanes, v)

    every, bits = values(vector, 8), values(registers.u8x32, 9).reshape(-1)
    for n in range(8):
        out = np.zeros_like(every)
        joined(every.reshape(-1), bits, 5, n, out.reshape(-1))
        for row, v in enumerate(every):
            names = {"np": np, "v": v, "array": bits, "at": 5 + row, "n": n}
            assert np.array_equal(out[row], eval(meaning(integers.add_bit), names))


# ---------------------------------------------------------------- memory


def every_half() -> np.ndarray:
    return np.arange(65536).astype(np.uint16)


@pytest.mark.parametrize("lanes", [8, 16])
def test_all_halves_are_widened(lanes: int):
    from_half = getattr(memory, f"load_f16x{lanes}")
    from_bfloat = getattr(memory, f"load_bf16x{lanes}")

    @njit
    def widened(bits, halves, bfloats):
        for at in range(0, bits.size, lanes):
            store(halves, at, from_half(bits, at))
            store(bfloats, at, from_bfloat(bits, at))

    bits = every_half()
    halves, bfloats = np.zeros((2, bits.size), np.float32)
    widened(bits, halves, bfloats)
    assert np.array_equal(halves, bits.view(np.float16).astype(np.float32), equal_nan=True)
    wanted = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(bfloats.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_all_bytes_are_widened(kind: Any, lanes: int):
    load = getattr(memory, f"load_{np.dtype(kind).kind}8_f32x{lanes}")

    @njit
    def widened(array, out):
        for at in range(0, array.size, lanes):
            store(out, at, load(array, at))

    for array in (np.arange(256).astype(np.uint8), np.arange(-128, 128).astype(np.int8)):
        out = np.zeros(array.size, np.float32)
        widened(array, out)
        for at in range(0, array.size, lanes):
            assert np.array_equal(out[at : at + lanes], eval(meaning(load)))


def test_halves_are_rounded_to_the_nearest():
    @njit
    def narrowed(numbers, out):
        for at in range(0, numbers.size, 8):
            memory.store_f16(out, at, load_f32x8(numbers, at))

    exact = every_half().view(np.float16).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    rng = np.random.default_rng(4)
    ties = exact * np.float32(1 + 2**-11)
    beside = np.nextafter(ties, np.float32(np.inf))
    random = rng.integers(0, 2**32, 2**17, dtype=np.uint32).view(np.float32)
    special = np.array([np.inf, -np.inf, np.nan, 65519, 65520, -65520, 1e-8, -1e-45], np.float32)
    numbers = np.concatenate([exact, ties, beside, random, special])
    numbers = np.pad(numbers, (0, -numbers.size % 8)).astype(np.float32)
    out = np.zeros(numbers.size, np.uint16)
    narrowed(numbers, out)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = numbers.astype(np.float16)
    assert np.array_equal(out.view(np.float16), wanted, equal_nan=True)
    sign = ~np.isnan(numbers)
    assert np.array_equal(out[sign] >> 15, wanted.view(np.uint16)[sign] >> 15)


@pytest.mark.parametrize("n", range(9))
def test_the_end_of_a_row_is_left_alone(n: int):
    @njit
    def plus_one(source, target, n):
        v = memory.load_first_f32x8(source, 3, n)
        memory.store_first(target, 2, n, add(v, splat_f32x8(1)))
        return total(v)

    source = np.full(3 + n, 7, np.float32)  # the load must not even touch what lies behind
    source[3:] = np.arange(1, n + 1)
    target = np.zeros(12, np.float32)
    assert plus_one(source, target, n) == source[3:].sum()
    assert target.tolist() == [0, 0, *range(2, n + 2), *[0] * (10 - n)]


@pytest.mark.parametrize("lanes", [32, 64])
def test_four_bytes_over_and_over(lanes: int):
    repeat4 = getattr(memory, f"repeat4_i8x{lanes}")

    @njit
    def repeated(array, out):
        store(out, 0, repeat4(array, 5))

    array = np.arange(-8, 8).astype(np.int8)
    out = np.zeros(lanes, np.int8)
    repeated(array, out)
    assert np.array_equal(out, np.tile(array[5:9], lanes // 4))


def test_whole_numbers_are_stored_as_bytes():
    @njit
    def narrowed(array, out):
        memory.store_i8(out, 1, memory.load_i32x8(array, 0))

    array = np.array([-128, -1, 0, 1, 127, 128, 300, -300], np.int32)
    out = np.zeros(10, np.int8)
    narrowed(array, out)
    assert out.tolist() == [0, *array.astype(np.int8).tolist(), 0]


@pytest.mark.parametrize("stride", [4, 7, 48])
@pytest.mark.parametrize("vector", WORDS, ids=str)
def test_whole_numbers_are_stored_as_bytes_four_apart(vector: Vector, stride: int):
    load = LOAD[vector]

    @njit
    def spread(array, stride, out):
        memory.store_i8_apart(out, 3, stride, load(array, 0))

    v = values(vector, 6)[-1]
    array, at = np.zeros(3 + stride * v.size // 4, np.int8), 3
    wanted = array.copy()
    spread(v, stride, array)
    exec(meaning(memory.store_i8_apart), {"np": np, **locals(), "array": wanted})
    assert wanted.any()
    assert np.array_equal(array, wanted)


@pytest.mark.parametrize("stride", [2, 3, 12])
@pytest.mark.parametrize("vector", REAL, ids=str)
def test_pairs_are_stored_apart(vector: Vector, stride: int):
    load = LOAD[vector]

    @njit
    def spread(a, b, stride, out):
        memory.store_pairs_apart(out, 1, stride, load(a, 0), load(b, 0))

    a, b = values(vector, 7)[-2:]
    array, at = np.zeros(1 + stride * a.size, np.float32), 1
    wanted = array.copy()
    spread(a, b, stride, array)
    exec(meaning(memory.store_pairs_apart), {"np": np, **locals(), "array": wanted})
    assert wanted.any()
    assert np.array_equal(array, wanted)


def test_memory_of_any_alignment_and_type():
    @njit
    def copied(source, target):
        memory.prefetch(source, 10**9)
        store(target, 1, load_f32x8(source, 3))

    source = np.random.default_rng(5).integers(0, 256, 64).astype(np.uint8)
    target = np.zeros(48, np.uint8)
    copied(source, target)
    assert np.array_equal(target[1:33], source[3:35])
    assert not target[33:].any()


@pytest.mark.parametrize(
    "arguments", [(np.zeros((4, 8), np.float32), 0), (np.zeros(64, np.float32)[::2], 0), ([1.0], 0)]
)
def test_only_contiguous_arrays_of_one_axis_are_read(arguments: tuple[Any, ...]):
    @njit
    def read(array, at):
        return total(load_f32x8(array, at))

    with pytest.raises(TypingError):
        read(*arguments)


def test_vectors_of_different_types_do_not_mix():
    @njit
    def mixed(array):
        return total(add(load_f32x8(array, 0), memory.load_f32x16(array, 0)))

    with pytest.raises(TypingError):
        mixed(np.zeros(16, np.float32))


# ---------------------------------------------------------------- the processor


def test_counters_that_many_threads_write():
    @njit
    def used(counters):
        cpu.pause()
        cpu.yield_core()
        cpu.atomic_store(counters, 1, 7)
        before = cpu.atomic_add(counters, 1, -3)
        counters[2] = cpu.atomic_swap(counters, 0, 5)
        return before, cpu.atomic_load(counters, 1), cpu.cycles()

    counters = np.zeros(3, np.int64)
    before, after, first = used(counters)
    assert (before, after, counters.tolist()) == (7, 4, [5, 4, 0])
    assert used(counters)[2] > first
    assert counters.tolist() == [5, 4, 5]


def test_the_clock_is_pythons():
    @njit
    def now():
        return cpu.nanoseconds()

    now()
    before = time.monotonic_ns()
    seen = now()
    assert before <= seen <= time.monotonic_ns()
    time.sleep(1.1)  # so that the seconds count
    assert now() > before + 1_100_000_000


def test_only_counters_of_64_bits_are_atomic():
    @njit
    def wrong(counters):
        return cpu.atomic_add(counters, 0, 1)

    with pytest.raises(TypingError):
        wrong(np.zeros(1, np.int32))


# ---------------------------------------------------------------- the target and the listing


@njit
def dot(a, b):
    acc = splat_f32x8(0)
    for at in range(0, a.size, 8):
        acc = fma(load_f32x8(a, at), load_f32x8(b, at), acc)
    return total(acc)


def test_the_listing_holds_the_loop_and_not_what_is_around_it():
    a = np.arange(80, dtype=np.float32)
    assert dot(a, a) == np.sum(a * a)
    lines = listing.asm(dot)
    if target.target_has("fma"):
        assert any(re.match(r"vfmadd\w+ps\s.*%ymm", line) for line in lines)
    assert not any(line.startswith("ret") for line in lines)


def features_of(name: str, features: str) -> set[str]:
    code = "from llambda.simd.target import target_features as f; print(*f())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.skipif(not target.target_is_x86(), reason="about x86-64")
def test_the_target_is_asked_and_not_the_machine():
    assert features_of("generic", "") == set()
    assert features_of("x86-64-v3", "") == {"avx2", "fma", "f16c"}
    assert {"avx512", "vnni", "vnni512"} <= features_of("icelake-server", "")


def test_meanings_are_evaluated_in_numpy():
    """A wrong meaning, or a wrong function, is noticed."""
    wrong = functools.partial(assert_meant, vectors=(registers.f32x8,) * 2)
    with pytest.raises(AssertionError):
        wrong(planted)


@registers.instruction(registers.takes(*(registers.f32x8,) * 2, gives=registers.f32x8))
def planted(code: Any, a: Any, b: Any) -> Any:
    """a - b"""
    return code.builder.fadd(a, b)


def test_views_of_memory_have_names_of_their_own():
    """Functions get them as arguments, and kept machine code is linked by names with these in."""
    views = [foreign.bytes_at, foreign.halves_at, foreign.floats_at, foreign.longs_at]
    assert len({str(view) for view in views}) == len(views)
