# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · Tensors
#
# **What is a tensor, physically?**
#
# - **You will build** a tensor from bytes: a few numbers over a buffer that say where each element lies, views that slice,
#   reverse and transpose without moving a byte, and an address that a C function can use safely.
# - **You will be able to** compute where any element lies, say beforehand what a view costs to read, and tell a wrong
#   stride, a lost owner and a wrongly declared call apart by their symptoms.
# - **You need** Python, and the idea of a matrix. Lesson 00 helps, for it measures how fast bytes arrive.
#
# *50 minutes · difficulty 2 of 5*
#
# A **tensor** is a table of numbers with any number of axes: a vector has one axis, a matrix two. Its **shape** says how
# many elements lie along each axis. All that a language model knows is kept in tensors, so we begin with them.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("01")

# %% [markdown]
# ## Build: a guess, before anything is built
#
# The **transpose** of a matrix has rows and columns exchanged: element (i, j) of one is element (j, i) of the other. Models
# need it all the time. The course's real model, `smollm2`, has a table of 49,152 rows and 576 columns. At four bytes a
# number that is 113 million bytes.
#
# How many of these bytes must a program move in memory to have the transpose? Replace the dots by a number, if you like.

# %%
from llambda.course.predictions import outcome, predict

guess = ...
predict("01.transpose", "bytes moved for a transpose", guess)

# %% [markdown]
# ## Build: bytes, and what they mean
#
# Memory is one long row of **bytes**, each a number from 0 to 255, and each with an **address**: its place in the row.
# A **buffer** is a stretch of that row that belongs to us. Ours has 128 bytes.
#
# A **dtype** (data type) says how many bytes make a number, and how they make it. Ours is **F32**: four bytes, a
# floating point number of 32 bits. The module `struct` turns a number into such bytes; `f` is its letter for F32. We
# store 1.0 from byte 0 on and look at the four bytes, each written as two hexadecimal digits.

# %%
import struct

buffer = bytearray(128)  # all zero
struct.pack_into("<f", buffer, 0, 1.0)
buffer[:4].hex(" ")

# %% [markdown]
# The `<` is the **byte order**. A number of several bytes has a *big* end, which counts most, and a *little* end. `<`
# stores the little end first, `>` the big one. Nearly all of today's computers, and the model files of this course,
# have the little end first. We always write the order down.
#
# Now read the same four bytes in five ways. (`i` is the letter for an integer of 32 bits, `e` for F16, a floating point
# number of 16 bits.)

# %%
four = bytes(buffer[:4])
print("F32, little end first:", *struct.unpack("<f", four))
print("F32, big end first:   ", *struct.unpack(">f", four))
print("one integer, 32 bits: ", *struct.unpack("<i", four))
print("two F16 (16 bits):    ", *struct.unpack("<2e", four))
print("four bytes:           ", *four)

# %% [markdown]
# Nothing complained. Bytes do not know what they are; the dtype is knowledge that somebody keeps beside them. Remember
# the second answer, forty zeros behind the point before the first digit: absurd sizes are what a wrong byte order looks
# like.
#
# Let us fill the buffer with the numbers 0 to 31. Number k begins at byte 4k, so from now on *every number tells where
# it lies*.


# %%
def number(at):
    """The F32 that begins at byte `at` of the buffer."""
    return struct.unpack_from("<f", buffer, at)[0]


for k in range(32):
    struct.pack_into("<f", buffer, 4 * k, k)
number(0), number(4), number(124)

# %% [markdown]
# ## Build: a matrix is a formula
#
# Memory has one axis, a matrix has two. So we agree on an order: row after row. With 8 numbers of 4 bytes in a row,
# element (i, j) begins at byte 32i + 4j. Where is the matrix? Only in that formula:

# %%
matrix = [[number(32 * i + 4 * j) for j in range(8)] for i in range(4)]  # [4, 8]
matrix

# %% [markdown]
# Now the transpose, first the naive way: make a new table and copy every number to its new place.

# %%
turned = [[matrix[i][j] for i in range(4)] for j in range(8)]  # [8, 4]
print("bytes moved:", 4 * sum(len(row) for row in turned))

# %% [markdown]
# That is one move for each number. For the large table it would be all 113 million bytes.
#
# But look at the formula again. 32 and 4 are the matrix's **strides**: how many bytes it is from an element to its
# neighbour one row down, and one column right. What happens if we leave the bytes alone, and exchange the strides?

# %%
shared = [[number(4 * i + 32 * j) for j in range(4)] for i in range(8)]  # [8, 4]
print("the same matrix:", shared == turned)
outcome("01.transpose", "bytes moved for a transpose", 0)

# %% [markdown]
# **A transpose moves no byte.** It is the same buffer under another formula, and it costs the same for 32 numbers and for
# 28 million: two sizes and two strides change places.

# %% [markdown]
# ## Build: views
#
# So a tensor, physically, is a buffer and a small **header** of numbers that say how to find the elements in it. A header
# over a buffer is called a **view**. One more number belongs in it: the **offset**, the byte at which element (0, 0)
# begins. (The dtype belongs there too. Ours is F32 throughout this part.)

# %%
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class View:
    buffer: bytearray
    shape: tuple
    strides: tuple  # bytes from an element to its neighbour, along each axis
    offset: int = 0  # bytes from the buffer's start to element (0, 0)


a = View(buffer, (4, 8), (32, 4))

# %% [markdown]
# The formula, for any number of axes: begin at the offset, and go `index` steps along each axis. `rows` reads a whole
# matrix by it.


# %%
def at(view, *index):
    return view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))


def value(view, *index):
    return struct.unpack_from("<f", view.buffer, at(view, *index))[0]


def rows(view):
    n, m = view.shape
    return [[value(view, i, j) for j in range(m)] for i in range(n)]


assert rows(a) == matrix
at(a, 2, 3), value(a, 2, 3)

# %% [markdown]
# And here is the transpose in its final form. There is no loop in it.


# %%
def transpose(view):
    return replace(view, shape=view.shape[::-1], strides=view.strides[::-1])


assert rows(transpose(a)) == turned
transpose(a).shape, transpose(a).strides

# %% [markdown]
# The picture shows the buffer as a ribbon of its 32 numbers, and the two views on it as their readers see them. Colours
# tell the rows of `A`. The triangles show what the *first row* of each view reads: eight neighbours, or four numbers far
# apart. (The two cache lines, in orange, come into play further down.)

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.tensors import ribbon

ribbon({"A": a, "A.T": transpose(a)})

# %% [markdown]
# Slices are views too. `start:stop:step` along an axis means: begin `start` elements further on, and make every step
# `step` times as long. Python's `slice.indices(n)` works out the three numbers for an axis of n elements. To reverse an
# axis, begin at its last element and walk backwards: the stride is negative, and the offset moves.


# %%
def cut(view, axis, piece):
    start, stop, step = piece.indices(view.shape[axis])
    shape, strides = list(view.shape), list(view.strides)
    shape[axis] = len(range(start, stop, step))
    strides[axis] *= step
    offset = view.offset + start * view.strides[axis]
    return View(view.buffer, tuple(shape), tuple(strides), offset)


thirds = cut(cut(a, 0, slice(1, 3)), 1, slice(0, None, 3))
backwards = cut(a, 1, slice(None, None, -1))
for view in (thirds, backwards):
    print("offset", view.offset, "strides", view.strides, "first row", rows(view)[0])

# %% [markdown]
# All these views look at the same bytes. Write through one, and all the others see it:

# %%
struct.pack_into("<f", buffer, at(backwards, 0, 0), 99)
print(value(a, 0, 7), value(transpose(a), 7, 0))
struct.pack_into("<f", buffer, at(backwards, 0, 0), 7)  # as it was

# %% [markdown]
# Where does the trick end? Ask for the 32 numbers of the transpose, row after row, along *one* axis. That axis would need
# one stride. Follow the reader's finger along the ribbon: the first row of the three views, and then that flat list.

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.tensors import hops

views = {"A[1:3, ::3]": thirds, "A[:, ::-1]": backwards, "A.T": transpose(a)}
walks = {
    f"first row of {name}": [at(view, 0, j) for j in range(view.shape[1])]
    for name, view in views.items()
}
walks["A.T, flat"] = [at(transpose(a), i, j) for i in range(8) for j in range(4)]
hops(walks)

# %% [markdown]
# In each of the first three, all steps are alike. In the last, of which you see nine numbers, every three steps of 32 bytes
# are followed by one of -92. No single stride does that, so here a copy is needed. This is what PyTorch means when `view`
# refuses with *view size is not compatible with input tensor's size and stride*, and why its `reshape` sometimes shares the
# bytes and sometimes copies them.
#
# <details><summary>In Lisp</summary>
#
# ```lisp
# (defstruct tensor (data nil :type (simple-array single-float (*))) (offset 0) shape strides)
# (defun element (tensor &rest index)
#   (aref (tensor-data tensor)
#         (+ (tensor-offset tensor) (reduce #'+ (mapcar #'* index (tensor-strides tensor))))))
# (defun transpose (tensor)                            ; a new header over the same data
#   (make-tensor :data (tensor-data tensor) :offset (tensor-offset tensor)
#                :shape (reverse (tensor-shape tensor)) :strides (reverse (tensor-strides tensor))))
# ```
#
# The data is a vector of floats, so offset and strides count elements here, not bytes.
#
# </details>

# %% [markdown]
# ## Build: the finished form
#
# `llambda.tensor` holds what you have just built. Two things are new. It knows all dtypes, also those that store
# several elements together as a *block*; the lines about `unit` are for them, and lesson 02 needs them. And it checks,
# when a view is made, that no index can reach a byte outside the buffer. (What the `owner` is for, you will see below.)

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.tensor import F32, Tensor

show(Tensor.byte_offset, Tensor.__getitem__, Tensor.transpose)

# %% [markdown]
# Both must agree, also on a view of a view of a view. (`t.T` is short for `t.transpose()`.) And `reshape` shares the
# bytes when it can, and copies when it must: the address of the first element tells which.

# %%
t = Tensor(buffer, F32, (4, 8))
ours = cut(cut(transpose(a), 0, slice(6, 1, -2)), 1, slice(1, None))
theirs = t.T[6:1:-2, 1:]
assert (ours.shape, ours.strides, ours.offset) == (theirs.shape, theirs.strides, theirs.offset)
print("the matrix, reshaped, shares its bytes:   ", t.reshape(2, 16).address == t.address)
print("the transpose, reshaped, shares its bytes:", t.T.reshape(32).address == t.address)

# %% [markdown]
# This is also how a whole model lies in memory. The tiny model that ships with the course is one file. Opened, it is *one*
# buffer, and a header for each tensor. (How the file says where they are is lesson 02.)


# %%
from llambda import gguf
from llambda.paths import data_dir

file = gguf.open(data_dir() / "tiny.gguf")
tensors = [file[name] for name in file]
print("headers:", len(tensors), "buffers:", len({id(tensor.buffer) for tensor in tensors}))

# %% [markdown]
# ## Build: memory comes in lines
#
# A processor never fetches one number from memory. It fetches a **cache line**, 64 bytes that begin at an address divisible
# by 64 (128 on Apple's processors). The line stays in a **cache**, a small fast memory near the core, until other lines
# push it out. What you pay for is lines. So we count them, for numbers that begin at given bytes:


# %%
def lines(starts):
    return len({start // 64 for start in starts})


row = [at(a, 0, j) for j in range(8)]
column = [at(a, i, 0) for i in range(4)]
print("a row:   ", len(row), "numbers,", lines(row), "line")
print("a column:", len(column), "numbers,", lines(column), "lines")

# %% [markdown]
# Look at the triangles in the picture again: there it is. Half as many numbers, twice as many lines.
#
# We assumed that the buffer itself begins on a line. If it began 4 bytes later, 64 bytes that could fill one line would
# reach into a second. A place whose address is divisible by 64 is **aligned** to 64 bytes. How do we get such memory,
# if whoever gives us memory does not promise it? Ask for 64 bytes more, and skip to the first aligned place. In Python
# `-x % 64` is what is missing from x to the next multiple of 64: for 0, 1, 63 and 64 it is 0, 63, 1 and 0.
# `Tensor.empty` does just that.

# %%
import numpy as np

room = np.empty(128 + 64, np.uint8)  # bytes of undefined content
skip = -room.ctypes.data % 64  # ctypes.data is the address of the first byte
(room.ctypes.data + skip) % 64

# %% tags=["nbval-ignore-output"]
show(Tensor.empty)

# %% [markdown]
# Alignment is about two things: fewer lines, and instructions that insist on it. In lesson 08 one instruction loads 32
# bytes at once. The processors of Intel and AMD have it in two forms. `vmovups` takes any address. `vmovaps` takes only
# one divisible by 32, and with any other the program is killed on the spot. Neither answers bad alignment with wrong
# numbers.

# %% [markdown]
# ## Build: an address for a foreign function
#
# The fast parts of an engine are machine code that knows nothing of Python: **foreign functions**. They take addresses
# and counts. The C library, which is in every Python process, has one that will do for practice: `memcpy(to, from, n)`
# copies n bytes from one address to another. The module `ctypes` lets us call it.
#
# Machine code does not say what it wants. So *we* declare the types of its arguments, and of its result: two addresses
# (`c_void_p`), a number of bytes (`c_size_t`), and an address comes back. What happens without this, you will see
# below. Now copy a row into new memory:

# %%
import ctypes

libc = ctypes.CDLL(None)  # what this process has loaded (on Windows: ctypes.cdll.msvcrt)
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
libc.memcpy.restype = ctypes.c_void_p

row = t[2]
copied = Tensor.empty(row.shape)
_ = libc.memcpy(copied.address, row.address, row.nbytes)
copied.numpy()

# %% [markdown]
# Then a column. Before you run the cell: column 2 holds 2, 10, 18 and 26. What will arrive?

# %%
column = t[:, 2]
copied = Tensor.empty(column.shape)
_ = libc.memcpy(copied.address, column.address, column.nbytes)
print("wanted ", column.numpy())
print("arrived", copied.numpy())

# %% [markdown]
# `memcpy` knows no strides. Whoever hands over a bare address promises that the elements follow each other without gaps:
# that they are **contiguous**. Ask first, and copy if they are not; or use a function that takes the strides as well.

# %%
column.is_contiguous, column.copy().is_contiguous

# %% [markdown]
# There is a second promise. An address is a plain integer, and it keeps nothing alive. The thing that does is the **owner**:
# the object whose death frees the memory. Every `Tensor` holds on to the owner of its buffer. A *weak reference* lets us watch
# an object without keeping it alive. `from_numpy` makes a tensor over an array's own memory:

# %%
import weakref

array = np.arange(32, dtype=np.float32)  # the owner of 128 bytes
alive = weakref.ref(array)
view = Tensor.from_numpy(array)[::2]
del array
print("the view holds the owner:", alive() is not None)

# %%
address = view.address
del view
print("the address holds it:", alive() is not None)

# %% [markdown]
# `address` is still a number, and what lies there belongs to nobody. So the rule is: **whoever
# uses an address holds the owner until the last use is over.**
#
# <details><summary>In Lisp</summary>
#
# ```lisp
# (sb-alien:define-alien-routine memcpy (* t) (to (* t)) (from (* t)) (n sb-alien:size-t))
# (defun copy-into (to from)
#   (declare (type (simple-array single-float (*)) to from))
#   (sb-sys:with-pinned-objects (to from)
#     (memcpy (sb-sys:vector-sap to) (sb-sys:vector-sap from) (* 4 (length from)))))
# ```
#
# `define-alien-routine` of SBCL declares the types, as `argtypes` does. `vector-sap` is the address. And there is one danger
# more than in Python: Lisp's garbage collector *moves* objects to close gaps. `with-pinned-objects` forbids that until the
# call is over, and keeps both vectors alive. CPython's objects never move, so holding the owner is enough.
#
# </details>

# %% [markdown]
# ## Build: a header that others can read
#
# PyTorch, NumPy and many others hand each other tensors without copying. How? They agreed on a header, called DLPack: a
# **struct** of the language C, which is a few fields one after another in memory. A C compiler puts each number at a
# multiple of its own size, and fills the gap before it, if there is one, with unused bytes, the **padding**: one byte
# and one F32 take 8 bytes, not 5. `ctypes` follows that rule. Here is DLPack's header. Most of it you know:


# %%
class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),  # address of the buffer
        ("device_type", ctypes.c_int32),  # 1 is a CPU
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),  # number of axes
        ("code", ctypes.c_uint8),  # dtype: 2 is floating point
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),  # 1, but for vectors
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements
        ("byte_offset", ctypes.c_uint64),
    )


# %% [markdown]
# A field of the wrong width shifts all that follow, and nothing complains: the bytes are read as something else. So
# check a layout before you trust it. Adding up the widths in DLPack's own C header gives 48 bytes, with `shape` at byte
# 24. A planted mistake shows that the check would notice:


# %%
def layout(kind):
    return ctypes.sizeof(kind), kind.shape.offset


class Shifted(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64 if n == "ndim" else kind) for n, kind in DLTensor._fields_]


print("the layout is DLPack's:", layout(DLTensor) == (48, 24))
print("the planted mistake is noticed:", layout(Shifted) != (48, 24))

# %% [markdown]
# Now ask PyTorch for the header of a transpose. It comes in a *capsule*, an object that owns it.
# `PyCapsule_GetPointer` of Python's own C library gives the address of what is inside, and that begins with the header.
#
# What the cell prints is the answer to this lesson's question, read out of PyTorch's memory. Mind the unit: PyTorch and
# DLPack count strides in *elements*, NumPy and llambda in *bytes*. 1 and 8 there are 4 and 32 here.

# %%
import torch

address_in = ctypes.pythonapi.PyCapsule_GetPointer
address_in.argtypes = [ctypes.py_object, ctypes.c_char_p]
address_in.restype = ctypes.c_void_p

matrix = torch.arange(32, dtype=torch.float32).reshape(4, 8)
capsule = matrix.T.__dlpack__()  # the owner: we hold it as long as we read
header = DLTensor.from_address(address_in(capsule, b"dltensor"))
print(header.bits, "bits, shape", header.shape[:2], "strides", header.strides[:2])
print("the transpose has the matrix's buffer:", header.data == matrix.data_ptr())

# %% [markdown]
# ## Build: sums that depend on the order
#
# A view decides in which order elements are met. For a copy that does not matter. For a sum it does. An F32 has 24
# binary digits, so every whole number up to $2^{24}$ is an F32; from there to $2^{25}$ only every second one is. A sum
# that falls between two of them is rounded:

# %%
big, one = np.float32(2**24), np.float32(1)
print((big + one) + one == big, big + (one + one) == big)

# %% [markdown]
# The same three numbers, two orders, two sums. Now a longer sum, 1 + 1/2 + 1/3 + ... + 1/641, in three orders: from left to
# right; from right to left, which is the same loop over a reversed view; and in eight **lanes**, where lane k adds every
# eighth number from number k on, and the eight sums are added last. Lanes are how a vector instruction adds (lesson 08).


# %%
def in_order(numbers):
    total = np.float32(0)
    for number in numbers:
        total += number
    return total


def in_lanes(numbers, lanes=8):
    return in_order([in_order(numbers[lane::lanes]) for lane in range(lanes)])


x = 1 / np.arange(1, 642, dtype=np.float32)  # [641]
for total in (in_order(x), in_order(x[::-1]), in_lanes(x)):
    print(f"{total:.7f}")

# %% [markdown]
# ## Check: bit for bit where nothing rounds
#
# Views only move our attention, so against NumPy and PyTorch the tolerance is **0**: the same elements, at the same
# address. We try four ways to take three of six, on both axes; forwards, backwards and with steps. (PyTorch's strides
# count elements, hence the 4.)

# %%
from itertools import product

square = np.arange(36, dtype=np.float32).reshape(6, 6)
ways = [slice(0, 3), slice(0, 6, 2), slice(5, 2, -1), slice(5, 0, -2)]


def agrees(transpose):
    pairs = [
        (transpose(Tensor.from_numpy(square)[p, q]), square[p, q].T) for p, q in product(ways, ways)
    ]
    return all(
        np.array_equal(mine.numpy(), theirs) and mine.address == theirs.ctypes.data
        for mine, theirs in pairs
    )


print("16 transposed views agree with NumPy's:", agrees(Tensor.transpose))

# %%
theirs, mine = torch.from_numpy(square).T, Tensor.from_numpy(square).T
print("same strides:", tuple(4 * stride for stride in theirs.stride()) == mine.strides)
print("same address:", theirs.data_ptr() == mine.address)

# %% [markdown]
# A check is worth what it rejects. Here is the classic mistake, a transpose that swaps the shape and forgets the
# strides. And here is a lazy check, which looks at element (0, 0) only. That one lies at the offset *whatever the
# strides are*:


# %%
def forgetful(view):
    return Tensor(view.buffer, view.dtype, view.shape[::-1], view.strides, view.offset)


print("the planted mistake is noticed:", not agrees(forgetful))
lazy = forgetful(Tensor.from_numpy(square))[0, 0].item() == square.T[0, 0]
print("by a look at element (0, 0):", not lazy)

# %% [markdown]
# ## Check: within a bound where something rounds
#
# None of the three sums above is *the* sum. How near must they be, so that we can still tell rounding from a mistake? We
# need a tolerance, and we *derive* it. An F32 addition gives the right result times $1 + \delta$, where
# $|\delta| \le u = 2^{-24}$: that is what rounding to 24 digits means. Adding n numbers takes n - 1 additions, so no number
# goes through more than n - 1 such factors. If we neglect products of two tiny errors, the sum is off by at most
#
# $$(n-1)\,u\,\sum |x_i|$$
#
# in *any* order. If we know that no number goes through more than k additions, k takes the place of n - 1. With eight lanes
# and 641 numbers the longest lane has 81 of them: 80 additions, and 7 more for the eight sums. As the judge we take
# `math.fsum`, which rounds only once, at the end.

# %%
import math

exact = math.fsum(x)
bound, lanes_bound = 640 * 2**-24 * exact, (80 + 7) * 2**-24 * exact  # all x are positive
print(f"left to right: off by {abs(in_order(x) - exact):.1e}, at most {bound:.1e}")
print(f"eight lanes:   off by {abs(in_lanes(x) - exact):.1e}, at most {lanes_bound:.1e}")

# %% [markdown]
# Lanes are not only faster, as lesson 08 will show: their bound is seven times smaller. So an engine that adds in another
# order than PyTorch is not less right. Both must lie within the bound, and a planted mistake must not: the last number left
# out, which is what a loop over full groups of eight does to 641 numbers.


# %%
def near(total):
    return abs(float(total) - exact) <= bound


print("ours in all orders:", all(map(near, (in_order(x), in_order(x[::-1]), in_lanes(x)))))
print("NumPy and PyTorch:", near(x.sum()), near(torch.from_numpy(x).sum()))
print("the planted mistake is noticed:", not near(in_lanes(x[:640])))

# %% [markdown]
# ## Profile: what a stride costs
#
# A view is free to make. Is it free to *read*? We take an array of 128 MiB and let NumPy add every number, every second
# one, every fourth and so on, up to every 128th. The question is what one number costs. As in lesson 00, `seconds` is
# the best of several runs.

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.tensors import stride_curve
from llambda.course.timing import seconds

flat = np.ones(1 << 25, np.float32)
steps = [1 << k for k in range(8)]
stride_curve({4 * step: 1e9 * seconds(flat[::step].sum) / flat[::step].size for step in steps})

# %% [markdown]
# Up to 64 bytes, twice the stride is about twice the price: fewer and fewer numbers share the price of a line. That is
# the dashed line. (At the far left the additions may cost more than the bytes.) Beyond 64 bytes each number has a line of
# its own, and that alone should cost no more.
#
# Where your curve climbs further, you see the **prefetcher**: a part of the processor that fetches the next lines
# before you ask for them. It guesses well when you walk in small even steps. When they grow, it fetches lines that you
# skip, or gives up. (We stop at 512 bytes. With longer steps so few lines are left that some would still be in a cache
# at the next run.)

# %% [markdown]
# ## Profile: the same table, along and across
#
# Now a table as large as that of `smollm2`, 49,152 x 576 numbers. We read it once row by row, and once through its transpose,
# which is column by column. The same bytes, the same loop. How many times slower is the second?

# %%
guess = ...
predict("01.across", "time across over time along", guess)

# %% [markdown]
# In Python such a loop would take seconds, and hide what we look for. Numba, a compiler for Python functions, turns it into
# machine code: once, for integers of 32 bits with *any* strides, so that both views run the same code. (Lesson 08 opens
# that box. Integers, because their sums are exact in any order.)

# %%
from numba import njit


@njit("int64(int32[:, :])")
def add_all(matrix):
    result = 0
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            result += matrix[i, j]
    return result


table = np.arange(49152 * 576, dtype=np.int32).reshape(49152, 576)  # 113 MB
add_all(table) == add_all(table.T)

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.tensors import walks

along = 1e9 * seconds(lambda: add_all(table), 3) / table.size
across = 1e9 * seconds(lambda: add_all(table.T), 3) / table.size
copying = 1e9 * seconds(lambda: np.ascontiguousarray(table.T), 2) / table.size
outcome("01.across", "time across over time along", across / along)
walks({"along the rows": along, "across them": across, "copying the transpose": copying})
print(f"a copy has paid after {math.ceil(copying / max(across - along, 1e-9))} readings")

# %% [markdown]
# A column has a number in each of 49,152 rows, so it touches 49,152 lines: 3 MB, of which it uses a sixteenth. Before
# the second column comes, many of these lines have been pushed out of the caches near the core, and are fetched again.
#
# So a transpose costs nothing to make, and is paid for at *every* reading. The third bar is the way out: copy once, so
# that every later reading is in order. An engine reads its weights once for each token, thousands of times. That is why
# the fast engines of this course rearrange all weights once, while loading (lesson 08). A matrix that is read once
# stays a view.

# %% [markdown]
# ## Break it: a wrong stride
#
# Here is a picture as a tensor, a letter in a frame, 48 x 64 numbers. We look at it as it is, and in two wrong ways:
# through rows that are one number too far apart, and through a `reshape` to 64 x 48 where its transpose was meant.

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.tensors import faces, letter

image = letter()  # float32 [48, 64]
faces(
    {
        "right": Tensor(image, F32, (48, 64), (4 * 64, 4)),
        "row stride too long": Tensor(image, F32, (47, 64), (4 * 65, 4)),
        "reshape, not transpose": Tensor(image, F32, (64, 48)),
    }
)

# %% [markdown]
# **Symptom:** nothing crashes, the numbers are of the right size, and the beginning is *right*; with a wrong row stride the
# whole first row is. Further down comes a slant, or torn stripes. **How to find it:** fill a buffer with 0, 1, 2, ... as we
# did at the start, and compare the four corners. Each number that is wrong tells where it was read instead.

# %%
from llambda.errors import InputError


def corners(tensor):
    return [int(tensor[i, j].item()) for i in (0, -1) for j in (0, -1)]


counted = np.arange(48 * 64, dtype=np.float32)
print("right:", corners(Tensor(counted, F32, (47, 64), (4 * 64, 4))))
print("wrong:", corners(Tensor(counted, F32, (47, 64), (4 * 65, 4))))
try:
    Tensor(counted, F32, (48, 64), (4 * 65, 4))
except InputError as error:
    print(error)

# %% [markdown]
# 2990 - 2944 = 46 numbers too many after 46 steps: one a row. Why 47 rows and not 48? Because the last one would leave
# the buffer, and then `Tensor` refuses. A library without that check reads on, whatever lies there.

# %% [markdown]
# ## Break it: a lost owner
#
# This function means well: it returns the address of a row of sevens. But when it returns, the row dies, and the memory is
# free for the next who asks. Read at once, and you would probably still find sevens: that is what makes this fault so
# mean. We wait until somebody has moved in. (Only then is it harmless to look.)


# %%
def address_of_a_row():
    row = np.full(100, 7, np.float32)
    return row.ctypes.data  # and here the row dies


address = address_of_a_row()
others = [np.full(100, 9, np.float32) for _ in range(100)]
begins = [other.ctypes.data for other in others]
moved_in = any(begin <= address < begin + 400 for begin in begins)
pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
print("at the address of the sevens:", pointer[0] if moved_in else "nobody yet; run it again")

# %% [markdown]
# **Symptom:** right in the small test, wrong in the large program; right today, wrong tomorrow. **How to find it:** look for
# an address taken from something that nobody holds afterwards: a local variable, or a result without a name, as in
# `(weights * scale).ctypes.data`. Give it a name that outlives the call. If the fault goes away, that was it.

# %% [markdown]
# ## Break it: missing argtypes
#
# Without a declaration `ctypes` takes every integer for a C `int` of 32 bits. An address has 64. What arrives? `memcpy`
# returns its first address, and with n = 0 it touches nothing, so it is safe to ask. We send two numbers that could be
# addresses, and print them in hexadecimal, 16 bits a group:

# %%
memcpy = ctypes.CDLL(None).memcpy  # a second handle, on which nothing is declared ...
memcpy.restype = ctypes.c_void_p  # ... but the result

for types in (None, libc.memcpy.argtypes):
    memcpy.argtypes = types
    print("declared" if types else "undeclared")
    for address in (0x7F3A_1204_01C0, 0x7F3A_B404_01C0):
        print(f"    sent {address:_x}, arrived {memcpy(address, address, 0):_x}")

# %% [markdown]
# Undeclared, the upper half is gone. And if the first bit of the lower half is set, the `int` is a negative number, and
# the function finds the upper half filled with ones.
#
# With a real address and a real n the function would write to a place that is not ours. Then the system kills the
# process, and with it this notebook. So we do it in a **child process**, and only look at how it ended. The child fills
# 16 MiB of ones with zeros, by the C function `memset(address, byte, n)`; first undeclared, then declared.

# %%
import signal
import subprocess
import sys

NO_CORE = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"  # leave no file


def in_a_child(code):
    done = subprocess.run([sys.executable, "-c", NO_CORE + code], capture_output=True, text=True)
    died = done.returncode < 0
    return f"killed by {signal.Signals(-done.returncode).name}" if died else done.stdout.strip()


# %%
FILL = """
import ctypes, numpy
ones, libc = numpy.ones(1 << 24, numpy.uint8), ctypes.CDLL(None)
DECLARE
libc.memset(ones.ctypes.data, 0, ones.nbytes)
print("filled with", ones.max())
"""
types = "libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]"
print("undeclared:", in_a_child(FILL.replace("DECLARE", "")))
print("declared:  ", in_a_child(FILL.replace("DECLARE", types)))

# %% [markdown]
# `SIGSEGV` (segmentation violation) is the system's word for *an address that is not yours*. **Symptom:** killed at the
# first call, every time. **How to find it:** print the address in Python, and compare it with the one that the function
# received; a debugger shows it.
#
# What the types cannot tell is whether your *numbers* are as wide as the function expects. NumPy makes F64 unless told
# otherwise. Look at what a reader of F32 makes of them. `Tensor.pointer`, which gives an address with a type, refuses:

# %%
doubles = np.array([1.0, 2.0, 3.0, 0.1])
print(doubles.view(np.float32))
try:
    Tensor.from_numpy(doubles).pointer(ctypes.c_float)
except InputError as error:
    print(error)

# %% [markdown]
# Every second number is 0 if the numbers are round, and noise if they are not. To sum up:
#
# | symptom | look for |
# |---|---|
# | right at the beginning, then a slant or stripes; no crash | a wrong stride |
# | right, then wrong; another day another result | a lost owner |
# | killed every time, the upper half of the address missing or `ffff_ffff` | missing argtypes |
# | wrong in the same way every time, every second number 0 or noise | F64 read as F32 |
# | killed every time at an instruction like `vmovaps`, the address whole but not divisible by 32 | alignment |

# %% [markdown]
# ## Exercises

# %%
from llambda.course.exercises import tensors as check

# %% [markdown]
# ### Exercise 01.1 · Where does it lie?
#
# *code · 10 minutes · difficulty 2 of 5*
#
# A matrix lies in a buffer: its element (0, 0) begins at byte `base`, and it has a `shape` and `strides` in bytes, a
# tuple of two numbers each; a stride may be negative. Somebody takes the view `matrix[keys]`, where `keys` is a tuple
# of two slices. Any of them may go backwards or leave out start, stop or step.
#
# Write `offset`. It returns the byte, counted from the buffer's start, at which element `index` of *the view* begins:
# again two numbers, from 0 on. For our `a`, element (0, 0) of `a[1:3, ::-1]` is in row 1, column 7:
#
# `offset(0, (4, 8), (32, 4), (slice(1, 3), slice(None, None, -1)), (0, 0))` is 60.


# %% tags=["exercise"]
def offset(base, shape, strides, keys, index):
    """Bytes from the buffer's start to element `index` of the view `matrix[keys]`."""
    ...


# %% tags=["checker"]
check.offset(offset)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Each axis adds its own part to `base`, so loop over both axes at once with `zip`. For one axis: at which element of the
# matrix does the view begin, and how many elements of the matrix is one step in the view? `key.indices(n)` knows both.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def offset(base, shape, strides, keys, index):
#     at = base
#     for n, stride, key, i in zip(shape, strides, keys, index, strict=True):
#         start, _, step = key.indices(n)
#         at += (start + i * step) * stride
#     return at
# ```
#
# `start * stride` summed over the axes, plus `base`, is the view's own offset, and `step * stride` are its strides. So this is
# `cut` and `at` in one.
#
# </details>

# %% [markdown]
# ### Exercise 01.2 · A row and a column
#
# *predict · 5 minutes · difficulty 2 of 5*
#
# A matrix of 576 x 576 F32 lies row after row in memory, without gaps, and begins on a cache line of 64 bytes. How many cache
# lines does reading one row touch, and how many reading one column?

# %% tags=["exercise"]
touched = {"row": ..., "column": ...}

# %% tags=["checker"]
check.touched(touched)

# %% [markdown]
# <details><summary>Hint</summary>
#
# How many bytes is it from a number to the next one you read? Does that stay within a line?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# touched = {"row": 576 * 4 // 64, "column": 576}
# ```
#
# In a row, sixteen numbers share a line. In a column the next number is 2,304 bytes away, so each has a line to itself.
#
# </details>

# %% [markdown]
# ### Exercise 01.3 · Four numbers, two sums
#
# *predict · 5 minutes · difficulty 2 of 5*
#
# Add the four F32 numbers 1e8, 1, -1e8, 1. What is the sum from left to right? And what is it in two lanes: the numbers at
# places 0 and 2 in one lane, those at places 1 and 3 in the other, and the sums of both lanes added last? Near 1e8, which is
# between $2^{26}$ and $2^{27}$, neighbouring F32 are 8 apart.

# %% tags=["exercise"]
sums = {"left to right": ..., "lanes": ...}

# %% tags=["checker"]
check.sums(sums)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Do one addition at a time, and round each result to the nearest number that exists.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# sums = {"left to right": 1, "lanes": 2}
# ```
#
# From left to right: 1e8 + 1 is rounded to 1e8, then 1e8 - 1e8 is 0, then 0 + 1 is 1. In lanes: 1e8 - 1e8 is 0, 1 + 1 is 2,
# and together they are 2. Real numbers would give 2 both times.
#
# </details>

# %% [markdown]
# ### Exercise 01.4 · Four foreign calls
#
# *diagnose · 5 minutes · difficulty 3 of 5*
#
# Four people call a function of a library `lib`, each in a build of their own. In C it reads
# `float sum_f32(const float *numbers, size_t n)`: it takes the address of F32 numbers and how many there are, and returns
# their sum. Four times it goes wrong, each time for another reason. Here is what they wrote down, addresses in
# hexadecimal. (`[rdi]` is the memory at the address that the function was given.)
#
# Which is whose cause: `"lost owner"`, `"missing argtypes"`, `"float64"` or `"alignment"`?

# %%
for name, report in check.REPORTS.items():
    print(f"--- {name}\n{report}")

# %% tags=["exercise"]
causes = {"A": ..., "B": ..., "C": ..., "D": ...}

# %% tags=["checker"]
check.calls(causes)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Compare the two addresses first. Then ask whether the symptom is the same every time. Is an address that is no multiple
# of 32 the culprit, if nothing was killed?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# causes = {"A": "lost owner", "B": "missing argtypes", "C": "float64", "D": "alignment"}
# ```
#
# A takes the address of a product that nobody holds; it is freed before the call. B declares the result only, and loses the
# upper half of the address. C never says `dtype=np.float32`. D steps 4 bytes off a line, and `vmovaps` insists on 32. The
# addresses in A and C are no multiples of 32 either. It does no harm there: nothing was killed, so these builds load with
# `vmovups`, or one number at a time.
#
# </details>

# %% [markdown]
# ## Recap
#
# A tensor is a buffer and a header: dtype, shape, strides and offset, and an owner that keeps the bytes alive; slicing,
# reversing and transposing change the header alone. Reading is paid by the cache line, so a view that is free to make may be
# dear to read. A foreign function sees an address and nothing else: that it is contiguous, alive, aligned and of the right
# dtype is for you to promise.
#
# The next lesson, **02 · Weights**, needs the dtype, the offset and the byte order: it opens a model file and puts such headers
# over its bytes.
#
# **Further reading.**
#
# - Stéfan van der Walt, S. Chris Colbert and Gaël Varoquaux, *The NumPy Array: A Structure for Efficient Numerical Computation*,
#   Computing in Science & Engineering 13(2), 2011.
# - Edward Z. Yang, *PyTorch internals*, 2019, on strides and views.
# - *DLPack: Open In Memory Tensor Structure*, the specification and its C header.
# - David Goldberg, *What Every Computer Scientist Should Know About Floating-Point Arithmetic*, ACM Computing Surveys 23(1), 1991.
# - Nicholas J. Higham, *Accuracy and Stability of Numerical Algorithms*, second edition, 2002, chapter 4 on summation.
