# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09 · Quantization
#
# **Why do fewer bits run faster?**
#
# - **You will build** products of 16-bit, 8-bit and 4-bit weights with a vector, out of the few instructions that the
#   processor has for them, and with these the engine `quantized`: its weights stay as small as they are in the file.
# - **You will be able to** say what a table of "lanes" counts and what it leaves out, to compute exactly with whole numbers
#   and to know where they stop being exact, and to tell the noise of few bits from a mistake.
# - **You need** a matrix product, and an idea of what a vector register is (lesson 08). Halves and blocks of codes come
#   from lesson 02; both are recalled where they are used.
#
# *90 minutes · difficulty 4 of 5*
#
# Two boxes are lit: the weights, because they change their form, and the kernels, because they must follow.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("09")

# %% [markdown]
# ## Build: a table that everybody knows
#
# A **register** is a place inside the processor, and an instruction works on all that one holds. On a processor with AVX2
# it holds 32 bytes. How many numbers is that? A `view` reads the same bytes under another type:

# %%
import numpy as np

register = np.arange(32, dtype=np.uint8)
kinds = {"FP32": np.float32, "FP16": np.float16, "INT8": np.int8}
{name: len(register.view(kind)) for name, kind in kinds.items()}

# %% [markdown]
# With BF16, which has 16 bits and which NumPy does not know, that makes the table of many a talk: **FP32 8, FP16 16, BF16
# 16, INT8 32**. The numbers in a register are called its **lanes**. And the table is read like this: half the bits, twice
# the lanes, twice the speed.
#
# We are going to test it, in two places. First, all weights lie in the cache, close to the processor. Second, they come out
# of memory, as a model's weights do. The work is a matrix times a vector: a **product** is one weight times one number,
# added to a sum. Guess both before you go on.

# %%
from llambda.course.predictions import outcome, predict

guess = ...
predict("09.half", "products a second in FP16 over FP32, weights in the cache", guess)

# %%
guess = ...
predict("09.int8", "products a second in INT8 over FP32, weights in memory", guess)

# %% [markdown]
# ## Build: what can the processor multiply?
#
# Ask somebody who must know: LLVM, the compiler behind Numba. It gets two registers and one operation, and says which
# instructions it would use on a processor of a given name. `x86-64-v3` is any one with AVX2; `sapphirerapids` is a server
# processor of 2023. (The text in between is LLVM's own language. You need not read it.)

# %%
import re
from collections import Counter

from llvmlite import binding as llvm

from llambda.simd.target import target_is_x86


def instructions(operation, kind, processor):
    """What combines two registers lane by lane, and how often: {instruction: count}."""
    text = f"""define {kind} @f({kind} %a, {kind} %b) {{
      %r = {operation} {kind} %a, %b
      ret {kind} %r
    }}"""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple("x86_64-linux-gnu")
    machine = target.create_target_machine(cpu=processor, features="", opt=3)
    listing = machine.emit_assembly(llvm.parse_assembly(text))
    return dict(Counter(re.findall(r"^\t(v\w+)", listing, re.MULTILINE)))


# %% tags=["nbval-ignore-output"]
if target_is_x86():
    print("8 x FP32, AVX2 ", instructions("fmul", "<8 x float>", "x86-64-v3"))
    print("16 x FP16, AVX2", instructions("fmul", "<16 x half>", "x86-64-v3"))
    print("16 x FP16, 2023", instructions("fmul", "<16 x half>", "sapphirerapids"))
    print("32 x INT8, AVX2", instructions("mul", "<32 x i8>", "x86-64-v3"))
    assert "vmulph" not in instructions("fmul", "<16 x half>", "x86-64-v3")
else:
    print("this compiler makes no x86 code: read on with the recorded output")

# %% [markdown]
# Read the first two lines. Eight floats are multiplied by one `vmulps`. For sixteen **halves**, as numbers in FP16 are
# called, AVX2 has *no* multiplication: they are converted to floats (`vcvtph2ps`), multiplied in two registers of eight,
# and converted back. Newer server processors have one, `vmulph` in the third line, and no laptop need have it. In the last
# line look for what is missing: an instruction that multiplies bytes by bytes, lane by lane. This whole family has none, and
# the compiler builds it from others, with masks and shifts. (One of these, `vpmaddubsw`, will be our main tool.)
#
# So there are two counts:
#
# - **storage lanes**: how many numbers *fit* into a register. That is what the table counts.
# - **arithmetic lanes**: how many numbers one instruction *computes* with.
#
# For FP16 and BF16 on AVX2 the table says 16, and the arithmetic says 8. What INT8 has, we shall see.
#
# ## Build: sixteen bits
#
# Would sixteen lanes of halves be any good? A half keeps 11 significant bits. Here are 4,096 ones, added up one by one:

# %%
float(np.add.accumulate(np.ones(4096, np.float16))[-1])

# %% [markdown]
# At 2,048 the next half is 2,050, and 2,048 + 1 is rounded back to 2,048. Sums want more bits than weights do. So even
# where halves can be multiplied, one **stores** 16 bits and **adds** in 32.
#
# Let us do that. The matrix has 128 rows and 4,096 columns of random numbers; `stored` is what files make of it, by lesson
# 02's encoders. Bits a weight, everything included:

# %%
from llambda.encode import encode
from llambda.quants import BY_NAME

rng = np.random.default_rng(9)
w = rng.normal(size=(128, 4096)).astype(np.float32)  # [rows, cols]
x = rng.normal(size=4096).astype(np.float32)  # [cols]
stored = {name: encode(w, BY_NAME[name].dtype) for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0")}
{name: 8 * raw.nbytes / w.size for name, raw in stored.items()}

# %% [markdown]
# The first three are files' names for FP32, FP16 and BF16. The last two come later.
#
# In which order should weights lie in memory? As in lesson 08: the way the loop wants them. If a register holds the same
# column of *eight rows*, each row has a lane of its own, and no sum ever goes across a register. We take 64 rows together, a
# **strip** of eight registers: eight sums that do not wait for each other are what lesson 08 found to keep a core busy.


# %%
def strips(w):
    """[rows, cols] -> one axis: of 64 rows the first column, then their second, and so on."""
    rows, cols = w.shape
    return w.reshape(rows // 64, 64, cols).swapaxes(1, 2).ravel()  # [rows * cols]


# %% [markdown]
# The kernel is lesson 08's, in the functions of `llambda.simd`. Each is about one instruction on a register of eight
# floats: `splat_f32x8(v)` puts one number into all lanes, `load(array, at)` reads eight, `fma(a, b, c)` is a · b + c, and
# `store` writes. Note what is *not* fixed: which `load`. It may read floats, or halves that it converts.

# %%
from numba import njit

from llambda.simd.arithmetic import fma, splat_f32x8
from llambda.simd.memory import load_bf16x8, load_f16x8, load_f32x8, store


# %%
def product(load):
    @njit(nogil=True)
    def multiply(w, x, out):
        at = 0
        for row in range(0, len(out), 64):
            a = b = c = d = e = f = g = h = splat_f32x8(0)
            for column in range(len(x)):
                v = splat_f32x8(x[column])
                a, b = fma(load(w, at), v, a), fma(load(w, at + 8), v, b)
                c, d = fma(load(w, at + 16), v, c), fma(load(w, at + 24), v, d)
                e, f = fma(load(w, at + 32), v, e), fma(load(w, at + 40), v, f)
                g, h = fma(load(w, at + 48), v, g), fma(load(w, at + 56), v, h)
                at += 64
            for i, sums in enumerate((a, b, c, d, e, f, g, h)):
                store(out, row + 8 * i, sums)

    return multiply


# %%
floats = {"F32": product(load_f32x8), "F16": product(load_f16x8), "BF16": product(load_bf16x8)}

# %% [markdown]
# Numba has no 16-bit floats, so both kinds travel as `uint16`, bits without a meaning, until a load gives them one. How far
# is each result from the exact product, which NumPy computes in float64 from the original weights?

# %%
exact = w.astype(np.float64) @ x  # [rows]


def error(out):
    """How far a product is from the exact one, as a share of its size."""
    return float(np.sqrt(np.mean((out - exact) ** 2) / np.mean(exact**2)))


def numbers(name):
    """Stored floats of 4 or 2 bytes, as the kernels take them: [rows, cols]."""
    return stored[name].view("<f4" if name == "F32" else "<u2")


# %%
results = {}
for name, multiply in floats.items():
    results[name] = np.empty(128, np.float32)
    multiply(strips(numbers(name)), x, results[name])
    print(f"{name:5} off by {error(results[name]):.0e}")

# %% [markdown]
# F32 is off by its roundings. F16 is off by a hundred times as much, and BF16, which has three bits less for its digits, by
# ten times more. Does that matter? "Check" will count it in answers.
#
# What did the compiler make of the load? `asm` lists the instructions of a kernel's innermost loops. Here are those for F16
# that touch registers of 32 bytes (`%ymm`):

# %% tags=["nbval-ignore-output"]
from llambda.simd.listing import asm
from llambda.simd.target import target_has


def vector_lines(kernel):
    """The instructions of a kernel's innermost loops that use registers of 32 bytes or more."""
    return [line for line in asm(kernel) if "%ymm" in line or "%zmm" in line]


lines = vector_lines(floats["F16"])
if target_has("f16c", "fma"):
    print(*lines[:10], sep="\n")
    assert sum("vcvtph2ps" in line for line in lines) == sum("vfmadd" in line for line in lines)
else:
    print("this target converts halves by other instructions:", len(lines), "lines")

# %% [markdown]
# For every `vfmadd`, the multiply-add of eight floats, there is one `vcvtph2ps`, which reads *16 bytes* and makes a
# register of eight floats of them. (`vcvtph2psx` is a newer name for the same.) That is the whole difference to FP32. (For
# BF16 it takes two: widen, and shift by 16 bits.)
#
# ## Build: is it faster?
#
# Now the first guess. All three kernels get a matrix of 64 rows and 96 columns. It takes 24 KB as FP32 and stays in the
# cache next to the core. It is multiplied in less time than Python needs for a call, so a compiled loop repeats it:

# %%
from functools import partial

from llambda.course.timing import seconds


@njit(nogil=True)
def again(times, kernel, *given):
    for _ in range(times):
        kernel(*given)


def rate(kernel, *given, products=64 * 96, times=2000):
    """Billions of products a second, of a kernel that does so many in a call."""
    again(1, kernel, *given)  # compiles
    return products * times / seconds(partial(again, times, kernel, *given)) / 1e9


# %% tags=["nbval-ignore-output"]
near, few = x[:96].copy(), np.empty(64, np.float32)
cached = {}
for name, multiply in floats.items():
    cached[name] = rate(multiply, strips(numbers(name)[:64, :96]), near, few)
outcome(
    "09.half",
    "products a second in FP16 over FP32, weights in the cache",
    cached["F16"] / cached["F32"],
)

# %% [markdown]
# The table promised 2. There is nothing of it: the same eight arithmetic lanes, and conversions on top. (If yours is above
# 1, your cache does not deliver two registers a cycle, and fewer bytes help even there. That is the idea to hold on to.)
#
# So why does everybody store 16 bits? For what the table says without meaning it: sixteen numbers in 32 bytes are **half
# the bytes** a number. Lesson 00 said what bytes cost when they come out of memory. We shall measure it when all kernels
# are there. First, fewer bytes still.
#
# ## Build: codes on both sides
#
# Lesson 02 took weights apart into **blocks** of 32 neighbours in a row. They share a factor, the **scale** d, stored as a
# half, and each has a whole number, its **code**. In Q8_0 a weight is d · code, with codes of a byte. In Q4_0 it is d ·
# (code - 8), with codes from 0 to 15, two in a byte.
#
# One could turn codes into floats and go on as before. That is right, and it throws something away: codes are *small whole
# numbers*. If the vector, the **activations**, came in blocks of codes as well, the 32 products of a block would need no
# floats at all:
#
# $$\sum_{i} (d \cdot c_i)(d_x \cdot x_i) \;=\; d \cdot d_x \cdot \sum_{i} c_i \, x_i$$
#
# Here c are the codes of a row's block, x those of the vector's, and d and d_x the scales. The sum on the right is a whole
# number. Only then come two scales, once for 32 products. So each time a vector is about to meet a matrix, we **quantize**
# it, too, once for all rows: the scale is the largest magnitude of the block over 127, and a code is the nearest whole
# number.

# %%
block = x[:32]
scale = np.abs(block).max() / np.float32(127)
xcodes = np.rint(block / scale).astype(np.int8)
print(xcodes[:10], "...")
print(f"furthest from the truth: {np.abs(scale * xcodes - block).max() / scale:.2f} scales")

# %% [markdown]
# Never more than half a scale: that is what rounding to the nearest does. And in the middle, between two? `np.rint` takes
# the *even* neighbour, and so does the processor. C's `roundf` goes away from zero, and with it the encoder of Q8_0, in
# llama.cpp and here. For us neither is better. But a test that mixes them up finds differences on round numbers:

# %%
np.rint([0.5, 1.5, 2.5, -0.5]).tolist()

# %% [markdown]
# There is one more thing that two lines of NumPy do badly: a block of zeros. It is yours, in exercise 09.3. From here on
# the package's own form does it.

# %%
from llambda.kernels import activations

xcodes, xscales = activations.quantize(x.reshape(-1, 32))  # [blocks, 32], [blocks]
assert np.array_equal(xcodes[0], np.rint(block / scale))
xcodes.dtype, xscales.dtype, xcodes.shape

# %% [markdown]
# ## Build: whole numbers, exactly
#
# Now the whole sums. In Q8_0 a block has 34 bytes: two for the scale, then 32 codes. We take a full row of codes, as if all
# scales were 1. The naive try is `@`:

# %%
raw = stored["Q8_0"].reshape(128, 128, 34)  # [rows, blocks, bytes]
scales, codes = raw[..., :2], raw[..., 2:].view(np.int8)  # [rows, blocks, 2 bytes], [.., 32]
row, xrow = codes[0].ravel(), xcodes.ravel()  # [cols] each
print("int8 @ int8:  ", int(row @ xrow))
print("int64 @ int64:", int(row.astype(np.int64) @ xrow.astype(np.int64)))

# %% [markdown]
# NumPy multiplies bytes into bytes and adds them in bytes, where 127 + 1 is -128, without a word. The second line is right:
# no sum of ours comes near the end of 64 bits. **int64 is the judge** for the rest of the lesson, and its tolerance is
# zero. Whole numbers have no rounding, so there is no excuse.
#
# Second try: a compiled loop. Numba makes 64-bit numbers of a product of integers, so this one is right.


# %%
@njit(nogil=True)
def plain(a, b):
    total = 0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


plain(row, xrow) == int(row.astype(np.int64) @ xrow.astype(np.int64))

# %% [markdown]
# Lesson 08 had to beg: without `fastmath` the compiler may not reorder a sum of floats, and so may not use registers. What
# does it do here?

# %% tags=["nbval-ignore-output"]
lines = vector_lines(plain)
if target_has("avx2"):
    print(*lines[:7], sep="\n")
    assert lines and not any("vpmaddubsw" in line for line in lines)
else:
    print("this target has no registers of 32 bytes:", len(lines), "lines")

# %% [markdown]
# It used registers, and nobody allowed anything. Whole numbers may be added in any order, so there was nothing to ask. Give
# the very same function floats, and they are gone:

# %% tags=["nbval-ignore-output"]
plain(w[0], x)
lines = [line for line in asm(plain) if "add" in line or "mul" in line]
print(*lines[:6], sep="\n")
assert not any(line.startswith("vaddp") for line in lines), "sums of floats, several at once"

# %% [markdown]
# (`ss` and `sd` at the end of a name stand for a *single* number.) But look once more at the first line for whole numbers.
# `vpmovsxbq` reads *four* bytes and makes four 64-bit numbers of them, and `vpmuldq` multiplies four. (Eight, where your
# registers are twice as wide.) INT8: 32 storage lanes, and **4** arithmetic lanes. How does that compare with FP32, both
# from the cache?

# %% tags=["nbval-ignore-output"]
many = np.tile(row, 16)  # 65,536 codes
as_written = len(many) / seconds(partial(plain, many, np.tile(xrow, 16))) / 1e9
print(f"INT8 in a plain loop: {as_written:.1f} billion products a second")
print(f"FP32, our kernel:     {cached['F32']:.1f}")

# %% [markdown]
# A quarter of the bytes, and slower. (It will be on most machines. A compiler that sees a better way may surprise you: look
# at your listing.) The type alone brings nothing; the instructions do.
#
# ## Build: the instruction for bytes
#
# AVX2 has one that multiplies bytes, and it is a strange one. `vpmaddubsw`, here **maddubs**, takes 32 *unsigned* bytes and
# 32 *signed* ones, multiplies them lane by lane, and adds each two neighbouring products. 16 sums come out, of 16 bits. A
# sum that an int16 cannot hold **saturates**: it becomes the nearest that it can, 32,767 or -32,768. In NumPy:


# %%
def maddubs(a, b):  # uint8 [..., 32], int8 [..., 32]
    products = a.astype(np.int64) * b
    pairs = products[..., 0::2] + products[..., 1::2]  # [..., 16]
    return np.clip(pairs, -32768, 32767).astype(np.int16)


# %% [markdown]
# Its companion `vpmaddwd`, **madd**, does the same with 16 signed numbers of 16 bits: eight sums come out, of 32 bits, with
# room for any that we need. With ones on one side it adds neighbours, and that is all we want of it.


# %%
def madd(a, b):  # int16 [..., 16] each
    products = a.astype(np.int64) * b
    return (products[..., 0::2] + products[..., 1::2]).astype(np.int32)  # [..., 8]


ones = np.ones(16, np.int16)
four_bits = np.array([3, 15] * 16, np.uint8)
pairs = maddubs(four_bits, xcodes[0])
print(pairs, madd(pairs, ones), sep="\n")

# %% [markdown]
# Is our `maddubs` the processor's? In `llambda.simd` a function of the same name *is* the instruction. (On a processor
# without it, the compiler gets other instructions with the same result.) We ask for all 65,536 pairs of an unsigned and a
# signed byte, each beside three neighbours: none, and the two most extreme.

# %%
from llambda.simd import integers, memory


@njit(nogil=True)
def by_processor(a, b, out):
    for i in range(0, len(a), 32):
        v = integers.maddubs(memory.load_u8x32(a, i), memory.load_i8x32(b, i))
        store(out, i // 2, v)


# %%
unsigned, signed = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(-128, 128, dtype=np.int8))
for beside in ((0, 0), (255, 127), (255, -128)):
    a = np.stack([unsigned, np.full_like(unsigned, beside[0])], -1).ravel()
    b = np.stack([signed, np.full_like(signed, beside[1])], -1).ravel()
    out = np.empty(65536, np.int16)
    by_processor(a, b, out)
    print(beside, np.array_equal(out, maddubs(a.reshape(-1, 32), b.reshape(-1, 32)).ravel()))

# %% [markdown]
# ## Build: eight rows in a register
#
# Four-bit codes are unsigned, and activations are signed: as if the instruction were made for Q4_0. What remains is the
# order. A sum of 16 bits is made of *neighbours*, and neighbours should belong to one row, so that here, too, each row has
# lanes of its own. Look at the picture from top to bottom.

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.quantization import block_in_registers

block_in_registers()

# %% [markdown]
# One load of 32 bytes brings 64 codes: four columns of eight rows in the low halves of the bytes (the **nibbles**), the
# next four columns in the high ones. Four codes of x are repeated for every row. Four loads make a block of 32 columns,
# eight rows at once. On the right, the lanes: 32, then 16, then 8. **So INT8 has 32 arithmetic lanes where it multiplies,
# and 8 where it arrives.**
#
# First the order. `panel` gets the codes of eight rows, columns 0 to 31 as they follow each other:


# %%
def panel(codes):  # uint8 [8 rows, 32 columns]
    """Nibbles as the kernel wants them: byte 4 * row + column of four columns, low and high."""
    groups = codes.reshape(8, 8, 4).swapaxes(0, 1).reshape(8, 32)  # [group of 4 columns, byte]
    return groups[0::2] | groups[1::2] << 4  # [4 loads, 32 bytes]


def block_sums(panel, x):  # uint8 [4, 32], int8 [32]
    pairs = np.zeros(16, np.int16)
    for k in range(4):
        pairs += maddubs(panel[k] & 15, np.tile(x[8 * k : 8 * k + 4], 8))
        pairs += maddubs(panel[k] >> 4, np.tile(x[8 * k + 4 : 8 * k + 8], 8))
    return madd(pairs, ones)  # int32 [8 rows]


# %% [markdown]
# `pairs` collects eight sums in each 16-bit lane before anything is made wider. Is there room? A code is at most 15, an
# activation's at most 127, and each sum has two products:

# %%
print(f"15 x 127 x 2 x 8 = {15 * 127 * 2 * 8:,}, and an int16 ends at {2**15 - 1:,}")

# %% [markdown]
# Just enough: a block of 32 columns and codes of four bits go together well. (For other widths, see exercise 09.2.) int64
# judges: random codes, and the worst there are.

# %%
some = rng.integers(0, 16, (8, 32), dtype=np.uint8)
for each in (some, np.full_like(some, 15)):
    for c in (xcodes[0], np.full(32, 127, np.int8), np.full(32, -127, np.int8)):
        judge = each.astype(np.int64) @ c.astype(np.int64)
        print(np.array_equal(block_sums(panel(each), c), judge), end=" ")

# %% [markdown]
# And the 8 of d · (code - 8)? It need not be subtracted from a single code:
#
# $$\sum_i (c_i - 8)\, x_i \;=\; \sum_i c_i \, x_i \;-\; 8 \sum_i x_i$$
#
# The sum of the x is the same for all rows of the matrix. So it is computed once, when x is quantized, and a block adds
# minus eight times that to its sums.
#
# Now in registers. A block of eight rows is a **record** of 144 bytes: 128 of nibbles, then eight scales as halves, one for
# each row.

# %%
from llambda.simd.arithmetic import add, mul, shift_right, splat_i32x8, to_f32
from llambda.simd.memory import load_i16x16, load_u8x32, repeat4_i8x32

NONE = np.zeros(16, np.int16)


# %%
@njit(nogil=True)
def q4_0(w, x, dx, x_sums, out):
    at = 0
    for row in range(0, len(out), 8):
        y = splat_f32x8(0)
        for b in range(len(dx)):
            pairs = load_i16x16(NONE, 0)
            for k in range(4):
                v = load_u8x32(w, at + 32 * k)
                low, high = integers.low_bits(v, 4), shift_right(v, 4)
                i = 32 * b + 8 * k
                pairs = add(pairs, integers.maddubs(low, repeat4_i8x32(x, i)))
                pairs = add(pairs, integers.maddubs(high, repeat4_i8x32(x, i + 4)))
            sums = add(integers.madd(pairs, load_i16x16(ones, 0)), splat_i32x8(-8 * x_sums[b]))
            scaled = mul(to_f32(sums), load_f16x8(w, at + 128))
            y = fma(scaled, splat_f32x8(dx[b]), y)
            at += 144
        store(out, row, y)


# %% [markdown]
# Compare it with `block_sums` line by line: it is the same. At the end of a block the whole sums become floats, are
# multiplied by the eight scales of the rows (`load_f16x8` again), then by the scale of x, and added to y.
#
# The whole matrix in that order: as `panel` for every eight rows and every block, each followed by its scales. The file has
# another one: there a byte holds columns i (low) and i + 16 (high) of a block.


# %%
def records(codes, scales, lanes=8, nibbles=True):
    """codes [rows, blocks, 32] and scales [rows, blocks, 2 bytes] -> records, one axis of bytes."""
    n = codes.shape[1]
    groups = codes.view(np.uint8).reshape(-1, lanes, n, 8, 4).transpose(0, 2, 3, 1, 4)
    if nibbles:
        groups = groups[:, :, 0::2] | groups[:, :, 1::2] << 4  # [panels, blocks, 4, lanes, 4]
    halves = scales.reshape(-1, lanes, n, 2).swapaxes(1, 2)  # [panels, blocks, lanes, 2]
    parts = [each.reshape(len(groups), n, -1) for each in (groups, halves)]
    return np.concatenate(parts, axis=-1).ravel()


# %%
raw = stored["Q4_0"].reshape(128, 128, 18)  # [rows, blocks, bytes]
scales4, codes4 = raw[..., :2], np.concatenate([raw[..., 2:] & 15, raw[..., 2:] >> 4], axis=-1)
weights4 = records(codes4, scales4)

# %%
x_sums = xcodes.sum(axis=-1, dtype=np.int32)  # [blocks]
results["Q4_0"] = np.empty(128, np.float32)
q4_0(weights4, xrow, xscales, x_sums, results["Q4_0"])
print(f"Q4_0  off by {error(results['Q4_0']):.0e}")

# %% [markdown]
# Off by eight percent: that is what sixteen levels make of random numbers. Whether the sums in between are exact, "Check"
# will ask. Here is the evidence that our Python became the instructions we meant. (No instruction shifts bytes. What takes
# out the high nibbles is `vpsrlw` and `vpand`, or on newer processors `vgf2p8affineqb`.)

# %% tags=["nbval-ignore-output"]
lines = vector_lines(q4_0)
if target_has("avx2"):
    print(*lines[:16], sep="\n")
    wanted = sum("vpmaddubsw" in line for line in lines)
    assert wanted and wanted % 8 == 0, "eight for a block"
else:
    print("no registers of 32 bytes here:", len(lines), "lines")

# %% [markdown]
# ## Build: eight bits, and a trick with signs
#
# Q8_0 has signed codes, and maddubs wants one side unsigned. Adding 128 to every code, as Q4_0 adds 8, is the first idea.
# Look at the worst pair:

# %%
print(f"255 x 127 x 2 = {255 * 127 * 2:,}, and an int16 ends at {2**15 - 1:,}")
maddubs(np.full(32, 255, np.uint8), np.full(32, 127, np.int8))[:4]

# %% [markdown]
# It saturates, at half of what is right, and does not say so. The second idea is the one that engines use. A sign may stand
# on either side of a product:
#
# $$c \cdot x \;=\; |c| \cdot (\pm x), \quad \text{with the sign of } c$$
#
# The size |c| is unsigned and at most 128. 128 · 127 · 2 = 32,512 fits, though not twice, so each pair is made wider at
# once. (A code of x may not be -128: with its sign turned that would be 128, which is no int8. Hence the 127 in its scale.)
# AVX2 has an instruction for each part of the trick, here `absolute` and `sign`.

# %%
from llambda.simd.memory import load_i8x32


@njit(nogil=True)
def q8_0(w, x, dx, out):
    at = 0
    for row in range(0, len(out), 8):
        y = splat_f32x8(0)
        for b in range(len(dx)):
            sums = splat_i32x8(0)
            for k in range(8):
                c = load_i8x32(w, at + 32 * k)
                four = repeat4_i8x32(x, 32 * b + 4 * k)
                pairs = integers.maddubs(integers.absolute(c), integers.sign(four, c))
                sums = add(sums, integers.madd(pairs, load_i16x16(ones, 0)))
            scaled = mul(to_f32(sums), load_f16x8(w, at + 256))
            y = fma(scaled, splat_f32x8(dx[b]), y)
            at += 272
        store(out, row, y)


# %%
weights8 = records(codes, scales, nibbles=False)  # records of 256 + 16 bytes
results["Q8_0"] = np.empty(128, np.float32)
q8_0(weights8, xrow, xscales, results["Q8_0"])
print(f"Q8_0  off by {error(results['Q8_0']):.0e}")

# %% [markdown]
# Count the instructions for 32 products: absolute, sign, maddubs, madd, add make **five**. Q4_0 has two for the nibbles and
# twice maddubs and add, but for 64 products: **three**. FP32 needs **four** `vfmadd`. So the 32 lanes of the table are
# gone in the housekeeping, nearly. What codes save even here is loads: FP32 has one in each `vfmadd`.
#
# Newer processors have an instruction that does maddubs, madd and the addition in one: `vpdpbusd`, called **VNNI**. It adds
# four products to a 32-bit lane at once. Without 16-bit sums nothing saturates, so there the first idea is right again:
# move the codes up by 128. The package does that where it can.
#
# ## Build: the finished form
#
# In the package each file format has a function like ours, a **form** that adds one block. Look at `q4_0`: `codes4` takes a
# load of nibbles apart; `less(..., 3, ...)` begins the sums at minus 2³ times the sum of x; and the 4 behind `codes4` says
# that four loads may be added before the lanes must be made wider. `dot` is maddubs and what follows it, or VNNI's
# instruction.

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.kernels import packing, products, quantized

show(quantized.q4_0, quantized.q8_0, quantized.add_products, quantized.with_scale)

# %% [markdown]
# Around it is the loop over panels and blocks; `fetch_ahead` asks for weights before they are needed, because memory
# answers late. `put_codes` puts a row's 32 codes into their places once, when the model is loaded, and `code_half` makes
# codes of 16 numbers of x, before each product:

# %% tags=["nbval-ignore-output"]
show(products.sum_panels, packing.put_codes, activations.code_half)

# %% [markdown]
# A register there is as wide as the processor's: 64 bytes with AVX-512, so 16 rows stand side by side (`LANES`), else 8.
# Does it pack as we do? And give the same results? Rows do not know of each other, and every row's sum grows in the same
# order as ours: so we ask for the *same bits*.

# %%
from llambda.kernels.matrix import multiply, pack, tiled
from llambda.simd.widest import LANES
from llambda.tensor import Tensor

packed = {}
for name, raw in stored.items():
    packed[name] = pack(Tensor(raw.tobytes(), BY_NAME[name].dtype, (128, 4096)))
print("the same bytes:", np.array_equal(packed["Q4_0"].data, records(codes4, scales4, LANES)))

# %%
for name, matrix in packed.items():
    tiles, out = tiled(x[None], matrix.coded), np.empty((1, 128), np.float32)
    multiply(matrix, tiles, out, 0, matrix.strips)  # all strips of rows
    print(f"{name:5} the same bits: {np.array_equal(out[0], results[name])}")

# %% [markdown]
# And the engine? The one of lesson 08 decodes every matrix to float32 and then packs it. This one leaves out the decoding.
# That is all; a matrix knows its form, and whether it wants its vectors as codes.

# %% tags=["nbval-ignore-output"]
from llambda.engines import QuantizedEngine
from llambda.engines.vectorized import VectorizedEngine

show(QuantizedEngine, VectorizedEngine.pack, VectorizedEngine.linear)

# %% [markdown]
# <details><summary>In Lisp</summary>
#
# ```lisp
# (defun dot (codes xcodes)
#   (declare (type (simple-array (unsigned-byte 8) (*)) codes)
#            (type (simple-array (signed-byte 8) (*)) xcodes))
#   (let ((sum 0))
#     (declare (type (signed-byte 32) sum))   ; a promise, and what makes it fast
#     (dotimes (i (length codes) sum)
#       (incf sum (* (aref codes i) (aref xcodes i))))))
# ```
#
# In Lisp a whole number grows as far as it must. The declaration trades that for a register. SBCL by default checks the
# promise and signals an error where NumPy wraps around and maddubs saturates, both in silence.
#
# </details>

# %% [markdown]
# ## Check: the whole numbers, exactly
#
# First the part that has no tolerance. If all scales are 1, the results are the whole sums themselves, as floats; and a
# float32 holds every whole number up to 2²⁴ = 16,777,216. With 1,024 columns even 128 · 127 · 1,024 = 16,646,144 stays
# below. So random bytes, and the worst bytes there are, must give what int64 gives. Tolerance: **zero**.


# %%
one = np.ones((8, 32, 1), "<f2").view(np.uint8)  # scales of 1: [rows, blocks, 2 bytes]
unit = np.ones(32, np.float32)  # [blocks]


def four(codes, x):  # uint8 [8 rows, 32 blocks, 32], int8 [32 blocks, 32]
    out = np.empty(8, np.float32)
    q4_0(records(codes, one), x.ravel(), unit, x.sum(-1, dtype=np.int32), out)
    return out


def eight(codes, x):  # int8 [8 rows, 32 blocks, 32], int8 [32 blocks, 32]
    out = np.empty(8, np.float32)
    q8_0(records(codes, one, nibbles=False), x.ravel(), unit, out)
    return out


def by_int64(codes, x):
    return codes.reshape(8, -1).astype(np.int64) @ x.ravel().astype(np.int64)


# %%
any4 = rng.integers(0, 16, (8, 32, 32), dtype=np.uint8)
any8 = rng.integers(-128, 128, (8, 32, 32)).astype(np.int8)
lowest, worst = np.full_like(any8, -128), np.full((32, 32), 127, np.int8)
for c in (xcodes[:32], worst, -worst):
    for each in (any4, any4 | 15):
        assert np.array_equal(four(each, c), by_int64(each.astype(int) - 8, c))
    for each in (any8, lowest):
        assert np.array_equal(eight(each, c), by_int64(each, c))
print("all whole sums are exact")

# %% [markdown]
# Would it notice? The planted mistake is a frequent one, the order of the nibbles: high ones first.

# %%
exchanged = four(np.roll(any4, 16, axis=-1), xcodes[:32])
right = by_int64(any4.astype(int) - 8, xcodes[:32])
print("the planted mistake is noticed:", not np.array_equal(exchanged, right))

# %% [markdown]
# ## Check: the rest, within a derived bound
#
# Now the judges from outside: PyTorch decodes the 16-bit numbers, and `gguf`, a package of the llama.cpp project, the
# blocks. In both cases the product is then made by NumPy in float64.
#
# *Sixteen bits.* Decoding is exact. A row's sum makes 4,096 multiply-adds, and each rounds once, by at most u = 2⁻²⁴ of
# what the sum is then. So the sum is off by at most
#
# $$\gamma \sum_i |w_i x_i|, \qquad \gamma = \frac{n u}{1 - n u}, \quad n = 4096$$

# %%
import torch

u = 2.0**-24
gamma = 4096 * u / (1 - 4096 * u)


def share(out, decoded):
    """The largest error of a row, as a share of what is allowed."""
    decoded = decoded.double().numpy()
    return float((np.abs(out - decoded @ x) / (gamma * (np.abs(decoded) @ np.abs(x)))).max())


bits16 = {name: torch.from_numpy(numbers(name).view(np.int16)) for name in ("F16", "BF16")}
decoded = {"F16": bits16["F16"].view(torch.float16), "BF16": bits16["BF16"].view(torch.bfloat16)}
for name, weights in decoded.items():
    print(f"{name} is within the bound: {share(results[name], weights) < 1}")
mistaken = bits16["F16"].view(torch.bfloat16)
print("F16 taken for BF16 is noticed:", share(results["F16"], mistaken) > 1)

# %% [markdown]
# *Codes.* The weights are what the block says, with no error at all, and so are the whole sums. What is lost is lost where
# x was rounded to codes. Call the error of a number e; it is at most half a scale. The row's sum is off by the sum of the w
# · e, so by at most
#
# $$\sum_i |w_i| \cdot \tfrac{1}{2} d_x$$
#
# That is certain, and it is far too much: it would take 4,096 errors that all pull the same way. Roundings go up as often
# as down. An error that is spread evenly over ±½ d has the variance d²/12, variances add up, and so the sum has a standard
# deviation of
#
# $$\sigma = \sqrt{\textstyle\sum_i w_i^2 \, d_x^2 / 12}$$
#
# **Six σ** are allowed: two sums in a billion would be further off. (The roundings of float32 are hundreds of times smaller
# than that.)

# %%
import gguf as reference

dx = np.repeat(xscales, 32).astype(np.float64)  # [cols]


def furthest(name, out):
    """The error of each row: in sigmas, and as a share of what is certain."""
    kind = reference.GGMLQuantizationType[name]
    decoded = reference.quants.dequantize(stored[name], kind).astype(np.float64)
    off = np.abs(out - decoded @ x)
    sigma, certain = np.sqrt(decoded**2 @ dx**2 / 12), np.abs(decoded) @ dx / 2
    return off / sigma, off / certain  # [rows] each


for name in ("Q8_0", "Q4_0"):
    sigmas, part = furthest(name, results[name])
    print(f"{name}: {sigmas.max():.1f} sigma of 6; {part.max():.0%} of what is certain")

# %% [markdown]
# The largest of 128 rows at about three σ: just what chance gives. And now a mistake that is easily made. In a record eight
# scales stand side by side, two bytes each. Read them two bytes further, and every row gets a scale from the **wrong
# half**: its neighbour's. The codes are right, the whole sums are right, and a scale looks much like any other.

# %%
beside = records(codes, np.roll(scales, -1, axis=0), nibbles=False)
out = np.empty(128, np.float32)
q8_0(beside, xrow, xscales, out)
sigmas, part = furthest("Q8_0", out)
print(f"{sigmas.max():.0f} sigma; {(part < 1).sum()} of 128 rows stay below what is certain")
print("the planted mistake is noticed:", bool(sigmas.max() > 6))

# %% [markdown]
# Look at the second number. Weights off by a quarter, and the bound that is certain lets nine rows of ten pass. With only
# those in the test, it would have found nothing. That is why it pays to derive what is *likely*, too.
#
# ## Check: what is lost in answers
#
# A product is right. Is the *model* still good? There are two ways to ask.
#
# **Perplexity** asks a text. After each token, how probable did the model find the one that really came? Take the mean of
# the logarithms of these probabilities, and of minus that the exponential. A perplexity of 50 means that the model was as
# unsure as if it chose among 50 equally likely tokens.
#
# **KL divergence** asks the model before it lost anything. It compares the probabilities of *all* tokens, at each position,
# and gives the loss in *nats*: $\sum_t p_t \log (p_t / q_t)$, where p is right and q is what we have. 0 means the same, and
# it is never below. **Top-1** is a blunt cousin: how often is the same token the likeliest?

# %%
import llambda
from llambda.check import kl_divergence, log_softmax, top1_agreement
from llambda.oracle import Oracle
from llambda.paths import data_dir


def perplexity(logits, ids):
    log_p = log_softmax(logits[:-1])  # [n - 1, vocab_size]
    return float(np.exp(-log_p[np.arange(len(ids) - 1), ids[1:]].mean()))


tiny = llambda.load("tiny", engine="vectorized")
text = (
    "A function call always assigns values to all parameters. If the file is not found, an error "
    "is raised. The name of a class is bound in the current scope, and a list can be sorted in "
    "place."
)
ids = tiny.tokenizer.encode(text)
truth = Oracle(tiny.config, tiny.weights, "float64").logits(ids)  # PyTorch's
print(f"{len(ids)} tokens, perplexity {perplexity(truth, ids):.0f}")

# %% [markdown]
# `llambda.quantize` writes a copy of a model file in another format: matrices in blocks, the short vectors as they are. The
# engine `quantized` runs it, codes against codes. (16-bit weights meet a vector of floats.)

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

from llambda.quantize import quantize


def copy_of(source, kind, use):
    """What use(model) gives, for a copy of a file stored as `kind`, run by "quantized"."""
    with TemporaryDirectory() as folder:
        quantize(source, Path(folder, "copy.gguf"), kind)
        with llambda.load(Path(folder, "copy.gguf"), engine="quantized") as model:
            return use(model)


# %% tags=["nbval-ignore-output"]
answers = {}
for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0"):
    answers[kind] = copy_of(data_dir() / "tiny.gguf", kind, lambda model: model.logits(ids))
kl = {kind: float(kl_divergence(truth, logits).mean()) for kind, logits in answers.items()}
for kind, logits in answers.items():
    same, unsure = top1_agreement(truth, logits), perplexity(logits, ids)
    print(f"{kind:5} KL {max(kl[kind], 1e-7):.0e}   top-1 {same:.0%}   perplexity {unsure:.0f}")

# %% [markdown]
# (In codes the last digits are your machine's own: a difference in the last bit of a float can tip a code over to the next,
# and from there it goes through the whole model. What holds everywhere is the order.)

# %%
print(" < ".join(sorted(kl, key=kl.get)[:4]), "< four bits:", kl["Q8_0"] < 0.05 * kl["Q4_1"])

# %% [markdown]
# (A KL of 1e-07 or less is as good as none.) Read that column from the top. BF16 has three bits less than F16, and loses
# some sixty times as much. There is a rule behind that: **a bit less doubles the error, and KL grows with its square**, so
# each bit is a factor of four: 4³ = 64. From 8 bits to 4 it should be 4⁴ = 256. It is less, since both also pay for the
# codes of x: in Q8_0 as much as for its weights, and in four bits that hardly counts.
#
# In four bits this tiny model picks another token every fourth time or so. Models with billions of weights bear it far
# better.
#
# Now the perplexity. It cannot tell the first three rows apart. Keep that in mind: it will fool us before the end.
#
# For the 16-bit formats we can ask more. Their kernels compute with floats, so apart from rounding they must agree with
# PyTorch on *the same weights*, layer by layer, within lesson 04's tolerance:

# %%
from llambda.check import compare_engine


def as_pytorch(model):
    report = compare_engine(model.engine, model.config, model.weights, ids[:16])
    return report.divergence is None


for kind in ("F16", "BF16", "Q8_0"):
    print(kind, copy_of(data_dir() / "tiny.gguf", kind, as_pytorch))

# %% [markdown]
# Q8_0 must fail here, and does: nobody can round x to 127 steps and stay within float32's rounding. If it passed, the check
# would be worth nothing.
#
# The real model comes in Q4_1, with its embedding in Q8_0; what it lost on the way there we cannot see. So its own weights
# are the truth now, and the row "as it is" shows what the codes of x cost. The copies are made of these weights, once more
# rounded. What do you expect of Q4_0, which takes half a bit less than Q4_1?

# %%
import time

from llambda.fetch import KNOWN


def answer_and_speed(model):
    logits, state = model.logits(real_ids), model.engine.new_state(16)
    took = []
    for token in real_ids[:16]:
        begin = time.perf_counter()
        model.engine.forward(state, [token])
        took.append(time.perf_counter() - begin)
    return logits, 1 / min(took)


# %% tags=["real", "nbval-ignore-output"]
real_kl = {}
if KNOWN["smollm2"].is_here:
    with llambda.load("smollm2", engine="quantized") as real:
        real_ids = real.tokenizer.encode(text)
        real_truth = Oracle(real.config, real.weights).logits(real_ids)
        found = {"as it is": answer_and_speed(real)}
    for kind in ("Q8_0", "Q4_0"):
        found[kind] = copy_of(KNOWN["smollm2"].path, kind, answer_and_speed)
    for kind, (logits, speed) in found.items():
        real_kl[kind] = float(kl_divergence(real_truth, logits).mean())
        same, unsure = top1_agreement(real_truth, logits), perplexity(logits, real_ids)
        lost = f"KL {real_kl[kind]:.4f}  top-1 {same:.0%}  perplexity {unsure:.0f}"
        print(f"{kind:8}  {lost}  {speed:.0f} tokens/s")
    assert real_kl["as it is"] < 0.02 and real_kl["Q8_0"] < 0.02 < real_kl["Q4_0"]
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# The codes of x cost little, and Q8_0 keeps nearly all it finds. Q4_0 does not: its sixteen levels are not the sixteen of
# Q4_1, and the embedding has no more than sixteen now, either. So make few bits of the *original* weights, and not of few
# bits. And where does the speed come from?
#
# ## Profile: out of memory
#
# Back to the table. Now with the finished forms, on one thread, and 4,096 rows of 4,096 columns. A large cache might hold
# the smaller ones of these matrices. So we multiply one copy after the other, as many as make 256 MB, and none is still in
# the cache when its turn comes again. (Our 128 rows are repeated; what the numbers are makes no difference to the clock.)

# %%
from dataclasses import replace


def from_memory(small):
    """Seconds for one of so many copies of a 4,096 x 4,096 matrix that no cache holds them."""
    data = np.tile(small.data, 4096 // small.rows)
    large = replace(small, rows=4096, group=4096, data=data)
    copies = [replace(large, data=data.copy()) for _ in range(2**28 // data.nbytes)]
    tiles, out = tiled(x[None], small.coded), np.empty((1, 4096), np.float32)
    every = [partial(multiply, each, tiles, out, 0, each.strips) for each in copies]
    return seconds(lambda: [work() for work in every]) / len(every)


# %% tags=["nbval-ignore-output"]
passing = {name: from_memory(matrix) for name, matrix in packed.items()}
streamed = {name: 4096 * 4096 / each / 1e9 for name, each in passing.items()}
outcome(
    "09.int8",
    "products a second in INT8 over FP32, weights in memory",
    streamed["Q8_0"] / streamed["F32"],
)

# %% [markdown]
# Beside it the kernels of this notebook, with the weights in the cache; those for codes are still missing there:

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.quantization import speeds

near8 = records(codes[:64, :3], scales[:64, :3], nibbles=False)
near4 = records(codes4[:64, :3], scales4[:64, :3])
vector = xrow[:96].copy(), xscales[:3].copy()  # codes, scales
cached["Q8_0"] = rate(q8_0, near8, *vector, few)
cached["Q4_0"] = rate(q4_0, near4, *vector, x_sums[:3].copy(), few)
speeds({"weights in the cache": cached, "weights in memory": streamed})

# %% [markdown]
# On the left the instructions decide, and the loads: 16 bits lose by their conversions, and the table's factors of 2, 2 and 4
# are not to be seen. On the right they are, nearly: and not because of the lanes. They are the factors of the **bytes**.
# FP16 and BF16 have as many arithmetic lanes as FP32, and are about twice as fast, because half the bytes pass by.
#
# Here is the table again, with what it did not say. *At most* is a model of smollm2's 134.5 million weights, on one thread,
# if it did nothing but this.

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.quantization import lanes_table

table = {}
for name, raw in stored.items():
    nbytes = raw.nbytes / w.size
    gigabytes = 4096 * 4096 * nbytes / passing[name] / 1e9
    at_most = streamed[name] * 1e9 / 134.5e6
    lost = error(results[name]), kl[name]
    table[name] = (nbytes, gigabytes, streamed[name], at_most, *lost)
lanes_table(table)

# %% [markdown]
# Go down the column GB/s. It hardly changes, for it is the machine's. The two columns behind it follow from the bytes a
# weight. (Is GB/s much lower in the last row? Then four-bit codes arrive faster than one thread can take them apart. More
# threads help: lesson 10.) **The table counts storage; the win is bytes.**
#
# And the price, as KL against bits:

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.quantization import divergences

bits = {name: 8 * BY_NAME[name].dtype.block_bytes / BY_NAME[name].dtype.block for name in kl}
only = {kind: each for kind, each in real_kl.items() if kind in bits}
divergences({"tiny": kl, "smollm2": only}, bits)

# %% [markdown]
# F16 and BF16 stand one above the other: as many bytes, but BF16 gives three bits of its digits to a range that these weights
# do not need. The dotted line is the rule of four from above.
#
# Now the engine. The ladder so far, on the real model if it is here:

# %% tags=["nbval-ignore-output"]
from llambda.course.progress import ladder_so_far

_ = ladder_so_far("quantized")

# %% [markdown]
# And on the roof. `cached`, `scalar` and `vectorized` stand above one another: the same operations for the same bytes, and
# only the time differs. (`naive` computes everything anew for every token, so it has many operations for a byte.) This rung
# moves to the **right**: as many operations, for a sixth of the bytes. The roof is higher there, and not reached yet. That
# is what lessons 10 and 11 are for. (Without smollm2 it stays where it is: the tiny model's file holds float32, and an
# engine that leaves weights as they are has nothing to leave.)

# %% tags=["nbval-ignore-output"]
from llambda.course.roofs import roof_so_far

places = roof_so_far("quantized")
assert places["quantized"].intensity >= places["vectorized"].intensity

# %% [markdown]
# ## Break it: saturation
#
# Here is lesson 04's table again. What is bold is new.
#
# | symptom | look first at |
# |---|---|
# | text is garbage, or one token for ever | tokenizer, sampling, how weights are parsed |
# | text is well formed, but wrong | weights, precision, shapes; **a scale from a wrong place looks like precision** |
# | **right on small numbers, wrong on large ones** | **sums that are too narrow: they saturate or wrap around** |
# | crash or fault | alignment, foreign pointers, bounds, a missing CPU feature |
# | slow | no SIMD, task size, contention, too many threads |
# | now right, now wrong | a race, a seed, order of addition |
#
# Somebody finds the trick with signs too clever, and moves eight-bit codes up by 128 instead. She tests it, with codes of
# up to ±40:


# %%
def moved_up(codes, x):  # int8 [..., 32] each
    unsigned = (codes.astype(np.int16) + 128).astype(np.uint8)
    sums = madd(maddubs(unsigned, x), ones).sum(-1)
    return sums - 128 * x.sum(-1, dtype=np.int64)


def rows_wrong(codes, x):
    judge = (codes.astype(np.int64) * x).sum(-1)
    return int((moved_up(codes, x) != judge).sum())


tame = rng.integers(-40, 41, (2, 1000, 32)).astype(np.int8)
print(rows_wrong(*tame), "of 1,000 blocks are wrong")

# %% [markdown]
# All right, and she goes on. Then come blocks as they really are, scaled so that the largest number has the code 127:

# %%
wild = activations.quantize(rng.normal(size=(2, 1000, 32)).astype(np.float32))[0]
print(rows_wrong(*wild), "of 1,000 blocks are wrong")

# %% [markdown]
# **Symptom:** right on small numbers, wrong on large ones, where the sum of a pair should be further from zero. No
# error, no warning: the instruction is *made* to saturate. **How to find it:** do not test with numbers that look harmless.
# Put the extremes in, 255 and 127 side by side, and let int64 judge the whole sums. The first such block tells.
#
# ## Break it: a scale from the wrong half
#
# The second fault is the neighbour's scale again, now in one single matrix of a model: the `k` of the first layer, which is
# one of 22. We take the tiny model in Q8_0 as it ships with the course.


# %%
def wrong_half(matrix):
    """A Q8_0 matrix in which every row has the scales of the next."""
    blocks = matrix.blocks().copy()  # [rows, blocks, 34 bytes]
    blocks[..., :2] = np.roll(blocks[..., :2], -1, axis=0)
    return Tensor(blocks.tobytes(), matrix.dtype, matrix.shape)


good = llambda.load(data_dir() / "tiny-q8_0.gguf", engine="quantized")
first, *rest = good.weights.layers
layers = (replace(first, k=wrong_half(first.k)), *rest)
bad = QuantizedEngine(good.config, replace(good.weights, layers=layers))


# %%
def writes(engine, prompt, count):
    state, text = engine.new_state(64), good.tokenizer.encode(prompt)
    logits = engine.forward(state, text)
    while len(text) < count:
        text.append(int(logits.argmax()))
        logits = engine.forward(state, text[-1:])
    return " ".join(good.tokenizer.decode(text).split())


engines = {"right": good.engine, "broken": bad}
written = {name: writes(engine, "The for statement", 30) for name, engine in engines.items()}
print(written["broken"])
print("the same as the right one writes:", written["broken"] == written["right"])

# %%
lost, unsure = {}, {"PyTorch": perplexity(truth, ids)}
for name, engine in engines.items():
    logits = engine.forward(engine.new_state(len(ids)), ids, all_logits=True)
    lost[name] = kl_divergence(truth, logits).mean()
    unsure[name] = perplexity(logits, ids)
print("best perplexity:", min(unsure, key=unsure.get))
print("KL at least fivefold:", bool(lost["broken"] > 5 * lost["right"]))

# %% tags=["nbval-ignore-output"]
for name in engines:
    print(f"{name:6}  KL {lost[name]:.4f}  perplexity {unsure[name]:.1f}")
print(f"PyTorch in float64: perplexity {unsure['PyTorch']:.1f}")

# %% [markdown]
# Read this twice. The text is the same, word for word. And of the three, the *broken* engine has the best perplexity,
# better even than PyTorch's. Perplexity asks only for the tokens that came, and on a short text a blow in the right
# direction looks like an improvement. Only KL knows: ten times what Q8_0 should cost. It lies between eight bits and four,
# and somebody will say: "that is quantization noise."
#
# **Symptom:** everything works, a little worse than it should. **How to find it:** noise has a law, faults have none. *Give
# it bits:* from 4 to 8 the KL of noise falls a hundredfold or more, and that of a fault stays. Do it one matrix at a time,
# the others in float32, and the one that does not fall has the fault. Then multiply that matrix with columns of the
# identity: what comes out are its weights, one by one, and you can divide them by the right ones. You will do this in
# exercise 09.4.
#
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %%
from llambda.course.exercises import quantization as check

# %% [markdown]
# ### Exercise 09.1 · A block by two instructions
#
# *code · 12 minutes · difficulty 3 of 5*
#
# Write the sum of products of a block, as the kernel for eight bits does it, but in NumPy. `w` holds the codes of 32
# weights, int8, and any value from -128 to 127 may occur. `x` holds those of 32 activations, int8, from -127 to 127. Return
# one whole number.
#
# Use `check.maddubs(a, b)` and `check.madd(a, b)`. They behave as the instructions: they see bits, not dtypes. The first
# argument of `maddubs` is *taken* for unsigned bytes, the second for signed ones, 32 each; 16 sums come back, as int16.
# `madd` takes twice 16 int16 and gives 8 int32.


# %% tags=["exercise"]
def block_dot(w, x):
    """The sum of w[i] * x[i], by maddubs and madd: one whole number."""
    ...


# %% tags=["checker"]
check.block_dot(block_dot)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Which side of a product may carry the sign? And how large can the size of a weight be: does it fit into an int8, into a
# uint8?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def block_dot(w, x):
#     size = np.abs(w.astype(np.int16)).astype(np.uint8)
#     pairs = check.maddubs(size, np.sign(w) * x)
#     return int(check.madd(pairs, np.ones(16, np.int16)).sum())
# ```
#
# `np.abs(w)` alone gives -128 for -128, an int8. Its bits are those of 128, so here it would work by luck, as it does in
# the processor on purpose.
#
# </details>

# %% [markdown]
# ### Exercise 09.2 · Room for pair sums
#
# *predict · 5 minutes · difficulty 2 of 5*
#
# A 16-bit lane collects results of maddubs: sums of two products, each of an unsigned code and an activation's code from
# -127 to 127. How many such sums can be added up for certain before the lane must be made wider, if codes have 4, 5, 6 or 8
# bits?

# %% tags=["exercise"]
sums = {"4 bits": ..., "5 bits": ..., "6 bits": ..., "8 bits": ...}

# %% tags=["checker"]
check.room(sums)

# %% [markdown]
# <details><summary>Hint</summary>
#
# What is the largest code of so many bits, and the largest sum of two products with it? How often does that fit into
# 32,767?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# sums = {f"{bits} bits": 32767 // (2 * 127 * (2**bits - 1)) for bits in (4, 5, 6, 8)}
# ```
#
# The zero for 8 bits is why there is a trick with signs: of 7 bits and a sign, one fits.
#
# </details>

# %% [markdown]
# ### Exercise 09.3 · Activations to codes
#
# *code · 10 minutes · difficulty 3 of 5*
#
# Write `to_codes`. `x` is float32 [n], n a multiple of 32. Return two arrays: the codes, int8 [n / 32, 32], and the scales
# d, float32 [n / 32]. A block's d is its largest magnitude over 127, and a code is the nearest whole number to x / d, ties
# to even. A block of zeros gets the codes 0, and a d that is finite.


# %% tags=["exercise"]
def to_codes(x):
    """x float32 [n] -> codes int8 [n / 32, 32] and d float32 [n / 32]."""
    ...


# %% tags=["checker"]
check.to_codes(to_codes)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `x.reshape(-1, 32)`, and a maximum along the last axis. Where d is 0, any other number to divide by is better than 0.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def to_codes(x):
#     blocks = x.reshape(-1, 32)
#     d = np.abs(blocks).max(-1) / np.float32(127)
#     divisor = np.where(d == 0, np.float32(1), d)
#     return np.rint(blocks / divisor[:, None]).astype(np.int8), d
# ```
#
# The kernel multiplies by 127 over the largest magnitude instead of dividing 32 times: one division for a block.
#
# </details>

# %% [markdown]
# ### Exercise 09.4 · One matrix is broken
#
# *diagnose · 8 minutes · difficulty 4 of 5*
#
# Somebody's engine for the tiny model loses more than hoped. So she stores one kind of matrix at a time in few bits, the
# others as float32, once in Q8_0 and once in Q4_1, and notes the KL:

# %%
check.show_kl()

# %% [markdown]
# She suspects one of them, multiplies the first layer's matrix, in Q8_0, with two columns of the identity, and so gets its
# weights in these columns. A row's scale, as it stands in the file, belongs to both columns: they are in one block.

# %%
check.show_columns()

# %% [markdown]
# Which matrix is broken (its name, or `"none"`)? What is the cause: `"noise"`, `"saturation"`, `"order"` (of the nibbles or
# bytes) or `"scale"`? And if the scales are read from a wrong place: in her packed records the scales of neighbouring rows
# stand side by side, as in ours. How many bytes too far does she read?

# %% tags=["exercise"]
diagnosis = {"matrix": ..., "cause": ..., "bytes too far": ...}

# %% tags=["checker"]
check.broken(diagnosis)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Divide the second column of KL by the first. Then divide what is read by what is right, row by row, and compare with the
# scales.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# diagnosis = {"matrix": "attn_q", "cause": "scale", "bytes too far": 2}
# ```
#
# In row 0 both weights are too large by 1.061 = 0.00661 / 0.00623, the scale of row 1 over its own. `token_embd` loses more
# in four bits than all the others, and nothing is wrong with it: it is the largest matrix, and its noise falls as noise
# does.
#
# </details>

# %% [markdown]
# ## Recap
#
# A table of lanes counts what fits into a register; what an instruction computes with is another number, and for 16-bit
# weights on AVX2 it is FP32's. Fewer bits are faster because fewer bytes come out of memory. With codes on both sides a
# block's sum is a whole number and exact, as long as no 16-bit sum saturates, and all that is lost is lost in rounding, by
# a law that a fault does not obey.
#
# The next lesson needs these kernels: they take a range of strips, so that several can work at one matrix. **10 · What can
# run at once, and what cannot?**
#
# **Further reading.**
#
# - Tim Dettmers, Mike Lewis, Younes Belkada and Luke Zettlemoyer, *LLM.int8(): 8-bit Matrix Multiplication for Transformers
#   at Scale*, 2022: what single large activations do to a scale.
# - Elias Frantar, Saleh Ashkboos, Torsten Hoefler and Dan Alistarh, *GPTQ: Accurate Post-Training Quantization for
#   Generative Pre-trained Transformers*, 2022: better codes, by looking at what the matrix does.
# - Solomon Kullback and Richard Leibler, *On Information and Sufficiency*, 1951.
# - Intel, *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2: VPMADDUBSW, VPMADDWD, VPSIGNB,
#   VPDPBUSD.
# - Nicholas Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition, 2002: the bound with gamma, chapter 3.
