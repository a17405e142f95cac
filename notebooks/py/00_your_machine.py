# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 00 · Your machine
#
# **What can this computer do?**
#
# - **You will build** a description of the machine under your hands: which instructions it has, how many cores are
#   really yours, how fast it reads memory and how fast it multiplies.
# - **You will be able to** say, before a line of an engine is written, how many tokens a second a language model can
#   make on this machine at the very most, and which of two limits sets that number.
# - **You need** Python, and the idea of a matrix product. Nothing else: every term is explained where it first appears.
#
# *45 minutes · difficulty 1 of 5*
#
# The picture shows the engine that this course builds, with the lesson's part in blue. Today it is the ground that all the
# rest stands on; the other boxes are explained when their turn comes.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("00")

# %% [markdown]
# ## Build: first, let it run
#
# Before any explanation, here is the thing itself. A tiny language model that ships with this course, trained on
# Python's own documentation, continues a sentence. (`temperature=0` leaves nothing to chance; lesson 05.) Run the cell.

# %% tags=["core"]
import llambda

model = llambda.load("tiny")
prompt = "The for statement"
print(prompt, end="")
for piece in model.generate(prompt, max_tokens=34, temperature=0):
    print(piece, end="", flush=True)

# %% [markdown]
# A program read three words and wrote on, piece by piece. (The sentence is almost the documentation's own: so small a model
# learns by heart.) Each piece is a **token**: a short string from a fixed list. To make one token, the program went through
# *all* of the model's numbers, its **weights**: it multiplied each with a number that it had computed from the text so far,
# and added up the products. Then it did the same again for the next token.
#
# After lesson 05 you will have written that program. After lesson 11 it will run close to the limit that your machine sets,
# and you will know where the rest goes. This lesson finds that limit.
#
# **For whom this is.** You want to know what happens between a prompt and its answer, down to the byte and the
# instruction. You run models and want to understand the machine under them; or you teach systems, performance or machine
# learning. **For whom it is not.** If you need a product by Friday, take a ready one: llama.cpp runs more models on more
# hardware than this engine ever will. If your models run on a GPU, learn CUDA or Triton: the ideas of this course carry
# over (memory decides there too), the code does not.

# %% [markdown]
# ## Build: a guess, before anything is measured
#
# The real model of this course is called `smollm2`: 134.5 million weights in a file of 98 MB. How many tokens a second
# could *the best conceivable program* make with it on this computer, on the processor alone? You have nothing to go on
# yet. Guess all the same: replace the dots by a number and run the cell.

# %%
from llambda.course.predictions import outcome, predict

guess = ...
predict("00.ceiling", "the most tokens/s that smollm2 can make here", guess)

# %% [markdown]
# ## Build: which instructions?
#
# An instruction finds its numbers in **registers**, a few dozen places inside the processor, and works on all that one
# register holds at once. A processor's instruction set has grown in layers. Three of them matter most to this course; each
# is a *flag* that the processor reports about itself:
#
# | flag | what it adds |
# |---|---|
# | `avx2` | integers in registers of 256 bits (`avx` had floats): eight 32-bit numbers at once, or thirty-two 8-bit ones |
# | `fma` | `a * b + c` as one instruction, where it took two |
# | `f16c` | conversion between 16-bit and 32-bit floating point numbers |
#
# On Linux the flags stand in the text file `/proc/cpuinfo`. Here is such a file, cut down to what we need, from a desktop
# computer:

# %%
recorded = """\
processor : 0
model name : AMD Ryzen 5 5600X 6-Core Processor
flags : fpu sse2 ssse3 sse4_1 fma avx f16c avx2 bmi2

processor : 1
model name : AMD Ryzen 5 5600X 6-Core Processor
flags : fpu sse2 ssse3 sse4_1 fma avx f16c avx2 bmi2
"""

# %% [markdown]
# The naive way to read it: look for the word in the text.

# %%
{flag: flag in recorded for flag in ("avx2", "fma", "f16c", "avx512f", "avx", "sse4")}

# %% [markdown]
# Look at the last answer. There is no flag `sse4`; the text merely contains the letters, inside `sse4_1`. In the same way
# `avx` is found inside `avx2`. Flags are *words in a list*, so we take the list apart:


# %% tags=["core"]
def flags(cpuinfo_text):
    lines = [line for line in cpuinfo_text.splitlines() if line.startswith("flags")]
    per_processor = [set(line.split(":")[1].split()) for line in lines]
    return set.intersection(*per_processor)


sorted(flags(recorded))

# %% [markdown]
# The intersection is there because not all processors of a machine need be alike, and the system may move a thread from
# one to another: we may only use what all of them have.
#
# The finished form in the package does the same, and knows ARM's spelling too (`fields` finds the values of all lines
# `name : value`):

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.machine import cpu_features

show(cpu_features)

# %%
cpu_features(recorded) == flags(recorded)

# %% [markdown]
# Now your machine. On anything but Linux there is no such file, so we ask the compiler instead: LLVM, which turns our code
# into machine instructions from lesson 08 on, has to know the processor as well. The cell also looks for newer layers
# (`avx512f`, and the two `vnni` for 8-bit numbers), and for `asimd`, which is ARM's.

# %% tags=["nbval-ignore-output", "core"]
from pathlib import Path

from llambda.machine import llvm_features

cpuinfo = Path("/proc/cpuinfo")
features = cpu_features(cpuinfo.read_text()) if cpuinfo.exists() else llvm_features()
sorted(features & {"avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "asimd"})

# %% [markdown]
# ## Build: how many cores are really yours?
#
# An engine splits its work among **threads**, and each thread wants a **core**, a piece of hardware that runs it. How many
# are there? There are four different numbers, and the first one that comes to mind is the wrong one:
#
# - **logical** cores: what the system shows. Many processors let two threads share one core, and count it as two.
# - **physical** cores: pieces of hardware. Two threads on one core share its multipliers and its path to memory.
# - cores in your **affinity**: those that your process may run on. Whoever started it may have restricted it.
# - cores that your **quota** pays for. In a container you may see 64 cores and be allowed 150,000 microseconds of
#   computing in each 100,000 microseconds of time: one and a half cores.

# %% tags=["nbval-ignore-output"]
from llambda.machine import this_machine

machine = this_machine()
print(f"{machine.model}: {machine.logical_cores} logical cores")
print(f"{machine.physical_cores} physical ones in our affinity, quota {machine.quota or 'none'}")
print(f"{machine.usable_cores} usable, {machine.default_threads} threads by default")

# %% [markdown]
# *Usable* are the logical cores that affinity and quota leave you. By default the engine starts a thread for each *physical*
# one among them.
#
# What does a quota of 1.5 cores do to two threads? They spend it in three quarters of each period; then *both stand still*
# until the next one. On average they still do more than one thread would, but in jerks: a token that takes 5 ms takes 30 if
# it falls into the gap. And the rest of your program wants a share of the quota too. This course prefers a steady pace, and
# rounds down, but never to nothing:

# %%
import llambda.machine

eight = {0, 1, 2, 3, 4, 5, 6, 7}
[llambda.machine.usable_cores(f"{quota} 100000", eight) for quota in (400_000, 150_000, 50_000)]

# %% [markdown]
# Writing `usable_cores` yourself is the second exercise below. The caches are the last thing that we only read off. A
# **cache** is a small, fast memory between a core and the large, slow one. Remember the size of your largest (outside Linux
# the list may be empty):

# %% tags=["nbval-ignore-output"]
for cache in machine.caches:
    print(
        f"level {cache.level} {cache.kind:<11} {cache.nbytes / 1024:>9,.0f} KiB x {cache.instances}"
    )

# %% [markdown]
# ## Build: how fast does memory read?
#
# Descriptions end here; now we measure. All the model's weights must travel from memory to the cores for every single
# token, so the first question is how many bytes a second can travel: the **bandwidth**. The naive way: let NumPy add up a
# large array, and divide its bytes by the time. (GB and MB are powers of ten here, KiB and MiB powers of two.)
#
# Two precautions. The array is larger than the caches of most computers, or we would measure those. (Is your largest cache
# above 256 MiB? Then you are on a big server, and what follows is a mixture of cache and memory.) And we take the best of
# several runs: other programs only ever make a run slower.

# %% tags=["nbval-ignore-output"]
import time

import numpy as np

array = np.ones(64 * 2**20, np.float32)  # 256 MiB


def seconds(work, repeats=10):
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


naive = array.nbytes / seconds(array.sum)
print(f"NumPy's sum reads {naive / 1e9:.1f} GB/s")

# %% [markdown]
# Later lessons measure in the same way, so `seconds` stands in the package too. (There it is content with fewer runs, and says
# what kind of thing it takes and gives.)

# %% tags=["nbval-ignore-output"]
from llambda.course import timing

show(timing.seconds)

# %% [markdown]
# Did the sum run at the memory's speed, or at that of NumPy's addition? One number cannot tell. So here is a second method,
# a **black box** for now: a loop in machine code, in `llambda/probe.py`, that loads as fast as it can and does only so much
# with the numbers that the compiler cannot leave the loads out. You will understand it after lesson 08. Until then we hold
# it to one thing: two methods must not contradict each other.

# %% tags=["nbval-ignore-output", "core"]
from llambda.probe import read_bandwidth

one_thread = read_bandwidth(threads=1)
print(f"the black box reads {one_thread / 1e9:.1f} GB/s with one thread")

# %% [markdown]
# The black box does less with each byte, so it should not be slower than the sum. Now more threads: one for each core that
# the engine would use. Do two threads read twice as much? And all of them?

# %%
guess = ...
predict("00.threads", "bandwidth of all threads over that of one", guess)

# %% tags=["nbval-ignore-output", "core"]
from llambda.probe import bandwidth_curve

bandwidth = bandwidth_curve(machine.default_threads)
for threads, rate in bandwidth.items():
    print(f"{rate / 1e9:5.1f} GB/s with {threads} thread(s)")

# %% tags=["nbval-ignore-output"]
outcome(
    "00.threads",
    "bandwidth of all threads over that of one",
    bandwidth[machine.default_threads] / bandwidth[1],
)

# %% [markdown]
# On a desktop computer a few threads saturate the memory, on a large server ten or more; whatever you add then only waits in
# line. (A second thread that *costs* speed is a sign that other programs are at work: measure again when they rest.) Keep
# the picture of a queue in front of one door: it comes back in lessons 10 and 12.

# %% [markdown]
# ## Build: how fast does it multiply?
#
# The second limit is arithmetic. Its unit is the **FLOP**, one floating point operation; a multiplication and an addition
# are two. Again two methods: a product of two matrices by NumPy, which hands it to a finely tuned library (held to one
# thread here), and a black box that multiplies and adds 32-bit numbers in registers without touching memory at all.

# %% tags=["nbval-ignore-output"]
from threadpoolctl import threadpool_limits

matrix = np.ones((1024, 1024), np.float32)
with threadpool_limits(1):
    product = 2 * 1024**3 / seconds(lambda: matrix @ matrix)
print(f"NumPy's matrix product: {product / 1e9:.0f} GFLOP/s with one thread")

# %% tags=["nbval-ignore-output", "core"]
from llambda.probe import fma_peak

peak = {threads: fma_peak(threads) for threads in bandwidth}
for threads, rate in peak.items():
    print(f"at most {rate / 1e9:.0f} GFLOP/s with {threads} thread(s)")

# %% [markdown]
# Put the two limits side by side. In the time in which one core reads a single weight of four bytes, it could do this many
# operations:

# %% tags=["nbval-ignore-output", "core"]
print(f"{peak[1] * 4 / bandwidth[1]:.0f} operations in the time of one weight read")

# %% [markdown]
# And how many does it *need*? To make a token, each weight is multiplied with one number and the product added to a sum:
# two. The multipliers would spend most of their time waiting for bytes. That imbalance is what half of this course is about.

# %% [markdown]
# ## Check: do others say the same?
#
# Whatever we build, we check against somebody else's answer. For the cores: the program `nproc`, where it exists. Old versions
# count the affinity alone, new ones the quota as well, rounded to the nearest; so with a quota its answer may lie above
# ours, and without one both must be equal.

# %%
import os
import shutil
import subprocess

allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
counted = allowed
if nproc := shutil.which("nproc"):
    plain = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}  # nproc obeys those
    counted = int(subprocess.run([nproc], env=plain, capture_output=True, text=True).stdout)
print("nproc agrees:", 1 <= machine.usable_cores <= counted <= allowed)

# %% [markdown]
# For the flags, `lscpu` would be no witness: it reads the same file as we did. But LLVM asks the processor itself, by an
# instruction made for that purpose:

# %%
wanted = {"avx2", "fma", "f16c"}
print("the compiler agrees:", wanted & features == wanted & llvm_features())

# %% [markdown]
# Now the two bandwidths. How far apart may they be? NumPy's sum should not be faster than the black box, give or take the
# noise of the machine, and even on one core it should reach a quarter of it. So we ask that they agree **within a factor
# of 4**. That sounds generous. But a check is worth what it *rejects*, so beside it stands the most common mistake of this
# trade, bits taken for bytes, a factor of 8:


# %%
def agree(a, b):
    return max(a, b) / min(a, b) < 4


print("NumPy's sum and the black box agree:", agree(naive, one_thread))
print("bits taken for bytes would be noticed:", not agree(naive / 8, one_thread))

# %% [markdown]
# ## Profile: your roof
#
# Now the number that this lesson is about. To make one token, an engine reads every weight once. So, for one text at a time,
#
# $$\text{tokens per second} \;\le\; \frac{\text{bytes per second that the machine reads}}{\text{bytes of weights per token}}$$
#
# Nothing can beat it: not the language, not the compiler, not the cleverness of the programmer. It is your **ceiling**.
# (Only a model that fits into the largest cache has a higher one: the cache's.)
#
# `smollm2` stores its weights in 96.4 MB, 5.7 bits each on average; the rest of the 98 MB is its vocabulary and the like.
# Two larger models for comparison, of 1.2 and 7 billion weights (B is for billion), each stored in 4.5 bits: four, and its
# share of a scale (lesson 09).

# %% tags=["core"]
weights = {
    "smollm2": 96.4e6,
    "a 1.2 B model": 1.24e9 * 4.5 / 8,
    "a 7 B model": 6.74e9 * 4.5 / 8,
}  # bytes a token
for name, nbytes in weights.items():
    print(f"{name:<13} {nbytes / 1e6:6,.0f} MB a token")

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.your_machine import roof

roof(bandwidth, peak, weights)

# %% tags=["nbval-ignore-output", "core"]
fastest = max(bandwidth.values())
ceiling = {name: fastest / nbytes for name, nbytes in weights.items()}
outcome("00.ceiling", "the most tokens/s that smollm2 can make here", ceiling["smollm2"])

# %% [markdown]
# Look at the orange line on the right: twice the bytes, half the tokens, for every model alike. The grey line is where
# arithmetic would stop you, at two operations for every 4.5 bits. The lower line counts: on nearly every machine, one text at
# a time, that is memory.
#
# Two ways lead up. *Fewer bytes per token*: that is lesson 09, where a weight shrinks from four bytes to half a byte. And
# *more tokens per byte read*: that is lesson 12, where many texts share one reading.
#
# We keep what you measured, in two small files on your disk. Every lesson from 05 on draws its result under this roof.

# %%
from llambda.course.ledger import record

record("bandwidth", {str(threads): rate for threads, rate in bandwidth.items()})
record("peak", {str(threads): rate for threads, rate in peak.items()})

# %% [markdown]
# <details><summary>In Lisp</summary>
#
# ```lisp
# (defstruct machine
#   (cores 1 :type fixnum)
#   (bandwidth 0d0 :type double-float))          ; bytes per second
#
# (defun ceiling-tokens-per-second (machine bytes-per-token)
#   (/ (machine-bandwidth machine) bytes-per-token))
# ```
#
# Another language, the same machine: the ceiling does not move.
#
# </details>

# %% [markdown]
# ## Break it: pretend there is no AVX2
#
# A program that was compiled for AVX2 and runs on a processor without it does not get slow. It dies: *illegal instruction*.
# So an engine must ask first, and have another **path** for processors that answer no. `kernel_path` names the path that a
# machine gets:

# %%
from llambda.machine import kernel_path

desktop = {"avx", "avx2", "fma", "f16c"}
kernel_path(desktop, "x86_64"), kernel_path(desktop - {"avx2"}, "x86_64")

# %% [markdown]
# `portable` means that the same work is written without any special instruction. It runs everywhere, but more slowly.
#
# A fault that really happens: the code uses three layers, and asks for one. Processors by Intel and AMD that have AVX2 have
# FMA too, so nobody notices, until one turns up that has not (VIA's Eden X4 is such a one):


# %%
def hasty_path(features):
    return "avx2" if "avx2" in features else "portable"


odd = desktop - {"fma"}
hasty_path(odd), kernel_path(odd, "x86_64")

# %% [markdown]
# **Symptom:** works on every developer's machine, crashes on one customer's. **How to find it:** compare the flags that the
# code uses with the flags that it asks for; they must be the same set.
#
# What does yours get? There are two more answers than you have seen: `avx-vnni` and `avx512-vnni` are `avx2` and a newer
# layer, in which one instruction multiplies 8-bit numbers and adds up the products.

# %% tags=["nbval-ignore-output"]
machine.kernel_path

# %% [markdown]
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %%
from llambda.course.exercises import your_machine as check

# %% [markdown]
# ### Exercise 00.1 · The ceiling
#
# *predict · 5 minutes · difficulty 1 of 5*
#
# A computer reads 25 GB/s and computes 120 GFLOP/s. A model has 134.5 million weights, stored in 96.4 MB. 30.1 MB of them are
# a table that is used twice: at the start to look up one row, the token's, and at the end, all of it, to score every possible
# next token. How many tokens a second are possible at most? (Within 1 % is near enough.)

# %% tags=["exercise"]
tokens_per_second = ...

# %% tags=["checker"]
check.ceiling(tokens_per_second)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Which of the two limits is reached first? And how many bytes of the table must be read at the start of a token?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# tokens_per_second = 25e9 / 96.4e6
# ```
#
# Looking up one row costs a few hundred bytes, so the table counts once. Arithmetic alone would allow
# 120e9 / (2 x 134.5e6) = 446 tokens a second; the smaller limit decides.
#
# </details>

# %% [markdown]
# ### Exercise 00.2 · Usable cores
#
# *code · 15 minutes · difficulty 2 of 5*
#
# Write `usable_cores`. The first argument is the text of the file `cpu.max` that Linux keeps for a container: two words,
# quota and period in microseconds, such as `"150000 100000"`; the word `max` in place of the quota means that there is none.
# The period need not be 100,000. The second argument is the affinity, a set of processor numbers. Return how many threads can
# run all of the time: a whole number, rounded down, never 0.


# %% tags=["exercise"]
def usable_cores(cpu_max_text, affinity):
    """The number of threads that can run all of the time, at least 1."""
    ...


# %% tags=["checker"]
check.cores(usable_cores)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `quota, period = cpu_max_text.split()`. Treat `max` first. Then there are two upper bounds, and one lower one.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def usable_cores(cpu_max_text, affinity):
#     quota, period = cpu_max_text.split()
#     if quota == "max":
#         return len(affinity)
#     return max(1, min(len(affinity), int(quota) // int(period)))
# ```
#
# `//` rounds down in whole numbers, without a detour through floating point.
#
# </details>

# %% [markdown]
# ### Exercise 00.3 · Three machines
#
# *diagnose · 5 minutes · difficulty 1 of 5*
#
# Three machines, as somebody recorded them. Which path does each one get: `"avx2"`, or `"portable"`? Or would you refuse to
# run there: `"refuse"`?

# %%
for name, text in check.MACHINES.items():
    print(f"--- {name}\n{text}")

# %% tags=["exercise"]
paths = {"rack server": ..., "laptop": ..., "cloud instance": ...}

# %% tags=["checker"]
check.paths(paths)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Three flags are needed together. And what does a machine get that has none of them, because it is of another family?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# paths = {"rack server": "portable", "laptop": "avx2", "cloud instance": "portable"}
# ```
#
# The rack server has AVX, which brought 256-bit registers for floating point; the integers came with AVX2, a generation
# later. The cloud instance is an ARM processor: its `asimd` is another family's 128-bit registers, and the portable path
# runs on it.
#
# </details>

# %% [markdown]
# ## Recap
#
# To make a token, an engine must read every weight, so the machine's bandwidth over the model's bytes is a ceiling that no
# program passes. How many cores are yours, and which instructions they have, is to be asked and never assumed. Arithmetic is
# plentiful; bytes are what you pay for.
#
# The next lesson needs nothing from here but that picture of bytes travelling. It asks what these bytes look like once they
# have arrived: **01 · Tensors**.
#
# **Further reading.**
#
# - Samuel Williams, Andrew Waterman and David Patterson, *Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures*, Communications of the ACM 52(4), 2009.
# - Ulrich Drepper, *What Every Programmer Should Know About Memory*, 2007.
# - The Linux kernel's documentation, *Control Group v2*, on `cpu.max`.
