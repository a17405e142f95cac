"""What learners answer in lesson 08, and a phrase that the explanation must hold."""

import numpy as np
from numba import njit

from llambda.simd.arithmetic import add, fma, largest, mul, splat_f32x8, total
from llambda.simd.memory import load_f32x8, load_first_f32x8, store


def not_compiled(w, x, y):
    for r in range(len(y)):
        y[r] = 0
        for i in range(len(x)):
            y[r] += w[r * len(x) + i] * x[i]


@njit(fastmath=True)
def left_to_the_compiler(w, x, y):
    for r in range(len(y)):
        s = np.float32(0)
        for i in range(len(x)):
            s += w[r * len(x) + i] * x[i]
        y[r] = s


@njit
def plain_loop(w, x, y):
    for r in range(len(y)):
        s = np.float32(0)
        for i in range(len(x)):
            s += w[r * len(x) + i] * x[i]
        y[r] = s


@njit
def tail_dropped(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = b = splat_f32x8(0)
        for i in range(0, n - 15, 16):
            a = fma(load_f32x8(w, r * n + i), load_f32x8(x, i), a)
            b = fma(load_f32x8(w, r * n + i + 8), load_f32x8(x, i + 8), b)
        if n % 16 >= 8:
            i = n // 16 * 16
            a = fma(load_f32x8(w, r * n + i), load_f32x8(x, i), a)
        y[r] = total(add(a, b))


@njit
def tail_of_sixteen_dropped(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = b = splat_f32x8(0)
        for i in range(0, n // 16 * 16, 16):
            a = fma(load_f32x8(w, r * n + i), load_f32x8(x, i), a)
            b = fma(load_f32x8(w, r * n + i + 8), load_f32x8(x, i + 8), b)
        y[r] = total(add(a, b))


@njit
def steps_back(w, x, y):
    """Fills the last register from the row's last eight numbers."""
    n = len(x)
    for r in range(len(y)):
        at, s = r * n, np.float32(0)
        a = splat_f32x8(0)
        for i in range(0, n - 7, 8):
            a = fma(load_f32x8(w, at + i), load_f32x8(x, i), a)
        if n % 8 and n >= 8:
            a = fma(load_f32x8(w, at + n - 8), load_f32x8(x, n - 8), a)
        elif n < 8:
            for i in range(n):
                s += w[at + i] * x[i]
        y[r] = total(a) + s


@njit
def tail_twice(w, x, y):
    """A masked load for the tail, and a scalar loop as well."""
    n = len(x)
    for r in range(len(y)):
        at, s = r * n, np.float32(0)
        a = splat_f32x8(0)
        for i in range(0, n, 8):
            a = fma(load_first_f32x8(w, at + i, n - i), load_first_f32x8(x, i, n - i), a)
        for i in range(n // 8 * 8, n):
            s += w[at + i] * x[i]
        y[r] = total(a) + s


@njit
def reads_on(w, x, y):
    """Rounds up to whole registers."""
    n = len(x)
    for r in range(len(y)):
        a = splat_f32x8(0)
        for i in range(0, n, 8):
            a = fma(load_f32x8(w, r * n + i), load_f32x8(x, i), a)
        y[r] = total(a)


@njit
def sums_inside(w, x, y):
    n = len(x)
    for r in range(len(y)):
        s = np.float32(0)
        for i in range(0, n, 8):
            left = n - i
            p = fma(
                load_first_f32x8(w, r * n + i, left), load_first_f32x8(x, i, left), splat_f32x8(0)
            )
            s += total(p)
        y[r] = s


@njit
def one_chain(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = splat_f32x8(0)
        for i in range(0, n, 8):
            left = n - i
            a = fma(load_first_f32x8(w, r * n + i, left), load_first_f32x8(x, i, left), a)
        y[r] = total(a)


@njit
def two_instructions(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = splat_f32x8(0)
        for i in range(0, n, 8):
            left = n - i
            p = mul(load_first_f32x8(w, r * n + i, left), load_first_f32x8(x, i, left))
            a = add(a, p)
        y[r] = total(a)


@njit
def adds_to_y(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = b = splat_f32x8(0)
        for i in range(0, n - 15, 16):
            a = fma(load_f32x8(w, r * n + i), load_f32x8(x, i), a)
            b = fma(load_f32x8(w, r * n + i + 8), load_f32x8(x, i + 8), b)
        for i in range(n // 16 * 16, n, 8):
            a = fma(load_first_f32x8(w, r * n + i, n - i), load_first_f32x8(x, i, n - i), a)
        y[r] += total(add(a, b))


@njit
def returns_it(w, x, y):
    n = len(x)
    s = np.float32(0)
    for i in range(n):
        s += w[i] * x[i]
    return s


@njit
def first_row_again(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = splat_f32x8(0)
        for i in range(0, n, 8):
            a = fma(load_first_f32x8(w, i, n - i), load_first_f32x8(x, i, n - i), a)
        y[r] = total(a)


@njit
def stores_lanes(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = splat_f32x8(0)
        for i in range(0, n, 8):
            a = fma(load_first_f32x8(w, r * n + i, n - i), load_first_f32x8(x, i, n - i), a)
        store(y, r, a)


@njit
def stores_a_register(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = splat_f32x8(0)
        for i in range(0, n, 8):
            a = fma(load_first_f32x8(w, r * n + i, n - i), load_first_f32x8(x, i, n - i), a)
        y[r] = a


@njit
def never_begins_anew(w, x, y):
    n = len(x)
    a = splat_f32x8(0)
    for r in range(len(y)):
        for i in range(0, n, 8):
            a = fma(load_first_f32x8(w, r * n + i, n - i), load_first_f32x8(x, i, n - i), a)
        y[r] = total(a)


@njit
def begins_with_a_number(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = 0
        for i in range(0, n, 8):
            a = fma(load_first_f32x8(w, r * n + i, n - i), load_first_f32x8(x, i, n - i), a)
        y[r] = total(a)


@njit
def long_tail(w, x, y):
    """Groups of 32 in four registers, and up to 31 numbers one by one."""
    n = len(x)
    for r in range(len(y)):
        at = r * n
        a = b = c = d = splat_f32x8(0)
        for i in range(0, n // 32 * 32, 32):
            a = fma(load_f32x8(w, at + i), load_f32x8(x, i), a)
            b = fma(load_f32x8(w, at + i + 8), load_f32x8(x, i + 8), b)
            c = fma(load_f32x8(w, at + i + 16), load_f32x8(x, i + 16), c)
            d = fma(load_f32x8(w, at + i + 24), load_f32x8(x, i + 24), d)
        s = total(add(add(a, b), add(c, d)))
        for i in range(n // 32 * 32, n):
            s += w[at + i] * x[i]
        y[r] = s


@njit
def adds_registers(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = b = splat_f32x8(0)
        for i in range(0, n, 8):
            a = fma(load_first_f32x8(w, r * n + i, n - i), load_first_f32x8(x, i, n - i), a)
        y[r] = total(a + b)


@njit
def uses_others(w, x, y):
    for r in range(len(y)):
        y[r] = largest(load_first_f32x8(w, r * len(x), len(x)))


@njit
def one_off(w, x, y):
    """Some other mistake: the first column is left out."""
    n = len(x)
    for r in range(len(y)):
        s = np.float32(0)
        for i in range(1, n):
            s += w[r * n + i] * x[i]
        y[r] = s


@njit
def mostly_scalar(w, x, y):
    """Groups of 32 in registers, all the rest one by one."""
    n = len(x)
    for r in range(len(y)):
        at = r * n
        a = b = splat_f32x8(0)
        s = np.float32(0)
        first = n // 32 * 16
        for i in range(0, first - 15, 16):
            a = fma(load_f32x8(w, at + i), load_f32x8(x, i), a)
            b = fma(load_f32x8(w, at + i + 8), load_f32x8(x, i + 8), b)
        for i in range(first // 16 * 16, n):
            s += w[at + i] * x[i]
        y[r] = total(add(a, b)) + s


@njit
def four_rows_at_once(w, x, y):
    """The kernel from the text, for any length of row; but not for any number of rows."""
    n = len(x)
    for r in range(0, len(y), 4):
        a = b = c = d = splat_f32x8(0)
        for i in range(0, n, 8):
            at, left = r * n + i, n - i
            v = load_first_f32x8(x, i, left)
            a = fma(load_first_f32x8(w, at, left), v, a)
            b = fma(load_first_f32x8(w, at + n, left), v, b)
            c = fma(load_first_f32x8(w, at + 2 * n, left), v, c)
            d = fma(load_first_f32x8(w, at + 3 * n, left), v, d)
        y[r], y[r + 1], y[r + 2], y[r + 3] = total(a), total(b), total(c), total(d)


RIGHT = {"A": 1, "B": 16, "C": 1, "D": 4, "E": 4}

WRONG = {
    "08.1": [
        ("not compiled", not_compiled, "is not compiled"),
        ("no function", 3.0, "a function is wanted"),
        ("fastmath=True", left_to_the_compiler, "`fastmath` is set"),
        ("a plain loop", plain_loop, "hold 512 whole groups of eight, and `fma` was never"),
        ("tail dropped", tail_dropped, "only whole groups of 8"),
        ("tail of sixteen dropped", tail_of_sixteen_dropped, "only whole groups of 16"),
        ("the last eight again", steps_back, "in the sum already"),
        ("tail twice", tail_twice, "counted twice"),
        ("rounded up", reads_on, "x[64:72] is asked for"),
        ("horizontal sum inside", sums_inside, "inside the loop"),
        ("one accumulator", one_chain, "one accumulator, a chain"),
        ("mul and add", two_instructions, "rounds once"),
        ("added to y", adds_to_y, "overwrite it"),
        ("returned", returns_it, "nothing is written to y"),
        ("row 0 for all", first_row_again, "row 0's products"),
        ("lanes stored", stores_lanes, "A row has one sum"),
        ("a register for a number", stores_a_register, "stands where one number belongs"),
        ("sums not begun anew", never_begins_anew, "the row before it"),
        ("a number for a register", begins_with_a_number, "and not as 0"),
        ("31 numbers in the tail", long_tail, "4 rows of 31 numbers"),
        ("+ for registers", adds_registers, "Registers have `add`"),
        ("another function", uses_others, "Use no others"),
        ("something else", one_off, "Row r begins at"),
        ("four rows at once", four_rows_at_once, "behind the last row"),
        ("half of it scalar", mostly_scalar, "called 256 times"),
    ],
    "08.2": [
        ("throughput", 2, "start in one cycle"),
        ("latency", 4, "hides the latency of one unit"),
        ("lanes too", 64, "counts lanes"),
        ("lanes for latency", 16, "lanes times starts"),
        ("sum", 6, "multiply: in each"),
        ("half a", 0.5, "too small"),
    ],
    "08.3": [
        ("v for vector", RIGHT | {"A": 8}, "the v in front"),
        ("xmm for four", RIGHT | {"A": 4}, "`vaddss` adds one"),
        ("ymm in the epilogue", RIGHT | {"C": 8}, "behind the jump"),
        ("xmm in a scalar fma", RIGHT | {"C": 4}, "C: `ss` is scalar single"),
        ("NEON for scalar", RIGHT | {"D": 1}, "vector instructions of ARM"),
        ("two fmla", RIGHT | {"D": 8}, "what .4s says"),
        ("AVX2 for AVX-512", RIGHT | {"B": 8}, "that would be %ymm"),
        ("both instructions", RIGHT | {"B": 32}, "Asked for is one instruction"),
        ("SSE for scalar", RIGHT | {"E": 1}, "no v and no %ymm"),
        ("xmm for eight", RIGHT | {"E": 8}, "has room for four singles"),
        ("a word", RIGHT | {"A": "scalar"}, "look at it again"),
        ("nothing for E", {k: v for k, v in RIGHT.items() if k != "E"}, "E is missing"),
    ],
}
