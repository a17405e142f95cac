# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · SIMD
#
# **How do you speak AVX2 from Python?**
#
# - **You will build** a vector register as a Python value: a type, and the few instructions that work on it. With them a
#   product of matrix and vector in three layouts, and the next two rungs of the ladder.
# - **You will be able to** read a loop in machine code and say how many numbers each instruction works on; name what keeps a
#   compiler from the wide registers; and say how many sums must run beside each other, and why.
# - **You need** a matrix product, and what a register is (lesson 00). Lesson 01 showed that a sum depends on its order: here
#   that decides about speed.
#
# *90 minutes · difficulty 4 of 5*
#
# **SIMD** means *single instruction, multiple data*: one instruction works on all numbers of a wide register at once.
# **AVX2** is one such set of instructions, that of most PCs since 2015. If your processor has another one, this lesson runs
# as well. Its listings then look different, and the cells that check them say so.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("08")

# %% [markdown]
# ## Build: a loop, compiled
#
# To make a token, an engine multiplies each of its matrices with a vector, and that is where nearly all of its time goes. For
# a matrix `w` and a vector `x`, element r of the result is the sum of all `w[r, c] * x[c]`. As a loop:

# %% tags=["core"]
import numpy as np


def product(w, x, y):
    """y = w @ x"""
    for r in range(w.shape[0]):
        total = np.float32(0)
        for c in range(w.shape[1]):
            total += w[r, c] * x[c]
        y[r] = total


# %% tags=["core"]
rng = np.random.default_rng(8)
w = rng.normal(size=(256, 256)).astype(np.float32)  # [rows, columns]
x = rng.normal(size=256).astype(np.float32)  # [columns]
in_python, y = np.empty((2, 256), np.float32)  # [rows] each
product(w, x, in_python)

# %% [markdown]
# Python executes such a loop step by step: look up what `*` means for these two objects, make a new object for the product,
# and so on. **Numba** makes machine code of it instead. `njit` returns a function that is compiled when it is first called,
# for the types that the arguments have then. The result is the same to the last bit:

# %% tags=["core"]
from numba import njit

plain = njit(product)
plain(w, x, y)
print("the same bits:", bool((y == in_python).all()))

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.timing import seconds

slow, quick = seconds(lambda: product(w, x, in_python), 2), seconds(lambda: plain(w, x, y))
print(f"in Python {1e3 * slow:.1f} ms, compiled {1e3 * quick:.3f} ms")
print(f"{slow / quick:,.0f} times as fast")
assert slow > 5 * quick

# %% [markdown]
# That is the whole idea of rung 3, the engine `scalar`: every operation is such a loop. The package's form is the one above,
# for several rows of `x`. (`@entry` is `njit` with three wishes: let other threads run meanwhile, divide as NumPy does, and
# keep the machine code on disk.)

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.engines import ScalarEngine
from llambda.kernels import loops

show(loops.linear, ScalarEngine.linear)

# %%
theirs = np.empty((1, 256), np.float32)
loops.linear(x[None], w, theirs)
print("the same bits:", bool((theirs[0] == y).all()))

# %% [markdown]
# ## Build: read what the compiler wrote
#
# A register of AVX2 has 256 bits. That is room for eight float32, its **lanes**, and one instruction can add all eight lanes
# of one register to those of another. Our loop adds up 256 products a row. The compiler behind Numba is LLVM, the same that
# stands behind Clang, Rust, Swift and Julia. How many of the eight lanes, do you think, does its loop use for the sum?

# %% tags=["core"]
from llambda.course.predictions import outcome, predict

guess = ...
predict("08.lanes", "of 8 lanes, those that the compiled sum uses", guess)

# %% [markdown]
# We do not have to guess: the compiler can show its instructions as text, a **listing**. To read one, you need little:
#
# | in the listing | it means |
# |---|---|
# | `ss` at the end of a name | *scalar single*: one float32, in the lowest lane; the others are idle |
# | `ps` at the end of a name | *packed single*: a float32 in every lane |
# | `%xmm3`, `%ymm3`, `%zmm3` | register 3, of which 128, 256 or 512 bits are used: room for 4, 8 or 16 float32 |
# | `32(%rsi,%r15,4)` | the number in memory at address rsi + 4 · r15 + 32 |
# | `vaddss a, b, c` | c = b + a. What is written to stands last |
# | `vfmadd231ps a, b, c` | c = b · a + c, a **fused multiply-add**: one instruction, rounded once. (132 and 213 are the same, with the three in other roles.) |
# | `jne .LBB0_4` | jump back, and take another turn of the loop |
#
# `asm` gives the instructions of a function's innermost loops. Here are the first few of ours:

# %% tags=["nbval-ignore-output", "core"]
from llambda.simd.listing import asm


def look(kernel, count, only=""):
    lines = [line for line in asm(kernel) if only in line]
    print("\n".join(line.expandtabs(14) for line in lines[:count]))


look(plain, 12)

# %% [markdown]
# Load a weight, multiply it with a number of x, add it to the sum in `xmm0`: each of them ends in `ss`. (LLVM wrote several
# turns of our loop into one of its own, so it goes on like that.) We want to be sure of it, not just to have looked. So here
# is what we call a **wide** instruction: a fused multiply-add in all lanes of a register of 256 or 512 bits, with eight or
# sixteen neighbours straight from memory.

# %% tags=["core"]
import re

from llambda.simd.target import target_has

READABLE = target_has("avx2", "fma")  # does the compiler have these instructions at all?


def wide(kernel):
    return [line for line in asm(kernel) if re.match(r"vfmadd\w+ps\s+-?\d*\(.*%[yz]mm", line)]


outcome("08.lanes", "of 8 lanes, those that the compiled sum uses", 8 if wide(plain) else 1)

# %% [markdown]
# ## Build: may a sum be reordered?
#
# Why does so good a compiler leave seven lanes of eight idle? Because the program says in which order to add. Eight lanes
# would add every eighth number each, and then the eight sums. That is another order, and for rounded numbers another sum.
# Here are 16 numbers, the first of them 2²⁴, from where on a float32 has no odd numbers:

# %% tags=["core"]
numbers = np.ones(16, np.float32)
numbers[0] = 2**24
lanes = numbers.reshape(2, 8).sum(0)  # [8]: lane k adds numbers k and k + 8
print(f"in order    {np.add.accumulate(numbers)[-1]:,.0f}")
print(f"in 8 lanes  {np.add.accumulate(lanes)[-1]:,.0f}")
print(f"exactly     {numbers.sum(dtype=np.float64):,.0f}")

# %% [markdown]
# Lanes are not worse; often, as here, they are nearer to the truth. But a compiler must not change what a program computes,
# not even for the better. **You** may allow it. Numba's `fastmath` takes the names of rules that may be broken: `reassoc`,
# that additions are done in the order in which they are written, and `contract`, that a product is rounded before it is
# added.

# %% tags=["core"]
fast = njit(fastmath={"reassoc", "contract"})(product)
fast(w, x, y)

# %% tags=["nbval-ignore-output", "core"]
look(fast, 11)

# %% [markdown]
# Four `vfmadd231ps` on `ymm` registers: in one turn of this loop, 32 multiplications and 32 additions. The program is the
# same; all that changed is our permission. A listing that is only admired may change behind your back. So we make an
# assertion of it, and use it for all kernels to come: a loop holds wide instructions, or it holds none; and it never calls
# another function.


# %% tags=["core"]
def evidence(kernel, is_wide):
    if not READABLE:
        print("the compiler has no AVX2 and FMA to use here: nothing to look for in its listing")
        return
    calls = [line for line in asm(kernel) if line.startswith("call")]
    print(f"{len(wide(kernel))} wide instructions, {len(calls)} calls")
    assert bool(wide(kernel)) == is_wide and not calls


# %% tags=["nbval-ignore-output", "core"]
evidence(fast, True)
evidence(plain, False)  # take the permission away, and they are gone

# %% [markdown]
# And the speed? `rate` gives the number of weights that a kernel multiplies in a second, at its best try.


# %% tags=["core"]
def rate(kernel, w, x, y):
    calls = max(1, 100_000 // w.size)  # the clock is too coarse for a small matrix

    def work():
        for _ in range(calls):
            kernel(w, x, y)

    work()
    return calls * w.size / seconds(work, 20)


# %% tags=["nbval-ignore-output", "core"]
for name, kernel in {"in order": plain, "reordered": fast}.items():
    print(f"{name:<10} {rate(kernel, w, x, y) / 1e9:6.2f} billion weights a second")

# %% [markdown]
# Why not simply `fastmath=True`? It breaks more rules. One of them: a result may be **nan**, *not a number*, as 0/0 is. The
# compiler then assumes that there are none, and takes your test for them as answered:


# %%
def is_nan(number):
    return number != number


nan = np.float32("nan")
print(njit(is_nan)(nan), njit(fastmath=True)(is_nan)(nan))

# %% [markdown]
# An engine that looks for damage needs that test. Name the rules that you mean.
#
# ## Build: what else keeps it from the registers
#
# The order of a sum is one obstacle. There are three more that you will meet. In the first two loops below we allow
# reordering; the third has no sum.
#
# **A stride.** Of each row only every second number is used. One instruction loads eight *neighbours*; these are not.


# %% tags=["core"]
def every_second(w, x, y):
    for r in range(w.shape[0]):
        total = np.float32(0)
        for c in range(0, w.shape[1], 2):
            total += w[r, c] * x[c]
        y[r] = total


strided = njit(fastmath={"reassoc", "contract"})(every_second)
strided(w, x, y)

# %% tags=["nbval-ignore-output", "core"]
look(strided, 8, "(")  # the lines that read memory
evidence(strided, False)
for name, speed in {
    "neighbours": rate(fast, w, x, y),
    "every second": rate(strided, w, x, y) / 2,
}.items():
    print(f"{name:<13} {speed / 1e9:6.2f} billion used weights a second")

# %% [markdown]
# What does your compiler do? Some collect eight numbers by a *gather* (`vgatherqps`), one instruction that still makes eight
# reads. Others load them one by one and put them together (`vinsertps`), or load everything and throw half away (`vperm`,
# `vshuf`). The multiply-adds may even be wide again; but none of them gets its eight numbers straight from memory any more.
#
# **A call.** Here it is the exponential function, which comes out of the C library, one number at a time.

# %%
import math


def exponentials(w, x, y):
    for r in range(w.shape[0]):
        total = np.float32(0)
        for c in range(w.shape[1]):
            total += math.exp(w[r, c]) * x[c]
        y[r] = total


calling = njit(fastmath={"reassoc", "contract"})(exponentials)
calling(w, x, y)

# %% tags=["nbval-ignore-output"]
calls = [line for line in asm(calling) if line.startswith("call")]
print(len(calls), "calls in its loops, such as", *calls[:1])
assert calls or not READABLE

# %% [markdown]
# Whoever needs many exponentials writes one for eight lanes, out of multiplications and additions; the package has it in
# `llambda/kernels/exponential.py`.
#
# **Memory that may overlap.** In this loop there is no sum, and nothing to reorder. But `a` and `b` might be two views of one
# buffer, shifted by one. Then each step needs what the step before has written, and eight at once would be wrong.


# %%
def add_half(a, b):
    for i in range(len(b)):
        a[i] += b[i] * np.float32(0.5)


added = njit(add_half)
added(np.ones(256, np.float32), x)

# %% tags=["nbval-ignore-output"]
look(added, 2, "addps")
look(added, 2, "addss")

# %% [markdown]
# The compiler cannot know, so it wrote *both* loops, and in front of them a test at run time: do these two overlap? With
# overlapping arrays the same machine code is right, and slow; a section near the end tries it. Four obstacles, and what to do
# about each:
#
# | obstacle | in the listing | what to do |
# |---|---|---|
# | the order of a sum | `vaddss` | allow it by name, or keep several sums yourself |
# | numbers that are not neighbours | gathers, single loads | **change the layout**, once, beforehand |
# | a call in the loop | `call` | write it out, in vector arithmetic |
# | memory that may overlap | two loops | keep sums in local variables; promise that it does not |
#
# ## Build: a register as a Python value
#
# So a compiler *may* use wide registers, if it can prove this and guess that, and tomorrow's version may guess differently.
# An engine should not hang on that. We want to say it: load these eight, multiply, add.
#
# Between Python and the instructions stands LLVM's own language. In it `<8 x float>` is a type like any other: eight float32
# in a register. Numba has no name for it; so we give it one. First the name, for Numba, and the type, in LLVM's language:

# %% tags=["core"]
from llvmlite import ir
from numba import types


class F32x8(types.Type):
    def __init__(self):
        super().__init__("F32x8")


# %% tags=["core"]
f32x8 = F32x8()
REGISTER = ir.VectorType(ir.FloatType(), 8)
print(REGISTER)

# %% [markdown]
# Then the *data model*: what a variable of this type is made of. `PrimitiveModel` says: of one value of LLVM's.

# %% tags=["core"]
from numba.extending import models, register_model


@register_model(F32x8)
class F32x8Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, REGISTER)


# %% [markdown]
# Now compiled functions can have variables that hold eight numbers. They cannot do anything with them yet. An **intrinsic**
# is a function that does not compute, but *writes code*: it is called while the function that uses it is being compiled. It
# gets the types of its arguments, and returns two things: the signature, and a function that writes the instructions. That
# one gets a `builder`, which puts them one after another, and the arguments' values. The simplest has no argument, and its
# value is a constant:

# %% tags=["core"]
from numba.extending import intrinsic


@intrinsic
def zero8(typing_context):
    def write(context, builder, signature, values):
        return ir.Constant(REGISTER, [0.0] * 8)

    return f32x8(), write


# %% [markdown]
# The multiply-add is a function that LLVM knows. We write a call of it, and LLVM makes one instruction of that. (So it is no
# call any more when it runs.)

# %% tags=["core"]
from numba.core import cgutils


@intrinsic
def fma8(typing_context, a, b, c):
    def write(context, builder, signature, values):
        kind = ir.FunctionType(REGISTER, [REGISTER] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v8f32")
        return builder.call(function, values)

    return f32x8(f32x8, f32x8, f32x8), write


# %% [markdown]
# To load and to store, an address is needed: that of `array[at]`, taken as the address of eight numbers. `gep` is LLVM's word
# for counting on from an address (*get element pointer*).


# %% tags=["core"]
def place(context, builder, array_type, array, at):
    start = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(start, [at]), REGISTER.as_pointer())


# %% tags=["core"]
@intrinsic
def load8(typing_context, array, at):
    def write(context, builder, signature, values):
        return builder.load(place(context, builder, signature.args[0], *values), align=4)

    return f32x8(array, types.intp), write


# %% [markdown]
# `align=4` is a promise: the address is divisible by 4, as that of every float32 is, and perhaps by no more. What happens to
# those who promise too much stands at the end of this lesson. The store goes the other way:


# %% tags=["core"]
@intrinsic
def store8(typing_context, array, at, v):
    def write(context, builder, signature, values):
        array, at, v = values
        builder.store(v, place(context, builder, signature.args[0], array, at), align=4)
        return context.get_dummy_value()

    return types.none(array, types.intp, f32x8), write


# %% [markdown]
# That is all. Here is the sum of products of two rows whose length is a multiple of 8. Lane k adds up every eighth product,
# and the eight sums are stored at the end. With small whole numbers nothing is rounded, so we may ask for equality:


# %% tags=["core"]
@njit
def lane_sums(w, x, out):
    sums = zero8()
    for i in range(0, len(x), 8):
        sums = fma8(load8(w, i), load8(x, i), sums)
    store8(out, 0, sums)


# %% tags=["core"]
a, b = np.arange(64, dtype=np.float32), np.arange(64, dtype=np.float32) % 5
out = np.empty(8, np.float32)
lane_sums(a, b, out)
print("every lane is right:", bool((out == (a * b).reshape(8, 8).sum(0)).all()))

# %% tags=["nbval-ignore-output", "core"]
look(lane_sums, 8)
evidence(lane_sums, True)

# %% [markdown]
# **You have just spoken AVX2 from Python**: nothing was allowed, nothing hoped for, and nothing can be reordered, since you
# said which lane adds what. On a machine without AVX2 the same eight lanes are computed by whatever is there, with the same
# bits.
#
# <details><summary>In Lisp</summary>
#
# ```lisp
# (sb-c:define-vop (%fmadd)                      ; how SBCL is to write one instruction
#   (:translate %fmadd) (:policy :fast-safe)
#   (:args (c :scs (sb-vm::single-avx2-reg) :target r)
#          (a :scs (sb-vm::single-avx2-reg) :to :result)
#          (b :scs (sb-vm::single-avx2-reg) :to :result))
#   (:results (r :scs (sb-vm::single-avx2-reg)))
#   (:generator 4 (sb-vm::move r c) (sb-assem:inst sb-vm::vfmadd231ps r a b)))
# ```
#
# In SBCL a *VOP* (virtual operation) is what an intrinsic is here: a piece of the compiler that you add from outside. It says
# in which kinds of registers arguments and result may be (`:scs`, storage classes), and the generator emits the instruction;
# the lines that declare the types are left out. The library sb-simd has written such VOPs for the whole of AVX2:
#
# ```lisp
# (defun dot (w x)                               ; the length is a multiple of 8
#   (declare (type (simple-array single-float (*)) w x) (optimize (speed 3) (safety 0)))
#   (loop with sums of-type f32.8 = (f32.8 0)
#         for i of-type fixnum below (length x) by 8
#         do (setf sums (f32.8-fmadd (f32.8-aref w i) (f32.8-aref x i) sums))
#         finally (return (f32.8-horizontal+ sums))))
# ```
#
# `f32.8` is its `f32x8`, and the loop compiles to the one above. Any language whose compiler can be taught a new instruction
# reaches the machine.
#
# </details>
#
# ## Build: the finished form
#
# In `llambda.simd` the same stands for all kinds of registers that the course needs: 8 or 16 floats, and whole numbers of 8,
# 16 and 32 bits. `Vector` is our type with two parameters, and `instruction` takes the ceremony out of intrinsics, so that
# one that writes code has only its own lines. It also looks at the types: ours would have loaded eight floats out of an array
# of anything.

# %% tags=["nbval-ignore-output"]
from llambda.simd import arithmetic, memory, registers

show(registers.Vector, registers.VectorModel, arithmetic.fma, memory.loader)

# %% tags=["core"]
from llambda.simd.arithmetic import add, fma, splat_f32x8, total
from llambda.simd.memory import load_f32x8, load_first_f32x8, prefetch, store


@njit
def their_sums(w, x, out):
    sums = splat_f32x8(0)  # 0 in all lanes
    for i in range(0, len(x), 8):
        sums = fma(load_f32x8(w, i), load_f32x8(x, i), sums)
    store(out, 0, sums)


# %% tags=["core"]
theirs = np.empty(8, np.float32)
their_sums(a, b, theirs)
print("the same numbers:", bool((theirs == out).all()))

# %% [markdown]
# And the same instructions. (Registers may have other numbers, so we compare only the names of the instructions.)

# %% tags=["nbval-ignore-output"]
names = [[line.split()[0] for line in asm(kernel)] for kernel in (lane_sums, their_sums)]
print("the same instructions:", names[0] == names[1])

# %% [markdown]
# ## Build: independence
#
# All eight lanes work now. Most cores can start *two* such multiply-adds in every cycle (a cycle is one tick of the clock,
# about a third of a nanosecond). Does our loop do that? In the listing of `lane_sums` every `vfmadd` adds to the result of
# the one above it. And a result is there only after some cycles, its **latency**: 4, on most processors. A loop with one sum
# can start the next multiply-add only when the last has ended. Unless there are other sums to add to.
#
# How many sums, called **accumulators**, must run beside each other until more of them bring nothing? Guess.

# %% tags=["core"]
guess = ...
predict("08.sums", "accumulators that keep a core busy", guess)

# %% [markdown]
# We try 1, 2, 4, 8 and 16. Nobody wants to write that five times, so Python writes it: the kernel as a text. `turn` says what
# happens to a sum, whose name is put for `{a}`.


# %% tags=["core"]
def text(count, turn):
    """A kernel with so many sums, each of its own register."""
    sums = [f"a{k}" for k in range(count)]
    return "\n".join(
        [
            "def kernel(w, x, out, times):",
            "    half, one = load8(w, 0), load8(x, 0)",
            *(f"    {a} = load8(x, {8 * k})" for k, a in enumerate(sums)),
            "    for _ in range(times):",
            f"        for i in range(0, len(x), {8 * count}):",
            *("            " + turn.format(a=a, k=8 * k) for k, a in enumerate(sums)),
            *(f"    store8(out, {8 * k}, {a})" for k, a in enumerate(sums)),
        ]
    )


registers_only = "{a} = fma8({a}, half, one)"
print(text(2, registers_only))

# %% [markdown]
# In this one nothing is loaded inside the loop: it is arithmetic alone, a = a · ½ + 1. The other `turn` is that of a real sum
# of products, with two loads for each multiply-add. The peak is lesson 00's, for registers of eight lanes.

# %% tags=["core"]
two_loads = "{a} = fma8(load8(w, i + {k}), load8(x, i + {k}), {a})"


def compiled(count, turn):
    names = {"load8": load8, "fma8": fma8, "store8": store8}
    exec(text(count, turn), names)
    return njit(names["kernel"])


# %% tags=["core"]
kernels = {
    (words, count): compiled(count, turn)
    for words, turn in (("in registers", registers_only), ("with two loads each", two_loads))
    for count in (1, 2, 4, 8, 16)
}

# %% [markdown]
# The arrays are in the nearest cache, and begin with a cache line (lesson 01). We measure all kernels in turn, several times,
# and keep the best of each.

# %% tags=["core"]
from llambda.kernels.aligned import aligned_zeros

halves, ones = aligned_zeros(2056, np.float32), aligned_zeros(2056, np.float32)
halves[:], ones[:] = 0.5, 1
scratch = np.empty(128, np.float32)


def gflops(kernel, skip=0):
    """Of a kernel on 2,048 numbers, the first of which is so far from the beginning of a line."""
    w, x = halves[skip : skip + 2048], ones[skip : skip + 2048]
    kernel(w, x, scratch, 1)
    return 100 * 2 * 2048 / seconds(lambda: kernel(w, x, scratch, 100), 8) / 1e9


# %% tags=["nbval-ignore-output", "core"]
flops = dict.fromkeys(kernels, 0.0)
for _ in range(5):
    for name, kernel in kernels.items():
        flops[name] = max(flops[name], gflops(kernel))
for (words, count), speed in flops.items():
    print(f"{words:<20} {count:>3} sums  {speed:6.1f} GFLOP/s")

# %% tags=["nbval-ignore-output", "core"]
best = max(speed for (words, _), speed in flops.items() if words == "in registers")
outcome("08.sums", "accumulators that keep a core busy", best / flops["in registers", 1])

# %% [markdown]
# The number of sums is the best speed over that of a single chain: if one chain alone reaches an eighth, eight are needed. It
# is the latency times the number of starts in a cycle, on most processors 4 · 2. Here is why. A bar is one multiply-add on
# its way; the listing beside it is that of the kernel which you have just run.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.simd import accumulators, chains

chains(*([line for line in asm(kernels["in registers", n]) if "fmadd" in line] for n in (1, 8)))

# %% [markdown]
# In the upper listing every line reads what the line above it writes, the same register. In the lower one a line finds its
# register as it was eight lines before. The processor sees that by itself; you need not mark anything. **Independence, not
# width, hides latency**: all lanes of the upper loop are at work, and seven eighths of the multipliers' time is lost.
#
# The plain loop at the beginning is such a chain, too, of one lane: it waits for every addition. So `reassoc` gave the
# compiler two things at once, the lanes and the right to keep several sums; the listing of `fast` shows four.

# %% tags=["nbval-ignore-output", "core"]
from llambda.probe import fma_peak

peak = max(best, fma_peak(1, lanes=8) / 1e9)  # whichever was disturbed less
accumulators(
    {
        words: {n: flops[words, n] / peak for n in (1, 2, 4, 8, 16)}
        for words in ("in registers", "with two loads each")
    }
)

# %% [markdown]
# Look at three things. Up to 4 sums both curves follow the dashed line: twice the sums, twice the speed. Then the green one
# stays behind: two loads for each multiply-add, and a core makes two or three loads a cycle, so loads are its limit now. And
# at 16 a curve may bend down again: AVX2 has 16 registers, and sixteen sums leave none for anything else. (AVX-512 has 32.)
#
# You can now read lesson 00's black boxes, in `llambda/probe.py`. The peak is this loop with 12 sums. (Without FMA in the
# target, each lane's multiply-add is a function call, and the curves above show nothing but that.)
#
# ## Build: a matrix, row after row
#
# Back to the matrix. First the obvious kernel: a row as four sums, added up at the end. `total` adds the lanes of a register:
# the upper half to the lower, and again, and again; three steps, one waiting for the other. From here on `w` is flat, so row
# r begins at `r * len(x)`; and lengths are multiples of 32.


# %% tags=["core"]
@njit
def by_row(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = b = c = d = splat_f32x8(0)
        for i in range(0, n, 32):
            at = r * n + i
            a = fma(load_f32x8(w, at), load_f32x8(x, i), a)
            b = fma(load_f32x8(w, at + 8), load_f32x8(x, i + 8), b)
            c = fma(load_f32x8(w, at + 16), load_f32x8(x, i + 16), c)
            d = fma(load_f32x8(w, at + 24), load_f32x8(x, i + 24), d)
        y[r] = total(add(add(a, b), add(c, d)))


# %% [markdown]
# It loads every number of x again for each row. The second idea: four *rows* at once, a sum for each. Then a register full of
# x serves four multiply-adds, and there are five loads where there were eight.


# %% tags=["core"]
@njit
def four_rows(w, x, y):
    n = len(x)
    for r in range(0, len(y), 4):
        a = b = c = d = splat_f32x8(0)
        for i in range(0, n, 8):
            at, v = r * n + i, load_f32x8(x, i)
            a = fma(load_f32x8(w, at), v, a)
            b = fma(load_f32x8(w, at + n), v, b)
            c = fma(load_f32x8(w, at + 2 * n), v, c)
            d = fma(load_f32x8(w, at + 3 * n), v, d)
        y[r], y[r + 1], y[r + 2], y[r + 3] = total(a), total(b), total(c), total(d)


# %% [markdown]
# ## Build: a matrix for the machine
#
# Now memory is read at four places at once, each far from the others, and there are sums across lanes to make. Both go away
# if the *weights* are put into another order. They never change, so we can afford that once, when a model is loaded. The
# numbers in the picture are places in memory; the first load takes what is dark blue, the second what is light blue.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.simd import layouts

layouts()

# %% [markdown]
# On the right, a register holds the same column of eight rows. It is multiplied with *one* number of x, copied into all
# lanes, and each lane adds up a row of its own. There is nothing to add across lanes; a row may have any length; and the
# whole matrix is one long stream from the first byte to the last. We take strips of 16 rows, two registers for each column:


# %% tags=["core"]
def pack(w, strip=16):
    """[rows, columns] -> strips of so many rows, one after another, column by column; flat."""
    rows, columns = w.shape
    return np.ascontiguousarray(w.reshape(rows // strip, strip, columns).swapaxes(1, 2)).reshape(-1)


pack(np.arange(64, dtype=np.float32).reshape(8, 8), strip=8)[:16]

# %% [markdown]
# The first sixteen numbers in memory are column 0 of eight rows, and column 1. Now the kernel. `prefetch` is new: it asks
# memory for the line of an address that will be needed soon, here 8 KB ahead, and does not wait for it. (Memory answers only
# after hundreds of cycles; requests, too, must be on their way beside each other. An address beyond the end does no harm.)


# %% tags=["core"]
@njit
def strips(w, x, y):
    n = len(x)
    for r in range(0, len(y), 16):
        a = b = splat_f32x8(0)
        for c in range(n):
            at, v = r * n + 16 * c, splat_f32x8(x[c])
            prefetch(w, at + 2048)
            a = fma(load_f32x8(w, at), v, a)
            b = fma(load_f32x8(w, at + 8), v, b)
        store(y, r, a)
        store(y, r + 8, b)


# %% tags=["nbval-ignore-output", "core"]
packed = pack(w)
for kernel, stored in {by_row: w.reshape(-1), four_rows: w.reshape(-1), strips: packed}.items():
    kernel(stored, x, y)
    evidence(kernel, True)
look(strips, 8)

# %% [markdown]
# For one column of 16 rows: a broadcast, a prefetch, two multiply-adds. Only two sums! Is that not far too few? It is, for
# numbers that are at hand: two chains reach a quarter of the peak. But a quarter of the peak is 4 weights, 16 bytes, in each
# cycle; at 3 GHz 48 GB a second, and in few PCs memory brings one core that much. How many sums are enough depends on
# *which* roof is above you.
#
# Now a matrix as large as those of a 7 B model, 4096 x 4096: 67 MB. NumPy's own product is held to one thread. Beside them
# stands what lesson 00's black box gets when it only reads as many bytes, over and over, as our kernels do.

# %% tags=["core"]
from threadpoolctl import threadpool_limits

from llambda.probe import read_bandwidth


def numpy_product(w, x, y):
    np.matmul(w, x, out=y)


# %% tags=["core"]
large = rng.standard_normal((4096, 4096), np.float32)
long_x, long_y = rng.standard_normal(4096, np.float32), np.empty(4096, np.float32)
flat, strip_by_strip = large.reshape(-1), pack(large)

# %% tags=["nbval-ignore-output", "core"]
weights = {by_row: flat, four_rows: flat, strips: strip_by_strip, numpy_product: large}
fastest = dict.fromkeys(weights, 0.0)
with threadpool_limits(1):
    for _ in range(3):
        for kernel, stored in weights.items():
            fastest[kernel] = max(fastest[kernel], rate(kernel, stored, long_x, long_y))
reading = read_bandwidth(1, large.nbytes)

for kernel, speed in fastest.items():
    print(f"{kernel.__name__:<14} {4e-9 * speed:5.1f} GB of weights a second")
print(f"{'only read':<14} {1e-9 * reading:5.1f} GB a second")

# %% [markdown]
# The last line is the limit: the best of the kernels should be near it. (If one is far above, other programs disturbed one of
# the measurements; run the cell again. And if your last cache holds 67 MB, as that of a big server may, it is the cache's
# limit, not memory's.) Which one is the best depends on how your processor guesses what will be read next. It follows a few
# streams by itself, as a rule to the end of a page of 4 KB; what `prefetch` asks for does not end there. Where rows are as
# fast as strips, the hardware guessed well. Even then the engine keeps strips: no sums across lanes, and rows of any length.
#
# ## Build: the fourth rung
#
# This is how the engine `vectorized` keeps its weights and multiplies them. Its kernel is ours, in a form that also serves
# several tokens at once, other number formats, and pieces of a matrix. Look for the line with `fma_tile`: a tile is a tuple
# of sums, two registers for each token. With AVX-512 a register holds 16 numbers, and a strip is 32 rows.

# %% tags=["nbval-ignore-output"]
from llambda.engines import VectorizedEngine
from llambda.kernels import products

show(products.sum_strips, VectorizedEngine.linear)

# %% [markdown]
# Is it the same layout, and the same sum? Each row is added up from its first column to its last, with one rounding for each,
# in one lane or another. So the bits must be equal, whatever the width of the registers:

# %% tags=["core"]
from llambda.kernels.matrix import multiply, tiled
from llambda.kernels.matrix import pack as pack_tensor
from llambda.tensor import Tensor

matrix = pack_tensor(Tensor.from_numpy(w))
y_theirs = np.empty((1, 256), np.float32)
multiply(matrix, tiled(x[None], coded=False), y_theirs, 0, matrix.strips)
strips(packed, x, y)
print("the same layout:", bool((matrix.data.view(np.float32) == pack(w, products.STRIP)).all()))
print("the same bits:", bool((y_theirs[0] == y).all()))

# %% [markdown]
# ## Check: a bound for every order
#
# Our kernels add in four different orders, so they cannot all give the same bits. How near must they be? Each float32
# operation gives the right result times 1 + δ, with |δ| at most *u* = 2⁻²⁴ (lesson 01). For a row of n products: a product is
# rounded once at most, and then takes part in at most n - 1 additions that round, for adding to 0 is exact; and where a
# multiply-add does both, it rounds once for the two. So no product meets more than n factors 1 + δ, in whatever order, and if
# we neglect products of two δ, row r is off by at most
#
# $$n\,u \sum_c |w_{rc}\, x_c|$$
#
# The judge is PyTorch in float64, whose own error is half a billion times smaller.

# %%
import torch


def share_of_bound(y, w, x):
    """The largest error of a row, as a share of what is allowed."""
    exact, numbers = torch.from_numpy(w).double(), torch.from_numpy(x).double()
    allowed = len(x) * 2**-24 * (exact.abs() @ numbers.abs())
    return float(((torch.from_numpy(y) - exact @ numbers).abs() / allowed).max())


# %%
def furthest(kernel, order, rows, columns):
    """The share of the bound that a kernel needs for a matrix of random numbers."""
    w = rng.normal(size=(rows, columns)).astype(np.float32)
    x, y = rng.normal(size=columns).astype(np.float32), np.empty(rows, np.float32)
    kernel(order(w), x, y)
    return share_of_bound(y, w, x)


# %%
kinds = {plain: np.asarray, fast: np.asarray, by_row: np.ravel, four_rows: np.ravel, strips: pack}
several = [(16, 32), (48, 64), (64, 576), (32, 1536)]
worst = [furthest(*kind, *shape) for kind in kinds.items() for shape in several]
print(len(worst), "products, all within the bound:", max(worst) < 1)

# %% [markdown]
# Now a mistake. A row of 67 numbers is eight registers and a **tail** of 3. The most common fault of all vector code is to
# forget them:


# %%
@njit
def forgets_the_tail(w, x, y):
    n = len(x)
    for r in range(len(y)):
        a = splat_f32x8(0)
        for i in range(0, n - 7, 8):
            a = fma(load_f32x8(w, r * n + i), load_f32x8(x, i), a)
        y[r] = total(a)


# %%
print("the planted mistake is noticed:", furthest(forgets_the_tail, np.ravel, 16, 67) > 1)
print("with 64 columns:", furthest(forgets_the_tail, np.ravel, 16, 64) > 1)
print(
    "strips fail for any of 1 to 67:", max(furthest(strips, pack, 16, n) for n in range(1, 68)) > 1
)

# %% [markdown]
# A test with round numbers is blind to it. And strips have no tail, since a row's sum is in one lane and takes a number at a
# time. What they can have is a last strip that is not full, of a matrix with 100 rows, say. The package fills it up with rows
# of zeros.
#
# A whole engine, then. Every intermediate result of both new rungs, against the reference in PyTorch with float64, within
# lesson 04's tolerance:

# %%
import llambda
from llambda.check import compare_engine

ids = [1, 50, 7, 120, 33, 260, 4]
for name in ("scalar", "vectorized"):
    with llambda.load("tiny", engine=name) as model:
        report = compare_engine(model.engine, model.config, model.weights, ids, chunks=[4, 2, 1])
    print(f"{name}: {len(report.comparisons)} results, all within: {report.divergence is None}")

# %% tags=["real", "nbval-ignore-output"]
from llambda.fetch import KNOWN

if KNOWN["smollm2"].is_here:
    with llambda.load("smollm2", engine="vectorized") as real:
        said = "".join(real.generate("The capital of France is", max_tokens=2, temperature=0))
        print(said)
        assert said == " Paris."
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: 16 numbers, and 16 million
#
# "Eight lanes, so eight times as fast" is what one hears. Test it at both ends. Compare the strips with the plain compiled
# loop: how many times as many weights a second, for a matrix of 16 weights (16 rows, 1 column), and for 4096 x 4096?

# %% tags=["core"]
guess_small, guess_large = ..., ...
predict("08.small", "speed of strips over the plain loop, 16 weights", guess_small)
predict("08.large", "speed of strips over the plain loop, 4096 x 4096", guess_large)

# %% tags=["nbval-ignore-output", "core"]
shapes = [(16, 1), (16, 4), (16, 16), (64, 64), (256, 256), (1024, 1024), (4096, 4096)]
curves = {
    "in order": (plain, np.asarray, 1),
    "reordered": (fast, np.asarray, 1),
    "every second number": (strided, np.asarray, 1),
    "NumPy": (numpy_product, np.asarray, 1),
    "four rows at once": (four_rows, np.ravel, 8),
    "strips": (strips, pack, 1),
}

# %% tags=["nbval-ignore-output", "core"]
rates = {name: {} for name in curves}
with threadpool_limits(1):
    for rows, columns in shapes:
        stored = np.ascontiguousarray(large[:rows, :columns])
        for name, (kernel, order, least) in curves.items():
            if columns >= least:
                one_x, one_y = long_x[:columns], long_y[:rows]
                used = 0.5 if kernel is strided and columns > 1 else 1
                rates[name][rows, columns] = used * rate(kernel, order(stored), one_x, one_y)

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.simd import sizes
from llambda.machine import this_machine

sizes(rates, this_machine().caches, reading)

# %% tags=["nbval-ignore-output", "core"]
gains = {shape: rates["strips"][shape] / rates["in order"][shape] for shape in shapes}
outcome("08.small", "speed of strips over the plain loop, 16 weights", gains[16, 1])
outcome("08.large", "speed of strips over the plain loop, 4096 x 4096", gains[4096, 4096])
print(f"at 256 x 256 it is {gains[256, 256]:.1f}")

# %% [markdown]
# Three regions, from left to right:
#
# - **The call.** For 16 weights all compiled kernels are alike. Python's call of a compiled function costs a fraction of a
#   microsecond, as much as hundreds of multiplications. Vector code is worth nothing there.
# - **The cache.** As long as the matrix fits into a cache near the core, lanes and independence count. (Here four rows may
#   even beat the strips: four chains against two. In the package a strip serves several tokens at once, each with sums of its
#   own.)
# - **Memory.** At the right end the dashed line is the limit: so fast does a thread read 67 MB when it does nothing else. The
#   wide kernels come more or less near it, and its distance from the plain loop is all that there is to gain.
#
# In the caches `reordered` keeps up with what we wrote by hand, and at the right end it should stand where `by_row` did in the
# table above: with your permission, LLVM writes that loop itself. What no compiler does is to put the weights into another
# order in memory. Nor can you count on it to find the instructions for bytes that lesson 09 needs, in a loop that does not name
# them.
#
# *Strided against contiguous*: the curve of every second number counts only those that are used. It has the same permission
# as `reordered`, and lies below it. In the cache, collecting eight numbers costs more than multiplying them; and memory could
# bring at best half as many, since the other half of each cache line travels along.
#
# Now the engine. Lesson 07 computed what this one can bring at most, from the share of each operation and its distance from
# the roof. (If you come from there, its number stands as your guess.) Here are the rungs so far, under your machine's
# ceiling. It is that of the weights as the file of `smollm2` holds them, a few bits each; these rungs read 4 bytes for each.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.progress import ladder_so_far

speeds = ladder_so_far("vectorized")
gain = speeds["vectorized"] / speeds["cached"]
outcome("08.gain", "decoding, vectorized over cached", gain)

# %% [markdown]
# Look at `scalar` first. A loop compiled from Python can be *slower* than the rung before: NumPy's matrix product was vector
# code all the time, written by specialists. Compiling alone does not make code fast. Then `vectorized`: what it gains over
# `cached` is nowhere near eight. Both read every weight as four bytes, and neither reads faster than memory brings them;
# where NumPy's library is near that limit already, nothing is left to gain, and the ratio is about 1, or a little below. What
# you have won is that the kernel is *yours*: the library has none for weights of four bits.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.roofs import roof_so_far

places = roof_so_far("vectorized")

# %% [markdown]
# All rungs after the first stand at the same place of the horizontal axis: half an operation for each byte, since a weight of
# 4 bytes makes two. There the roof is the slope of memory. `vectorized` stands below it: a token has other work as well, and
# each of its many matrices is a call of its own, which begins to read anew; both are lesson 11's matter. But no engine of 4
# bytes a weight gets above that slope. To go far up, go right first: read fewer bytes for each operation.
#
# ## Break it: the tail, rounded up
#
# There is a second way to get a tail wrong: not to stop before it, but to go on behind it, to the next multiple of eight.
# Here is a kernel that does, and a row of 67 numbers which is the beginning of a longer buffer. What lies behind it?


# %%
@njit
def rounds_up(w, x, y):
    a = splat_f32x8(0)
    for i in range(0, len(x), 8):
        a = fma(load_f32x8(w, i), load_f32x8(x, i), a)
    y[0] = total(a)


# %%
w_room, x_room, y_one = np.ones(72, np.float32), np.ones(72, np.float32), np.empty(1, np.float32)
for behind in (0, 1):
    x_room[67:] = behind
    rounds_up(w_room[:67], x_room[:67], y_one)
    print(f"numbers behind the row: {behind}, sum of the row's 67 ones: {y_one[0]:.0f}")

# %% [markdown]
# **Symptom:** right in the test, where memory is fresh and full of zeros; wrong in the middle of a long run; and once in a
# thousand runs a crash, when the row ends where the process's memory does. It belongs to the last row of the table:
#
# | symptom | look first at |
# |---|---|
# | text is garbage, or one token for ever | tokenizer, sampling, how weights are parsed |
# | text is well formed, but wrong | weights, precision, shapes; the cache; **a dropped tail** |
# | crash or fault | **alignment**, foreign pointers, bounds, a missing CPU feature |
# | slow | **no SIMD: look at the listing**; task size, contention, too many threads |
# | now right, now wrong | a race, a seed, order of addition; a state used twice; **what lies behind the end** |
#
# **How to find it:** lengths that are no multiples, and numbers behind the end that would be seen: nan is best. A masked load
# takes the first few lanes only, and touches nothing else. You will need it in the first exercise:


# %%
@njit
def first_lanes(x, at, n, out):
    store(out, 0, load_first_f32x8(x, at, n))


first_lanes(np.arange(67, dtype=np.float32), 64, 3, out)
out

# %% [markdown]
# ## Break it: a promise about alignment
#
# Our `load8` promised `align=4`. A register has 32 bytes, so why not promise 32? Here is a kernel with such a load, as a
# text, since we shall run it in two places. First here, with an array that keeps the promise: it begins at a multiple of 32.

# %%
promising = """
from numba import njit
from llambda.simd.arithmetic import add
from llambda.simd.memory import store
from llambda.simd.registers import f32x8, instruction

@instruction(lambda array, at: f32x8)
def load_aligned(code, array, at):
    kind = code.context.get_value_type(f32x8)
    return code.builder.load(code.place(array, at, kind), align=32)

@njit
def double(a, b):
    for i in range(0, len(b), 8):
        v = load_aligned(a, i)
        store(b, i, add(v, v))
"""

# %%
names = {}
exec(promising, names)
double = names["double"]

# %%
room, doubled = np.ones(80, np.float32), np.empty(64, np.float32)
skip = -room.ctypes.data % 32 // 4  # numbers to the next multiple of 32 bytes
double(room[skip : skip + 64], doubled)
print("all are 2:", bool((doubled == 2).all()))

# %% tags=["nbval-ignore-output"]
look(double, 2, "mov")
look(lane_sums, 2, "mov")

# %% [markdown]
# Look at the letter in the middle: `vmovaps` here (*a* for aligned), `vmovups` in our own kernel from above (*u* for
# unaligned). Now an array that begins four bytes further on. The processor will not forgive that, so we try it in a process
# of its own.

# %% tags=["nbval-ignore-output"]
import signal
import subprocess
import sys

misaligned = """
import resource, numpy as np
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # leave no file behind
room = np.ones(80, np.float32)
skip = -room.ctypes.data % 32 // 4 + 1
double(room[skip : skip + 64], np.empty(64, np.float32))
"""
done = subprocess.run([sys.executable, "-c", promising + misaligned], capture_output=True)
killed = done.returncode < 0  # the number of the signal, negative
print(f"killed by {signal.Signals(-done.returncode).name}" if killed else "survived")

# %% [markdown]
# **Symptom:** no wrong number, no exception; the process is gone. And only sometimes: NumPy's arrays are often aligned by
# chance, and a view is not. **How to find it:** `python -X faulthandler` names the line that called the compiled function,
# and the listing shows which instructions can fault. It is these few. Where a `vfmadd` takes its numbers straight from memory
# it accepts any address, too, so a broken promise may go unnoticed until the compiler chooses another instruction.
#
# And what would `vmovaps` gain? Nothing: on all processors with AVX2 both are equally fast on aligned addresses. What does
# cost is a load that straddles two cache lines, as every second one of these does, if the array does not begin with a line:

# %% tags=["nbval-ignore-output"]
for skip in (0, 1):
    speed = gflops(kernels["with two loads each", 8], skip)
    print(f"begins {4 * skip} bytes into a line: {speed:.1f} GFLOP/s")

# %% [markdown]
# So the package lets its arrays begin with a line, and promises nothing.
#
# ## Break it: arrays that overlap
#
# Back to `add_half`, of which the compiler wrote two loops. By hand we write only one, the fast one:


# %%
@njit
def add_half_by_hand(a, b):
    for i in range(0, len(b), 8):
        store(a, i, fma(load_f32x8(b, i), splat_f32x8(0.5), load_f32x8(a, i)))


# %%
for function in (added, add_half_by_hand):
    buffer = np.zeros(17, np.float32)
    buffer[0] = 64
    function(buffer[1:], buffer[:-1])  # each number gets half of the one before
    print(buffer[:8])

# %% [markdown]
# **Symptom:** a kernel that is right for all inputs, except where somebody saves memory by working in place. (Exactly in
# place is harmless: eight numbers are read before they are written. One place further is not.) **How to find it:** give it
# copies, and see whether the result changes. **The guard** stands where arrays come in from outside; inside, whoever
# allocates the buffers knows.

# %%
print(np.shares_memory(buffer[1:], buffer[:-1]))

# %% [markdown]
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %%
from llambda.course.exercises import simd as check

# %% [markdown]
# ### Exercise 08.1 · A kernel with a tail
#
# *code · 20 minutes · difficulty 4 of 5*
#
# Write the product of a matrix and a vector for rows of *any* length. `w` is flat: row r begins at `w[r * len(x)]`, and there
# are `len(y)` rows, any number of them. All three arrays are float32. Write the sum of each row's products to `y[r]`, whatever
# was there before.
#
# - You may use `splat_f32x8(number)`, `load_f32x8(array, at)`, `load_first_f32x8(array, at, n)`, `fma(a, b, c)`, `add(a, b)`
#   and `total(v)`, all from above. With n of 8 or more, `load_first_f32x8` loads all lanes; with 0 or less, none.
# - Nothing outside the arrays may be read. Read 8 numbers from `x` only if 8 are left.
# - Each whole group of eight products is one `fma`, and `total` stands outside of the loop over columns.
# - No chains: consecutive multiply-adds must not all wait for each other. Two sums that take turns are enough.
# - `@njit` stays as it is, without `fastmath`.
#
# The checker runs your function in Python first, with stand-ins for registers that take notes, for rows of 1 to 67 numbers.
# Then it has it compiled and runs it again. A result may be off by what rounding allows.


# %% tags=["exercise"]
@njit
def row_products(w, x, y):
    """y[r] = the sum of w[r * n + c] * x[c] over all c below n = len(x)."""
    ...


# %% tags=["checker"]
check.products(row_products)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two loops, one after the other: one over whole groups of 16, as `range(0, n - 15, 16)` counts them, with two sums; and one
# over what is left, at most 15 numbers, in steps of 8 with `load_first_f32x8`. The second begins at `n // 16 * 16`.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# @njit
# def row_products(w, x, y):
#     n = len(x)
#     for r in range(len(y)):
#         at = r * n
#         a = b = splat_f32x8(0)
#         for i in range(0, n - 15, 16):
#             a = fma(load_f32x8(w, at + i), load_f32x8(x, i), a)
#             b = fma(load_f32x8(w, at + i + 8), load_f32x8(x, i + 8), b)
#         for i in range(n // 16 * 16, n, 8):
#             left = n - i
#             a = fma(load_first_f32x8(w, at + i, left), load_first_f32x8(x, i, left), a)
#         y[r] = total(add(a, b))
# ```
#
# The lanes that a masked load leaves out are 0, and 0 · 0 adds nothing. Stepping back to load the last *eight* of a row
# instead is a well-known trick for results that may be computed twice; in a sum they would count twice.
#
# </details>

# %% [markdown]
# ### Exercise 08.2 · How many sums at once
#
# *predict · 4 minutes · difficulty 2 of 5*
#
# A core starts two multiply-adds of registers of eight lanes in each cycle. The result of one is there after 4 cycles. All
# numbers are in registers already. How many accumulators, each a register, keep the core busy all the time?

# %% tags=["exercise"]
sums_at_once = ...

# %% tags=["checker"]
check.accumulators(sums_at_once)

# %% [markdown]
# <details><summary>Hint</summary>
#
# How many are started before the first result is there?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# sums_at_once = 4 * 2
# ```
#
# A processor with a latency of 5, such as Intel's Haswell of 2013, needs 10. So kernels that must run everywhere take a few
# more than they need here: lesson 00's black box has 12.
#
# </details>

# %% [markdown]
# ### Exercise 08.3 · Five listings
#
# *diagnose · 8 minutes · difficulty 3 of 5*
#
# Here are five listings of the same task, a sum of products, as compilers wrote it for several processors. They are cut down
# to the loop that does most of the work and to what stands beside it. For each: on how many numbers does *one* arithmetic
# instruction of that loop work? D is from an ARM processor; a word on it stands in the hint.

# %%
for name, recorded in check.LISTINGS.items():
    print(f"--- {name}\n{recorded}")

# %% tags=["exercise"]
numbers_at_once = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}

# %% tags=["checker"]
check.listings(numbers_at_once)

# %% [markdown]
# <details><summary>Hint</summary>
#
# A loop is what lies between a label and the jump back to it. Only that counts. In ARM's listings `v0.4s` is register v0,
# taken as four singles, and what is written to stands first.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# numbers_at_once = {"A": 1, "B": 16, "C": 1, "D": 4, "E": 4}
# ```
#
# A and C are what you get from C compilers too, unless you pass `-ffast-math` or a part of it. The v in front is no sign of
# vectors, it belongs to all instructions in AVX's encoding.
#
# </details>

# %% [markdown]
# ## Recap
#
# A compiler must keep the order of your additions, so by itself it uses one lane of eight; you allow more by name, or you say
# it, register by register, with a type and a few intrinsics of your own. Then independence counts more than width: as many
# sums must run beside each other as are started before the first result is there. And where memory is the limit, no kernel
# gets above it, and the layout decides how near it comes: one stream, read ahead, in the order in which the registers want it.
#
# The next lesson needs these registers, and the strips. Memory brings no more bytes a second, so it makes do with fewer bytes
# for each weight: **09 · Why do fewer bits run faster?**
#
# **Further reading.**
#
# - Agner Fog, *Optimizing Software in C++* and *Instruction Tables*: latencies and rates of every instruction, kept up to
#   date.
# - Intel, *Intrinsics Guide*: each vector instruction with its meaning in a few lines.
# - Kazushige Goto and Robert A. van de Geijn, *Anatomy of High-Performance Matrix Multiplication*, 2008: why libraries pack.
# - Siu Kwan Lam, Antoine Pitrou and Stanley Seibert, *Numba: A LLVM-based Python JIT Compiler*, 2015.
# - David Goldberg, *What Every Computer Scientist Should Know About Floating-Point Arithmetic*, 1991: why the order matters.
