# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · Weights
#
# **How do bytes become weights?**
#
# - **You will build** readers for the two common kinds of model file, GGUF and safetensors, and decoders for weights of
#   32, 16, 8 and 4 bits.
# - **You will be able to** say what every byte of a model file is for, and to recognize by a few numbers which mistake
#   a reader has made.
# - **You need** Python, and from lesson 01 the idea of a dtype, a shape and strides laid over a buffer of bytes.
#
# *75 minutes · difficulty 2 of 5*
#
# The lit part of the picture is where the engine's numbers come from. Everything else computes with what this part
# delivers, and will believe it.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("02")

# %% [markdown]
# ## Build: a guess, before anything is opened
#
# The file of `smollm2`, the real model of this course, is called `SmolLM2-135M-Instruct.Q4_1.gguf`. The 4 says that a
# weight is stored as a code of **four bits**, half a byte. The model has 134,515,008 weights, so they should take 67.3
# MB (1 MB is a million bytes). But the file has 98.4 MB.
#
# Where do the other 31 MB go? At the end of the lesson we account for every byte. For now, guess: how many bits of the
# file does one weight of type Q4_1 take, all in all? Replace the dots and run the cell.

# %%
from llambda.course.predictions import outcome, predict

guess = ...
predict("02.bits", "bits of the file for one Q4_1 weight", guess)

# %% [markdown]
# ## Build: a file is bytes
#
# We begin with the small model that ships with the course. The plain way to get at a file's bytes is to read it: the
# system copies all of them into our memory. Instead we **map** it. The system then pretends that the file already lies
# in memory, and fetches a piece of it (a *page*, usually 4,096 bytes) when we first look at that piece. We keep no copy
# of our own, and programs that map the same file share its pages.

# %%
import mmap

from llambda.paths import data_dir


def map_file(path):
    with open(path, "rb") as handle:
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)


data = map_file(data_dir() / "tiny.gguf")
len(data)

# %% [markdown]
# `data` behaves like a `bytes` of 2.6 million. Here are the first 80: position, sixteen bytes in hexadecimal, and the
# same sixteen as letters where they are letters.


# %%
def dump(data, start, stop):
    for at in range(start, stop, 16):
        row = data[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        print(f"{at:4d}  {row.hex(' ')}  {letters}")


dump(data, 0, 80)

# %% [markdown]
# You can read it already. The first four bytes are the letters `GGUF`, the format's **magic**: they say what kind of
# file this is. Behind them come numbers, and from byte 32 on a name. The specification says which numbers:
#
# | bytes | what | written as |
# |---|---|---|
# | 0 to 3 | the magic | four letters |
# | 4 to 7 | version of the format | u32, an unsigned whole number of 32 bits |
# | 8 to 15 | how many tensors follow | u64, the same with 64 bits |
# | 16 to 23 | how many settings follow, called **metadata** | u64 |
#
# The lowest byte of a number comes first (`03 00 00 00` is 3): *little-endian*, as in lesson 01. Python's module
# `struct` turns such bytes into numbers; its letter for a u32 is `I`, for a u64 `Q`, and `<` stands for little-endian.
# The second line leaves out the `<`, which looks harmless: most machines are little-endian anyway.

# %%
import struct

print("with <:   ", struct.unpack_from("<IQQ", data, 4))
print("without <:", struct.unpack_from("IQQ", data, 4))

# %% [markdown]
# Version 3, 29 tensors, 26 settings. Without the `<` there are a hundred billion tensors, for `struct` then also
# *pads*, as a C compiler does in a struct: every number goes to a multiple of its own size, and the four bytes after
# the `I` are skipped. A file is packed without gaps. Note that there was no error, just other numbers. It will be like
# this with most mistakes of this lesson.
#
# <details><summary>Other versions</summary>
#
# Version 2 has the same layout as 3. Version 1 had u32 counts, and today's readers refuse it. Version 3 also allows
# big-endian files; such a file gives itself away, because its version then reads `00 00 00 03`.
#
# </details>

# %% [markdown]
# ## Build: a reader that walks through the file
#
# After the header nothing has a fixed place. A name is as long as it is, and the next thing begins where it ends. So we
# need a position that moves as we read. Two things occur again and again: a number, and a **string**, which is a u64
# with its length and then that many bytes of UTF-8.
#
# An entry of the metadata is a name, a u32 that tells the type of the value, and the value. The first one you saw in
# the dump:


# %%
class Reader:
    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def take(self, nbytes):
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def number(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self):
        return self.take(self.number("Q")).decode()


reader = Reader(data, 24)
reader.string(), reader.number("I"), reader.string()

# %% [markdown]
# Type 8 is a string. There are thirteen types in all: eleven kinds of numbers (`NUMBERS` has `struct`'s letter for
# each), strings, and **arrays**. An array says which type its elements have and how many there are, and then lists
# them. That is all we need to read the 26 settings.

# %%
NUMBERS = dict(zip([0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12], "BbHhIif?Qqd", strict=True))
STRING, ARRAY = 8, 9


def value(reader, kind):
    if kind == STRING:
        return reader.string()
    if kind == ARRAY:
        kind, count = reader.number("I"), reader.number("Q")
        return [value(reader, kind) for _ in range(count)]
    return reader.number(NUMBERS[kind])


# %%
reader, metadata = Reader(data, 24), {}
for _ in range(26):
    name = reader.string()
    metadata[name] = value(reader, reader.number("I"))
end_of_metadata = reader.at

print(metadata["tokenizer.ggml.tokens"][335:343])
{name: metadata[name] for name in metadata if name.startswith("llama.")}

# %% [markdown]
# The first line is a piece of the vocabulary, which is in there, too: lesson 03 is about these strings. Below are the
# sizes of the model: 3 layers (`block_count`), vectors of 128 numbers (`embedding_length`). Lesson 04 uses every one of
# them. The prefix `llama.` is the name of the model's architecture; other models have other prefixes.

# %% [markdown]
# ## Build: the table of contents
#
# After the metadata come 29 entries, one for each tensor: a name, a u32 number of axes, a u64 for the length of each
# axis, a u32 for how its numbers are stored, and a u64 that says where they are.


# %%
def entry(reader):
    name = reader.string()
    axes = [reader.number("Q") for _ in range(reader.number("I"))]
    kind, offset = reader.number("I"), reader.number("Q")
    return name, tuple(reversed(axes)), kind, offset


reader = Reader(data, end_of_metadata)
contents = [entry(reader) for _ in range(29)]
contents[:3]

# %% [markdown]
# Two traps in four lines of code. **The axes are reversed**: GGUF names the axis first along which neighbours in memory
# lie, and NumPy (and lesson 01) names it last. Forget it, and a matrix of 1024 rows becomes one of 128. A square
# matrix, such as the last one above, does not give the mistake away.
#
# **The offset does not count from the start of the file.** It counts from the start of the *data*, and the data begin
# at the next multiple of the **alignment** after the table of contents: 32 bytes, unless the metadata say otherwise.
# Each tensor begins at such a multiple. What that is good for was part of lesson 01.

# %%
alignment = metadata.get("general.alignment", 32)
start = -(-reader.at // alignment) * alignment  # rounded up
print(f"the table ends at byte {reader.at:,}, the data begin at {start:,}")
print("between them:", data[reader.at : start].hex(" "))

# %% [markdown]
# From here to the end of the file there is nothing but weights. The first tensor, `token_embd.weight`, has one row of
# 128 numbers for each of the 1,024 tokens. Storage type 0 is **F32**, four bytes a number, just as NumPy's `float32`.
# So bytes become weights by *calling* them weights:

# %%
import numpy as np

embed = np.frombuffer(data, "<f4", 1024 * 128, start).reshape(1024, 128)  # [vocab, dim]
print(embed[335, :4].round(4))
print("a copy:", embed.flags.owndata, "  writeable:", embed.flags.writeable)

# %% [markdown]
# No byte was copied. That is the first half of this lesson's point: **a model file is a table of contents and one long
# array.** The finished form in the package is the same walk. `Cursor` is our `Reader` with one question more in `skip`.
# What the question is for, you will see when we break things.

# %% tags=["nbval-ignore-output"]
from llambda import gguf
from llambda.course import show

show(gguf.Cursor, gguf.read_info)

# %%
tiny = gguf.open(data_dir() / "tiny.gguf")
ours = {name: (shape, start + offset) for name, shape, _, offset in contents}
assert tiny.metadata == metadata
assert {name: (info.shape, info.offset) for name, info in tiny.infos.items()} == ours
assert np.array_equal(tiny["token_embd.weight"].numpy(), embed)
print("the finished form reads the same", len(tiny), "tensors")

# %% [markdown]
# ## Build: the same weights in another file
#
# Hugging Face keeps weights in **safetensors**. The idea is the same, and the table of contents is JSON: a u64 with the
# length of the JSON text, the text, and then the data.

# %%
import json

other = map_file(data_dir() / "tiny" / "model.safetensors")
(length,) = struct.unpack_from("<Q", other)
header = json.loads(other[8 : 8 + length])
header["model.embed_tokens.weight"]

# %% [markdown]
# The shape is in NumPy's order, and `data_offsets` are begin and end, again counted from the start of the data. The
# settings are not in this file: they stand beside it in `config.json`, and the vocabulary in `tokenizer.json`.


# %%
def tensor(name):
    begin, end = header[name]["data_offsets"]
    flat = np.frombuffer(other, "<f4", (end - begin) // 4, 8 + length + begin)
    return flat.reshape(header[name]["shape"])


np.array_equal(tensor("model.embed_tokens.weight"), embed)

# %% [markdown]
# Both files were made from one trained model, so of course they agree. In the finished form, `check_cover` asks one
# more thing: the tensors must follow each other without a hole, so that nothing can hide between them.

# %% tags=["nbval-ignore-output"]
from llambda import safetensors

show(safetensors.read_header, safetensors.check_cover)

# %%
hf = safetensors.open(data_dir() / "tiny")
names = list(hf)
assert set(names) == header.keys() - {"__metadata__"}
assert all(np.array_equal(hf[name].numpy(), tensor(name)) for name in names)
print("the finished form reads the same", len(names), "tensors")

# %% [markdown]
# Next the matrix called `q`, which you will meet in lesson 04.

# %%
q = tiny["blk.0.attn_q.weight"].numpy()  # [128, 128]
q_hf = tensor("model.layers.0.self_attn.q_proj.weight")  # [128, 128]
np.array_equal(q, q_hf)

# %% [markdown]
# They do not! Before you read on: what could differ? Here is a hint. Sort the rows of both, as strings of bytes:

# %%
sorted(row.tobytes() for row in q) == sorted(row.tobytes() for row in q_hf)

# %% [markdown]
# The same rows, in another order. The matrix consists of 4 **heads** (`head_count` above) of 32 rows each. Each row
# will make one number, and the model then rotates the numbers of a head in *pairs*. Hugging Face pairs row i with the
# row half a head further on; llama.cpp, for which GGUF was made, pairs neighbours in models of this architecture. So
# whoever converts such a model to GGUF moves the rows. For a head of 8 rows:
#
#     Hugging Face   0 1 2 3 4 5 6 7        pairs 0-4, 1-5, 2-6, 3-7
#     GGUF           0 4 1 5 2 6 3 7        the same pairs, as neighbours
#
# To undo it, look at the rows as [heads, pairs, 2] and swap the last two of these axes. In lesson 01 you saw that such
# a swap only exchanges two strides; the `reshape` at the end then copies, once. The matrix `k` has the same treatment,
# but only 2 heads (`head_count_kv`). To take `q`'s number for it is an easy mistake:


# %%
def halves(rows, n_heads):
    pairs = rows.reshape(n_heads, -1, 2, rows.shape[-1])  # [n_heads, head_dim / 2, 2, dim]
    return pairs.swapaxes(1, 2).reshape(rows.shape)  # [n_heads * head_dim, dim]


k, k_hf = tiny["blk.0.attn_k.weight"].numpy(), tensor("model.layers.0.self_attn.k_proj.weight")
print("q, 4 heads:", np.array_equal(halves(q, 4), q_hf))
print("k, 2 heads:", np.array_equal(halves(k, 2), k_hf))
print("k, 4 heads:", np.array_equal(halves(k, 4), k_hf))

# %% [markdown]
# In the package, `weights.py` gives every tensor its place in a struct, whatever the file calls it. Look at `take` and
# `finish`: a tensor that is missing is an error, and *so is one that nobody took*. A forgotten bias would give a model
# that runs and talks nonsense. Below, both files pass through it; then we claim that the model has 2 layers, where the
# file has 3.

# %% tags=["nbval-ignore-output"]
from llambda import weights

show(weights.halves_from_pairs, weights.Shelf)

# %%
from dataclasses import replace

from llambda import modelfile
from llambda.errors import LlambdaError


def weights_of(path):
    file = modelfile.open(path)
    return modelfile.read_weights(file, modelfile.read_config(file)).unique()  # each once


pairs = zip(weights_of(data_dir() / "tiny.gguf"), weights_of(data_dir() / "tiny"), strict=True)
equal = [np.array_equal(a.numpy(), b.numpy()) for a, b in pairs]
print(f"{sum(equal)} of {len(equal)} tensors are equal in both files")

# %%
config = modelfile.read_config(tiny)
try:
    weights.from_gguf(tiny, replace(config, n_layers=2))
except LlambdaError as error:
    print(error.what)

# %% [markdown]
# ## Build: sixteen bits
#
# Few models are published in F32. A trained weight does not need 32 bits, and there are two ways to make do with 16. A
# floating point number has three fields: a **sign**, an **exponent** that says how large it is (a power of two), and a
# **fraction** that says where it lies between that power of two and the next. Here is one third:

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.weights import number_fields

number_fields(1 / 3)

# %% [markdown]
# **BF16** ("brain float") is the upper half of an F32, cut off. The same range, a coarser fraction. **F16** ("half")
# shares the bits differently: a finer fraction and a small range, up to 65,504. Both have 16 bits, and nothing in the
# bits tells which one they are. Reading a BF16 is one line. (Writing one, you should round to the nearest instead of
# cutting off.)


# %%
def brain(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


brain(0x3EAA)

# %% [markdown]
# A half takes a little more. Its value is
#
# $$(-1)^{\text{sign}} \cdot \Bigl(1 + \frac{\text{fraction}}{1024}\Bigr) \cdot 2^{\text{exponent} - 15}$$
#
# with two exceptions. Exponent 0 is for zero and the tiny numbers around it, the *subnormals*: there the 1 in front is
# left out, and the power stays at $2^{-14}$. Exponent 31 is for infinity (fraction 0) and *not a number*, NaN (any
# other).


# %%
def half(bits):
    sign = -1.0 if bits >> 15 else 1.0
    exponent, fraction = bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return sign * (np.nan if fraction else np.inf)
    if exponent == 0:
        return sign * fraction / 1024 * 2.0**-14
    return sign * (1 + fraction / 1024) * 2.0 ** (exponent - 15)


for bits in (0x3C00, 0x3555, 0x0001, 0x7BFF, 0xFC00):
    print(f"{bits:04x}  half {half(bits):<14.8g}  brain {brain(bits):.8g}")

# %% [markdown]
# Look at the first line. The bits of 1.0 as a half are the bits of 0.0078125 as a brain float. So a vector of ones that
# reads 0.0078125 everywhere was taken for the other format.
#
# For arrays, NumPy reads halves with `bits.view("<f2")`. It does not know brain floats, but the shift does it again:
# `(bits.astype(np.uint32) << 16).view(np.float32)`.
#
# <details><summary>In Lisp</summary>
#
# ```lisp
# (defun half (bits)                          ; finite numbers only
#   (let ((sign (if (logbitp 15 bits) -1.0 1.0))
#         (e (ldb (byte 5 10) bits))          ; a field: 5 bits wide, from bit 10 on
#         (f (ldb (byte 10 0) bits)))
#     (* sign (if (zerop e)
#                 (scale-float (float f) -24)
#                 (scale-float (float (+ 1024 f)) (- e 25))))))
# ```
#
# `ldb`, "load byte", takes a field of any width out of a number: shift and mask have one name.
#
# </details>

# %% [markdown]
# ## Build: blocks
#
# With 8 bits or 4, an exponent of its own would leave a weight little room for a fraction. So 32 neighbours of a row
# share one factor. They form a **block**: this factor, the **scale** d, stored as a half, and for each weight a small
# whole number, its **code**.
#
# | type | a weight is | codes |
# |---|---|---|
# | Q8_0 | d · code | -127 to 127, one byte each |
# | Q4_0 | d · (code - 8) | 0 to 15, two in a byte |
# | Q4_1 | d · code + m | 0 to 15, two in a byte; m is the smallest weight of the block, stored as a half, too |
#
# Four bits are called a **nibble**. Here is one block of each type, a box for a byte, with the numbers of the weights
# whose codes it holds:

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.weights import blocks_to_scale

blocks_to_scale()

# %% [markdown]
# Look at the nibbles. You may have expected elements 0 and 1 in the first byte. But it holds elements 0 *and 16*: first
# come all the low nibbles, then all the high ones. The reason is lesson 09's: one instruction cuts 16 bytes into 16 low
# nibbles, and these should be neighbours.
#
# The course has the same tiny model in Q8_0. The first block of its embedding, with a plain loop:

# %%
packed = gguf.open(data_dir() / "tiny-q8_0.gguf")
blocks = packed["token_embd.weight"].blocks()  # uint8 [1024, 4, 34]
block = blocks[0, 0].tobytes()

(d,) = struct.unpack_from("<e", block)  # struct's letter for a half
codes = struct.unpack_from("<32b", block, 2)  # 32 signed bytes
print(f"d = {d:.6f}, codes {codes[:5]} ...")
print("decoded ", *(f"{d * code:8.4f}" for code in codes[:5]))
print("original", *(f"{weight:8.4f}" for weight in embed[0, :5]))

# %% [markdown]
# Close, and not equal: whoever wrote the file rounded each weight to a multiple of d. A loop over 650,000 weights is
# slow in Python, so here is the same for all blocks at once. `view` gives bytes another name, as in lesson 01.


# %%
def decode_q8_0(blocks):
    d = blocks[..., :2].view("<f2").astype(np.float32)  # [..., 1]
    return d * blocks[..., 2:].view(np.int8)  # [..., 32]


decoded = decode_q8_0(blocks)  # [1024, 4, 32]
assert decoded[0, 0].tolist() == [d * code for code in codes]
decoded.shape

# %% [markdown]
# Q4_0 needs the nibbles in their order. `& 15` keeps the low four bits, `>> 4` the high ones:


# %%
def decode_q4_0(blocks):
    d = blocks[..., :2].view("<f2").astype(np.float32)  # [..., 1]
    low, high = blocks[..., 2:] & 15, blocks[..., 2:] >> 4  # [..., 16] each
    codes = np.concatenate([low, high], axis=-1).astype(np.float32)
    return d * (codes - 8)  # [..., 32]


# %% [markdown]
# Q4_1 is for you, in exercise 02.2. And the other direction? To **quantize** a block, choose d (and m) so that the
# outermost weights just get the outermost codes, then round. `encode.py` has this for each type, in the order of
# operations of llama.cpp's own code. The finished forms:

# %% tags=["nbval-ignore-output"]
from llambda import encode, quants

show(quants.decode_q8_0, quants.decode_q4_0, quants.half, quants.nibbles, encode.encode_q8_0)

# %% [markdown]
# What do four bits do to 32 real weights? They shrink from 128 bytes to 18 or 20. A grey line is a value that a code
# can mean. A dot is a weight, and a dash is what is left of it.

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.weights import levels

block_of_weights = tiny["blk.0.ffn_down.weight"].numpy()[3, :32]
stored = {
    "Q4_0": encode.encode(block_of_weights, quants.Q4_0),
    "Q4_1": encode.encode(block_of_weights, quants.Q4_1),
}
assert np.array_equal(decode_q4_0(stored["Q4_0"]), quants.decode_q4_0(stored["Q4_0"]))
levels(block_of_weights, stored)

# %% [markdown]
# Q4_0's levels are multiples of d, and zero is one of them. Some lie idle, as those at the bottom do here. Q4_1 lays
# its sixteen between the smallest and the largest weight, so they are closer together; the price is to store m as well.

# %% [markdown]
# ## Build: a look at K-quants
#
# Files named Q4_K, Q5_K or Q6_K carry the idea one step further: the scales themselves are quantized. A **super-block**
# of Q4_K has 256 weights, in eight sub-blocks of 32. Each of these has a scale and a minimum of 6 bits, and two halves,
# d and dmin, say what those mean. There is no new idea in it, only more places to go wrong: 6-bit numbers that straddle
# bytes, a minimum that is *subtracted*, and again low nibbles before high ones. (Q5_K is alike. Q6_K has smaller
# sub-blocks and no minima.)

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.weights import super_block

super_block()

# %% [markdown]
# `quants.py` decodes these types; you need not. One consequence is worth knowing. A row must consist of whole blocks,
# and most rows of smollm2 have 576 weights, which 256 does not divide. So in a "Q4_K" file of such a model many tensors
# have another type. **Read the type of every tensor; never infer it from the file's name.**

# %% [markdown]
# ## Check: all 65,536 halves
#
# The checks of this lesson are against programs that we did not write. For 16 bits we can afford to try every pattern
# there is, against PyTorch. Tolerance: **zero**. Every half and every brain float is also a float32, so nothing is
# rounded and nothing excuses a difference. (Where PyTorch says NaN, any NaN will do.)
#
# Would this check notice a mistake? We plant a common one: `forgetful` takes subnormals for zero.

# %%
import torch

every = np.arange(65536, dtype=np.uint16)
as_torch = torch.from_numpy(every.view(np.int16))


def same(a, b):
    """Bit for bit, and NaN where NaN."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


by_torch = as_torch.view(torch.float16).float().numpy()
brain_by_torch = as_torch.view(torch.bfloat16).float().numpy()
print("half, tolerance 0: ", same([half(int(b)) for b in every], by_torch))
print("brain, tolerance 0:", same([brain(int(b)) for b in every], brain_by_torch))


# %%
def forgetful(bits):
    return half(bits if bits >> 10 & 31 else bits & 0x8000)


print("the planted mistake is noticed:", not same([forgetful(int(b)) for b in every], by_torch))

# %% [markdown]
# One more question to all patterns. The two formats are easily taken for each other. For how many of the 65,536 would
# nobody notice, because they mean the same number in both? (NaN is no number.) Guess.

# %%
guess = ...
predict("02.agree", "patterns that mean the same number as half and as brain float", guess)

# %% tags=["nbval-ignore-output"]
agree = every[by_torch == brain_by_torch]
assert len(agree) == 4
outcome("02.agree", "patterns that mean the same number as half and as brain float", len(agree))
print({f"{bits:04x}": half(int(bits)) for bits in agree})

# %% [markdown]
# 2, -2 and the two zeros. Any other number gives the mistake away. So beware of a test whose author chose the "simple"
# number 2.

# %% [markdown]
# ## Check: blocks
#
# For blocks, the `gguf` package of the llama.cpp project is the judge. Again the tolerance is **zero**, and that needs
# a reason, since there is arithmetic now. A half has 11 significant bits and a code at most 7. Their product has at
# most 18, and a float32 holds 24: the product is exact. In Q4_1 one addition follows and is rounded once, here and
# there alike, from the same exact numbers. There is no room for a difference.
#
# Random bytes make good blocks, if we keep infinity and NaN out of the scales: clearing the highest exponent bit makes
# every half smaller than 2.
#
# The most frequent mistake of all is the order of the nibbles. Our check must reject it. Then comes a matrix of the
# real model.

# %%
import gguf as reference  # the oracle; llambda's own module is called gguf, too

rng = np.random.default_rng(0)


def random_blocks(nbytes, n_halves):
    blocks = rng.integers(0, 256, (3, 4, nbytes), np.uint8)  # [rows, blocks of a row, bytes]
    blocks[..., 1 : 2 * n_halves : 2] &= 0xBF
    return blocks


def judged(name, decoder):
    form = quants.BY_NAME[name]
    blocks = random_blocks(form.dtype.block_bytes, 2 if name == "Q4_1" else 1)
    kind = reference.GGMLQuantizationType[name]
    wanted = reference.quants.dequantize(blocks.reshape(3, -1), kind)  # [rows, 128]
    return same(decoder(blocks).reshape(3, -1), wanted)


# %%
def interleaved(blocks):
    values = decode_q4_0(blocks)
    return np.stack([values[..., :16], values[..., 16:]], axis=-1).reshape(values.shape)


for name, decoder in (("Q8_0", decode_q8_0), ("Q4_0", decode_q4_0), ("Q4_1", quants.decode_q4_1)):
    print(f"{name}, tolerance 0:", judged(name, decoder))
print("the planted mistake is noticed:", not judged("Q4_0", interleaved))

# %% tags=["nbval-ignore-output", "real"]
from llambda.fetch import KNOWN

if KNOWN["smollm2"].is_here:
    smollm2 = gguf.open(KNOWN["smollm2"].path)
    raw = smollm2["blk.0.ffn_down.weight"].blocks()  # uint8 [576, 48, 20]
    kind = reference.GGMLQuantizationType.Q4_1
    wanted = reference.quants.dequantize(raw.reshape(576, -1), kind)  # [576, 1536]
    assert same(quants.decode_q4_1(raw).reshape(wanted.shape), wanted)
    print(f"all {wanted.size:,} weights of a Q4_1 matrix of smollm2 are equal, bit for bit")
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Check: how wrong may a quantized weight be?
#
# Random bytes test the decoder. They do not tell whether Q8_0 is any *good*. For that we compare two files: every
# weight of `tiny-q8_0.gguf` with its original. How far apart may they be? Let x be a weight and d the exact scale. The
# code q is x/d, rounded: off by at most 1/2. The file stores the scale as a half, $d_{16}$. That is off by at most
# $2^{-11} d$, or by at most $2^{-25}$ if d is so small that the half is subnormal. With $|q| \le 127$:
#
# $$|d_{16} \cdot q - x| \;\le\; \tfrac{1}{2} d + 127 \cdot \max(2^{-11} d,\; 2^{-25})$$
#
# Only $d_{16}$ is in the file, so we use it for d and add 1 % to the bound, to cover that and float32's own rounding.
# The bound is not a wide one: a decoder that is off by one code must break it.


# %%
def worst(decode):
    """The largest error of all Q8_0 weights, as a share of what is allowed."""
    shares = []
    for name in packed:
        if packed.infos[name].kind == "Q8_0":
            blocks = packed[name].blocks()
            exact = tiny[name].numpy().reshape(*blocks.shape[:-1], 32)
            d = quants.half(blocks, 0)  # [..., 1]
            allowed = 1.01 * (d / 2 + 127 * np.maximum(d * 2**-11, 2**-25))
            shares.append(np.max(np.abs(decode(blocks) - exact) / allowed))
    return max(shares)


print(f"the largest error is {worst(decode_q8_0):.0%} of what is allowed")
print("off by one code is noticed:", worst(lambda b: decode_q8_0(b) + quants.half(b, 0)) > 1)
print("a missing scale is noticed:", worst(lambda b: b[..., 2:].view(np.int8)) > 1)

# %% [markdown]
# ## Check: whole files
#
# Last, the walk through the file: names, shapes and every stored byte, against `gguf` and `safetensors`. Here the
# natural mistake is to count offsets from the start of the file.

# %%
from safetensors.numpy import load_file

listed = reference.GGUFReader(data_dir() / "tiny-q8_0.gguf").tensors
theirs = {each.name: (each.shape[::-1].tolist(), each.data.tobytes()) for each in listed}
found = {name: (list(each.shape), each.blocks().tobytes()) for name, each in packed.items()}
print("GGUF:", found == theirs)

loaded = load_file(data_dir() / "tiny" / "model.safetensors")
both = [np.array_equal(hf[name].numpy(), loaded[name]) for name in loaded]
print("safetensors:", set(names) == loaded.keys() and all(both))

shape, at = ours["token_embd.weight"]
early = np.frombuffer(data, "<f4", embed.size, at - start).reshape(shape)
print("the planted mistake is noticed:", not same(early, loaded["model.embed_tokens.weight"]))

# %% [markdown]
# ## Profile: the file to scale
#
# Now the picture of the lesson. The whole file as a ribbon, read line by line like a text.

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.weights import file_map, parts_of

file_map("tiny.gguf", tiny)

# %%
parts = parts_of(tiny)
assert parts[0][1] == 0 and parts[-1][2] == len(data)  # from the first byte to the last
assert sum(end - begin for _, begin, end in parts) == len(data)  # without gaps

# %% [markdown]
# All that we took apart in the first half of the lesson, header, metadata, vocabulary and table of contents, is the
# short line at the top left. The rest is the long array. The pattern repeats once for each layer, three times in all.
#
# Now the real model. A third of it is the embedding, one row for each of 49,152 tokens, and its 30 layers are so alike
# that they make a pattern. (A norm is smaller here than a cell of the drawing, so only a few of them show.)

# %% tags=["nbval-ignore-output", "real"]
if KNOWN["smollm2"].is_here:
    file_map("smollm2", smollm2)
    assert parts_of(smollm2)[-1][2] == KNOWN["smollm2"].nbytes
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: where the other 31 MB went
#
# Back to the question of the beginning. 30 layers with seven matrices each are stored as Q4_1. The embedding is stored
# as Q8_0: it serves twice (lesson 04 says how), and is kept finer. The **norms**, short vectors, stay in F32. A block
# of Q4_1 has 4 bytes besides its codes, and a block of Q8_0 has 34 bytes in all:

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.weights import waterfall

matrices = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)  # 7 in each of 30 layers
embedding, norms = 49152 * 576, 61 * 576
assert matrices + embedding + norms == 134_515_008
pieces = {
    "four bits for every weight": (matrices + embedding + norms) / 2,
    "scales and minima of Q4_1": matrices / 32 * 4,
    "the embedding in Q8_0": embedding / 32 * 34 - embedding / 2,
    "the norms in F32": norms * 4 - norms / 2,
}
size = KNOWN["smollm2"].nbytes
pieces["settings and vocabulary"] = size - sum(pieces.values())
waterfall(pieces)
outcome("02.bits", "bits of the file for one Q4_1 weight", (4 + 16) * 8 / 32)

# %% [markdown]
# The second bar is the second half of this lesson's point. **Q4_1 is five bits a weight.** Four bytes of scale and
# minimum for 32 weights are 32 bits for 32 weights: one bit each. When you hear "4-bit model", ask for the bytes of a
# block.
#
# That account was made from the model's sizes. Does the file agree, to the last byte? Let *your* reader say so, the one
# that you saw grow from a dump of 80 bytes. Gathered into one function, it reads the tiny model's file as before:


# %%
def read_all(data, kind=Reader):
    reader, metadata = kind(data, 4), {}
    _, n_tensors, n_keys = (reader.number(code) for code in "IQQ")
    for _ in range(n_keys):
        name = reader.string()
        metadata[name] = value(reader, reader.number("I"))
    return metadata, [entry(reader) for _ in range(n_tensors)], reader.at


assert read_all(data) == (metadata, contents, reader.at)

# %% [markdown]
# Nothing in it knows which model it reads. The real one, with 49,152 tokens in its metadata and 272 tensors, takes the
# same few lines. The package's reader must agree, setting by setting and tensor by tensor:

# %% tags=["nbval-ignore-output", "real"]
if KNOWN["smollm2"].is_here:
    settings, table, end = read_all(map_file(KNOWN["smollm2"].path))
    first = -(-end // alignment) * alignment
    theirs = {name: (info.shape, info.offset) for name, info in smollm2.infos.items()}
    assert {name: (shape, first + at) for name, shape, _, at in table} == theirs
    assert settings == smollm2.metadata
    print(f"{len(settings)} settings, {len(table)} tensors, data from byte {first:,} on")
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# And the account, from what your reader found. Each storage type has a number in the file, and the blocks that you know
# (F32 has blocks of one weight, so to speak):

# %% tags=["nbval-ignore-output", "real"]
BLOCKS = {0: ("F32", 1, 4), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}  # name, weights, bytes
spent = {"Q4_1": 0, "Q8_0": 0, "F32": 0}
if KNOWN["smollm2"].is_here:
    for _, shape, kind, _ in table:
        name, count, nbytes = BLOCKS[kind]
        spent[name] += int(np.prod(shape)) // count * nbytes
    assert spent == {"Q4_1": matrices * 5 // 8, "Q8_0": embedding // 32 * 34, "F32": norms * 4}
    assert first + sum(spent.values()) == size
    print(spent, "and", f"{first:,} bytes in front of them: {size:,} in all")
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: what it costs to open a file
#
# A map costs nothing until it is looked at. See for yourself: how much more memory does this process occupy after it
# has mapped the file, after it has looked at one byte, and after it has looked at all?

# %% tags=["nbval-ignore-output", "real"]
import psutil


def resident_mb():
    return psutil.Process().memory_info().rss / 1e6


if KNOWN["smollm2"].is_here:
    before = resident_mb()
    whole = np.frombuffer(map_file(KNOWN["smollm2"].path), np.uint8)
    print(f"mapped: {resident_mb() - before:+.1f} MB")
    whole[50_000_000]
    print(f"one byte looked at: {resident_mb() - before:+.1f} MB")
    assert whole.sum(dtype=np.int64) > 0
    print(f"all bytes looked at: {resident_mb() - before:+.1f} MB")
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# On Linux the first two numbers are close to nothing. The last is the file, and even that belongs to the system's file
# cache: it takes the pages back when memory is short, and a second process that maps the file gets the same ones.

# %% [markdown]
# ## Profile: what bytes buy
#
# Fewer bytes, more error. How much? We store all matrices of the tiny model in five ways, read them back, and compare
# the size of the error with the size of the weights. Size means RMS here, the root of the mean square.

# %%
matrices_of_tiny = [tiny[name].numpy() for name in tiny if len(tiny.infos[name].shape) == 2]
exact = np.concatenate([matrix.reshape(-1, 32) for matrix in matrices_of_tiny])  # [20224, 32]


def rms(values):
    return float(np.sqrt(np.mean(values**2, dtype=np.float64)))


points = {}
for name in ("F16", "BF16", "Q8_0", "Q4_1", "Q4_0"):
    raw = encode.encode(exact, quants.BY_NAME[name].dtype)  # [20224, bytes for 32 weights]
    form = quants.BY_NAME[name]
    again = form.decode(raw.reshape(-1, form.dtype.block_bytes)).reshape(exact.shape)
    points[name] = raw.shape[-1], rms(again - exact) / rms(exact)
    print(f"{name:<5} {points[name][0]:3d} bytes for 32 weights, error {points[name][1]:.2%}")

# %% [markdown]
# Two things to see. BF16 takes nearly twice the bytes of Q8_0 and is only three times as exact: one scale for 32
# weights is a good bargain. And four bits are off by 8 to 9 % of a typical weight. Does the model still work? Lesson 09
# measures it.

# %% [markdown]
# ## Break it: cut the file, and let it lie
#
# Files arrive damaged: a download stops, a disk is full, or somebody means harm. To see what a reader does then, we
# write a very small file, byte by byte: one setting, and one tensor of 3 rows and 4 columns. `read_all` takes it as any
# other.


# %%
def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


small = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
small += string("general.architecture") + struct.pack("<I", STRING) + string("llama")
small += string("w") + struct.pack("<IQQIQ", 2, 4, 3, 0, 0)  # axes, type F32, offset 0
small += bytes(-len(small) % 32)
small += np.arange(12, dtype="<f4").tobytes()
len(small), read_all(small)

# %% [markdown]
# Now we cut the file after every byte, and count how the reading ends:

# %%
from collections import Counter


def ending(read, data):
    try:
        read(data)
    except struct.error:
        return "struct.error"
    except Exception as error:
        return type(error).__name__
    return "no complaint"


print(Counter(ending(read_all, small[:n]) for n in range(len(small))))

# %% [markdown]
# 66 times it does not complain at all: the table of contents is whole, but it describes weights that are not there. And
# where it complains, it may do so in the wrong place. Cut the file within a name, and the slice in `take` is silently
# too short; the *next* number is then missing, and the message of `struct` speaks of that. Now a file of full length
# that lies. We claim that the first name has 2^63 bytes:

# %%
lying = small[:24] + struct.pack("<Q", 2**63) + small[32:]
reader = Reader(lying, 24)
name = reader.take(reader.number("Q"))
print(f"{len(name)} bytes of name, and the next byte to read is {reader.at:,}")

# %% [markdown]
# The name is all that was left of the file, and the position is far beyond its end. In a language whose slices are not
# checked, this is how a file gets to read your memory. The cure is one question, asked in the one place where everybody
# passes: *is that much left?*


# %%
class Careful(Reader):
    def take(self, nbytes):
        left = len(self.data) - self.at
        if nbytes > left:
            raise ValueError(f"{nbytes:,} bytes wanted at byte {self.at}, and {left} are left")
        return super().take(nbytes)


print("the lie:", ending(lambda raw: Careful(raw, 24).string(), lying))
print(Counter(ending(lambda raw: read_all(raw, Careful), small[:n]) for n in range(len(small))))

# %% [markdown]
# The 66 are left. They need one question more: do the data reach as far as the table of contents says? The finished
# form asks both, and treats counts, offsets and types with the same distrust. (A shape of 2^32 by 2^32 has 2^64
# elements. In a number of 64 bits that is 0, and would fit anywhere; Python's integers do not wrap around.)
#
# A gallery of bad files, and its answers:

# %%
setting = small[24:69]  # the entry general.architecture
bad = {
    "empty": b"",
    "web page": b"<!DOCTYPE html><title>404 Not Found</title>",
    "cut": small[:-1],
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + small[24:],
    "version 1": b"GGUF" + struct.pack("<I", 1) + small[8:],
    "many tensors": small[:8] + struct.pack("<Q", 2**40) + small[16:],
    "long name": lying,
    "same name": small[:16] + struct.pack("<Q", 2) + setting + small[24:],
    "huge shape": small.replace(struct.pack("<QQ", 4, 3), struct.pack("<QQ", 2**32, 2**32)),
    "odd offset": small[:102] + struct.pack("<Q", 4) + small[110:],
}

# %%
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    for name, raw in bad.items():
        path = Path(folder) / "bad.gguf"
        path.write_bytes(raw)
        try:
            gguf.open(path)
        except LlambdaError as error:
            print(f"{name:<13} {error.what}")

# %% [markdown]
# Each answer says what is wrong, and at once: a count of 2^40 is compared with the bytes that are left before the first
# entry is read. The reader of safetensors has the same distrust, for JSON can announce a million numbers in four bytes,
# too.
#
# <details><summary>Two surprises that are no damage</summary>
#
# A large model may come in several files, `-00001-of-00003.gguf` and so on; only the
# first has all the settings, and `gguf.open` finds the others from there. (safetensors does the same, with a JSON file
# that says which tensor is where.) And a tensor may have a storage type that is newer than your reader. It cannot be
# decoded then, but it can still be listed, and the error can name the tensor and the type.
#
# </details>

# %% [markdown]
# ## Break it: decode it wrongly
#
# A file that is damaged says so, if you ask. Weights that are *decoded wrongly* never complain. Let us plant the
# classical faults, and let the tiny model write with each. The engine is a black box until lesson 04; all we do is give
# it other numbers. A reader of Q8_0 is put together from two parts, one for the scale and one for the codes. The last
# fault is of another kind: the rows of q and k stay in the file's order (`pairs=False`).

# %%
import llambda
from llambda.tensor import Tensor

model = llambda.load(data_dir() / "tiny-q8_0.gguf", engine="cached")


def q8_0_reader(scale, codes):
    def read(tensor):
        if tensor.dtype.name != "Q8_0":
            return quants.decode(tensor)
        blocks = tensor.blocks()  # uint8 [rows, n, 34]
        return (scale(blocks[..., :2]) * codes(blocks[..., 2:])).reshape(tensor.shape)

    return read


def writes(read, stored=model.weights):
    numbers = stored.map(lambda tensor: Tensor.from_numpy(read(tensor)))
    model.engine = type(model.engine)(model.config, numbers)
    return model.generate("The class statement", max_tokens=24, temperature=0).text


# %%
def signed(codes):
    return codes.view(np.int8).astype(np.float32)


def unsigned(codes):
    return codes.astype(np.float32)


def shuffled(codes):  # as if they were nibbles, in the wrong order
    return np.stack([signed(codes)[..., :16], signed(codes)[..., 16:]], -1).reshape(codes.shape)


readers = {
    "right": q8_0_reader(quants.decode_f16, signed),
    "without its scale": q8_0_reader(lambda raw: np.float32(1), signed),
    "scale read as BF16": q8_0_reader(quants.decode_bf16, signed),
    "codes unsigned": q8_0_reader(quants.decode_f16, unsigned),
    "codes in wrong order": q8_0_reader(quants.decode_f16, shuffled),
}

# %% tags=["nbval-ignore-output"]
unmoved = weights.collect(packed, config, replace(weights.GGUF, pairs=False))  # rows of q and k
texts = {name: writes(read) for name, read in readers.items()}
texts["rows of q and k not moved"] = writes(quants.decode, unmoved)
for name, text in texts.items():
    print(f"{name:<27}{text!r}")
known = "\n\nA class definition defines a class object"
assert [name for name, text in texts.items() if text.startswith(known)] == ["right"]

# %% [markdown]
# Read the texts; you will see them again. Most faults give rubbish, or one token for ever. But look at the last: with
# the rows of two small matrices in wrong order the model writes *English*, on the subject, and goes astray. With such a
# text one suspects the sampling, or the tokenizer.
#
# **How to find it.** Do not look at the text, look at the numbers. A matrix of a trained model is, as a rule, a bell
# around zero, with a standard deviation between a hundredth and one. Four numbers of one matrix:


# %%
def glance(read, name="blk.0.ffn_down.weight"):
    w = read(packed[name]).astype(np.float64)
    whole = np.mean(w == np.round(w))
    return f"mean {w.mean():9.2g}   std {w.std():8.2g}   max {w.max():8.2g}   whole {whole:4.0%}"


for name, read in readers.items():
    print(f"{name:<21}{glance(read)}")

# %% [markdown]
# - Only whole numbers, none above 127: the scale was never applied.
# - A standard deviation that is off by many powers of ten: a scale was applied, and it was read as something else.
# - A mean far from zero: a sign or a minimum is lost.
# - The last line equals the first in every number. **A statistic cannot see an order.** Nibbles, rows and axes in the
#   wrong order need a reference: an oracle, value by value, on numbers that are neither symmetric nor all alike.

# %% [markdown]
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %%
from llambda.course.exercises import weights as check

# %% [markdown]
# ### Exercise 02.1 · A key and its value
#
# *code · 15 minutes · difficulty 3 of 5*
#
# Write `read_pair`, a function that reads one entry of GGUF metadata and trusts nothing. `data` is the file's bytes,
# and the entry begins at byte `at`: a u64 length and that many bytes of UTF-8 (the name), a u32 (the type), and the
# value. The types to understand are 4 (u32), 6 (a float of 32 bits), 8 (string: a u64 length and that many bytes) and
# 10 (u64).
#
# Give back three things: the name, the value, and `end`, the position in the file where the next entry begins. If the
# file ends before the entry does, or if the type is another one, raise `ValueError`, and no other error.
# (`struct.error` is not a `ValueError`.) The checker tries every beginning of several entries.


# %% tags=["exercise"]
def read_pair(data, at):
    """(name, value, end) of the entry at byte `at`; ValueError if it is not all there."""
    ...


# %% tags=["checker"]
check.key_value(read_pair)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Write an inner function `take(nbytes)` that compares with what is left, moves the position (`nonlocal at`) and gives
# back the bytes. If every other line gets its bytes from `take`, nothing can be forgotten.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def read_pair(data, at):
#     def take(nbytes):
#         nonlocal at
#         if nbytes > len(data) - at:
#             raise ValueError(f"{nbytes} bytes wanted at byte {at}, {len(data) - at} left")
#         at += nbytes
#         return data[at - nbytes : at]
#
#     def number(code):
#         return struct.unpack("<" + code, take(struct.calcsize("<" + code)))[0]
#
#     name, kind = take(number("Q")).decode(), number("I")
#     if kind == 8:
#         return name, take(number("Q")).decode(), at
#     if kind not in (4, 6, 10):
#         raise ValueError(f"unknown type {kind}")
#     return name, number({4: "I", 6: "f", 10: "Q"}[kind]), at
# ```
#
# Compare `nbytes > len(data) - at` with `at + nbytes > len(data)`. In Python they are the same. In C the sum of two
# large numbers wraps around to a small one, and the second form lets the lie through.
#
# </details>

# %% [markdown]
# ### Exercise 02.2 · A block of Q4_1
#
# *code · 10 minutes · difficulty 2 of 5*
#
# Write the decoder that the lesson left out. `block` is a `bytes` of length 20: the half d, the half m, and 16 bytes of
# nibbles in the order of the picture above. A weight is d · code + m. Give back 32 numbers, as a list or an array,
# element 0 first.


# %% tags=["exercise"]
def decode_q4_1(block):
    """The 32 weights of one block, 20 bytes."""
    ...


# %% tags=["checker"]
check.q4_1(decode_q4_1)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `struct.unpack_from("<ee16B", block)` gives d, m and sixteen bytes. A byte's low nibble is `byte & 15`, its high one
# `byte >> 4`.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def decode_q4_1(block):
#     d, m, *qs = struct.unpack_from("<ee16B", block)
#     codes = [byte & 15 for byte in qs] + [byte >> 4 for byte in qs]
#     return [d * code + m for code in codes]
# ```
#
# If you tested it on a block that you had packed yourself, a wrong order of nibbles went unnoticed: the same mistake in
# both directions cancels. That is why the checks of this course use somebody else's bytes.
#
# </details>

# %% [markdown]
# ### Exercise 02.3 · Five readers
#
# *diagnose · 7 minutes · difficulty 3 of 5*
#
# Five readers each have one fault. Below are the first five weights of a block, right and as the reader gives them.
# Name each fault:
#
# - `"scale"`: the codes are not multiplied with the scale
# - `"bf16"`: the 16 bits of the scale are read as a brain float
# - `"sign"`: signed codes are taken as unsigned
# - `"minimum"`: m is not added
# - `"order"`: the nibbles are taken in the wrong order
#
# And a last question. Reader A had passed all its tests, and they used one single block. Which of the scales 0.5, 1.0,
# 2.0 and 4.0 did that block have? Answer with the number, under `"blind"`.

# %%
check.show_readers()

# %% tags=["exercise"]
faults = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "blind": ...}

# %% tags=["checker"]
check.readers(faults)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Ask of each: is it a factor, a summand, or a value that belongs to another place? For the last question, look at what
# all 65,536 patterns told us.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# faults = {"A": "bf16", "B": "scale", "C": "minimum", "D": "order", "E": "sign", "blind": 2.0}
# ```
#
# A and B look alike from afar: all values are wrong by one factor. In B the factor makes whole numbers. In A it is
# 0.5 / 0.0000305 = 16,384, a power of two, because the exponent field was read at another width.
#
# </details>

# %% [markdown]
# ### Exercise 02.4 · Bits per weight
#
# *predict · 3 minutes · difficulty 1 of 5*
#
# How many bits of the file does one weight take, all in all, in each of these types? The picture of the three blocks
# has all you need.

# %% tags=["exercise"]
bits_of = {"Q8_0": ..., "Q4_0": ..., "Q4_1": ...}

# %% tags=["checker"]
check.bits_per_weight(bits_of)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Count the bytes of a block, times 8, over 32.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# bits_of = {"Q8_0": 34 * 8 / 32, "Q4_0": 18 * 8 / 32, "Q4_1": 20 * 8 / 32}
# ```
#
# Larger blocks would share a scale among more weights and cost less. But the largest weight of a block sets the scale
# of all, and the larger the block, the more weights suffer from one that stands out.
#
# </details>

# %% [markdown]
# ### For another evening: a format of your own
#
# You now know enough to do it better, or at least in ten lines. Write `write(arrays)`, which turns a dict of NumPy
# arrays into bytes, and `read(data)`, which turns the bytes into the dict again. Five rules, each from this lesson:
#
# 1. Type, shape and values come back as they were, for any array: a transposed one, and one of `int8`.
# 2. `read` copies nothing: its arrays are views over `data`.
# 3. Every array begins at a multiple of 64 bytes.
# 4. Every beginning of a file, cut anywhere, raises `ValueError`.
# 5. Names may hold any letters.
#
# Let JSON be your table of contents. The second cell tries the rules.


# %%
def write(arrays):
    """A dict of arrays as bytes."""
    ...


def read(data):
    """The dict of arrays, over the bytes."""
    ...


# %%
def obeys(write, read):
    arrays = {"µ": np.arange(5, dtype=np.int8), "w": np.ones((3, 4), np.float32).cumsum(1).T}
    raw = write(arrays)
    if raw is None:
        return "not written yet"
    whole, again = np.frombuffer(raw, np.uint8), read(raw)
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype and np.array_equal(again[name], array), "rule 1"
        assert np.shares_memory(again[name], whole), "rule 2"
        assert (again[name].ctypes.data - whole.ctypes.data) % 64 == 0, "rule 3"
    for n in range(len(raw)):
        try:
            read(raw[:n])
        except ValueError:
            continue
        raise AssertionError(f"rule 4: {n} of {len(raw)} bytes are accepted")
    return "all five rules are obeyed"


print(obeys(write, read))

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def write(arrays):
#     table, body = {}, b""
#     for name, array in arrays.items():
#         table[name] = array.dtype.str, array.shape, len(body)
#         body += array.tobytes() + bytes(-array.nbytes % 64)
#     head = json.dumps(table).encode()
#     head += b" " * (-(16 + len(head)) % 64)
#     return struct.pack("<QQ", 16 + len(head) + len(body), len(head)) + head + body
#
#
# def read(data):
#     if len(data) < 16 or len(data) != int.from_bytes(data[:8], "little"):
#         raise ValueError("cut short, or not such a file")
#     start = 16 + int.from_bytes(data[8:16], "little")
#     table = json.loads(data[16:start])
#     return {name: np.ndarray(s, t, data, start + at) for name, (t, s, at) in table.items()}
# ```
#
# The file's own length at its start settles rule 4. What it does not settle is a file that lies: add a check of `at`,
# and a limit for the head. Then compare with `show(gguf.make_info)`, and you will recognize every line.
#
# </details>

# %% [markdown]
# ## Recap
#
# A model file is a table of contents and one long array, so opening it means to map it, read the table with distrust,
# and call the bytes by their types. Weights of few bits share a scale in blocks of 32, and the scale has its price:
# Q4_1 takes five bits a weight. A wrong length can be noticed by asking and a wrong scale by looking, but a wrong order
# only by comparing with someone else's values.
#
# The next lesson needs one list from the metadata, the vocabulary, and asks what the model really reads:
# **03 · Tokens**.
#
# **Further reading.**
#
# - *GGUF*, the specification in the documentation of the ggml project (docs/gguf.md).
# - *Safetensors*, the format section of the project's README, Hugging Face.
# - *IEEE Standard for Floating-Point Arithmetic*, IEEE 754-2019, on binary16.
# - David Goldberg, *What Every Computer Scientist Should Know About Floating-Point Arithmetic*, ACM Computing Surveys
#   23(1), 1991.
# - Tim Dettmers, Mike Lewis, Younes Belkada and Luke Zettlemoyer, *LLM.int8(): 8-bit Matrix Multiplication for
#   Transformers at Scale*, 2022, on weights that stand out.
