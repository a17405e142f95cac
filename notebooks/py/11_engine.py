# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · The engine
#
# **What is left between you and the limit?**
#
# - **You will build** a token that is one call: a table of addresses in place of Python's objects, threads that stay, and a
#   barrier at which they wait for one another.
# - **You will be able to** say what a wait costs, where one is needed and where it is not, why some work is done twice on
#   purpose, and what still stands between your engine and the ceiling of lesson 00.
# - **You need** a matrix product, and from lesson 10 that compiled code which lets go of Python's lock runs in several threads
#   at once. Everything else is said again where it is used.
#
# *75 minutes · difficulty 4 of 5*
#
# Three boxes are lit: this lesson builds no new part, but brings the kernels of lessons 08 and 09, the threads of lesson 10 and
# the cache of lesson 06 into one call.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("11")

# %% [markdown]
# ## Build: count what is not work
#
# A **token** is a piece of text. To make the next one, an engine sends the text's newest token through all layers of the model,
# that is, through hundreds of matrices, and comes out with the **logits**: one score for each token that could follow. The
# course has built seven engines, its **rungs**, each one idea further than the one before.
#
# Lesson 10 ended with a surprise: the rung that shares every matrix among threads, `threaded`, can be slower than one thread.
# It puts a call for each thread into a queue (**fork**), threads take them out and compute, and Python waits until all have
# ended (**join**). How often is that for one token? The method that does it is `Pool.map`. `patch` puts a counter around it
# while the block runs.

# %% tags=["core"]
import llambda

model = llambda.load("tiny", engine="threaded")
ids = model.tokenizer.encode("The for statement is used to iterate")
state = model.engine.new_state(64)
_ = model.engine.forward(state, ids)  # the prompt: nine tokens at once

# %% tags=["core"]
from unittest.mock import patch

from llambda.threads import Pool

with patch.object(Pool, "map", autospec=True, side_effect=Pool.map) as forks:
    _ = model.engine.forward(state, ids[:1])  # one token more
forks.call_count

# %% [markdown]
# In each of this model's 3 layers 7 matrices and one attention, and at the end the head, the matrix that makes the logits: 3 ·
# 8 + 1 = 25. `smollm2` has 30 layers: 241. Now the price of one fork and join whose work is nothing at all, and beside it the
# ceiling. To make one token of `smollm2` a program must read 96.4 MB of weights; lesson 00 measured how many bytes a second
# your machine reads. (If it has not done so yet, the cell does.)

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.roofs import limits
from llambda.course.timing import seconds
from llambda.machine import default_threads

threads = max(2, min(4, default_threads()))
pool = Pool(threads)
fork = seconds(lambda: [pool.map(abs, range(threads)) for _ in range(200)]) / 200  # abs: no work
_, fastest = limits(max)  # of all cores: operations a second, bytes a second
print(f"one fork and join:     {1e6 * fork:5.1f} us, 241 of them {241e3 * fork:5.1f} ms")
print(f"read all weights once: {1e3 * 96.4e6 / fastest:5.1f} ms")

# %% [markdown]
# Compare the milliseconds. Nobody has multiplied anything yet, and a good part of the time for a token is gone, on many
# machines more than all of it. And that is only the queue: between two matrices Python also looks up names, makes small objects
# and cuts arrays.
#
# The remedy is to enter compiled code **once a token**, and to come out with the logits. Three things stand in the way, and we
# take them one by one. The compiled code must serve *every* model. Threads must wait for one another *inside* it. And they must
# be *there* when the next token begins.
#
# ## Build: a table instead of objects
#
# `njit` is Numba's compiler: it turns a Python function into machine code, for the *types* of its arguments. (`nogil=True` lets
# go of Python's lock while that code runs, so that other threads can run as well.) The naive way to hand over a model's weights
# is a tuple of arrays. Look at the last number: for how many types has it compiled?

# %%
import numpy as np
from numba import njit


@njit(nogil=True)
def count(arrays):
    found = 0
    for array in arrays:
        found += array.size
    return found


four = np.ones(4, np.float32)
count((four, four)), count((four, four, four)), len(count.signatures)

# %% [markdown]
# A tuple of two and a tuple of three are two types, so everything was compiled twice. `smollm2` has 211 matrices in two
# formats: a type of its own, for which a whole engine would have to be compiled, and another one for the next model.
#
# But what does a product need to know? Where the numbers begin, how many rows there are and how many columns. The first is an
# **address**, the number of a byte in memory. Three whole numbers: so a model is a *table* of whole numbers, and all tables are
# of one type.
#
# We build that for a stand-in: a chain of 211 matrices, in which each one is multiplied with what the one before gave. Together
# they have 86 MB, nearly as much as the weights of `smollm2`.

# %% tags=["core"]
rng = np.random.default_rng(11)
shapes = [(400, 256) if i % 2 == 0 else (256, 400) for i in range(211)]  # rows, columns
matrices = [
    rng.normal(0, cols**-0.5, (cols, rows)).astype(np.float32) for rows, cols in shapes
]  # stored column after column

WHERE, ROWS, COLS = range(3)
table = np.array([(m.ctypes.data, *m.shape[::-1]) for m in matrices], np.int64)  # [211, 3]
table.shape

# %% [markdown]
# `floats_at(address, n)` makes an array of the `n` float32 numbers that begin at an address, in compiled code. **Nothing is
# checked, and nothing is kept alive**: the table is valid only as long as `matrices` is (lesson 01 shows what happens
# otherwise).
#
# The function below computes some rows of a matrix times `x`, column by column. Its inner loop adds to many sums that do not
# wait for each other, so the compiler can use whole registers, as lesson 08 explains.


# %% tags=["core"]
from llambda.simd.foreign import floats_at


@njit(nogil=True)
def some_rows(table, i, x, y, first, last):
    """Rows first to last of matrix i times x, into y."""
    rows, some = table[i, ROWS], y[first:last]
    some[:] = 0
    for c in range(table[i, COLS]):
        column = floats_at(table[i, WHERE] + 4 * (rows * c + first), last - first)
        weight = x[c]
        for r in range(len(some)):
            some[r] += column[r] * weight


# %% [markdown]
# With one thread the whole chain is a loop. What goes into a matrix stands in one buffer, what comes out in another, and they
# take turns.

# %% tags=["core"]
start = rng.normal(size=256).astype(np.float32)
buffers = np.zeros((2, 400), np.float32)  # in and out, by turns


def one_thread():
    buffers[0, :256] = start
    for i in range(len(table)):
        some_rows(table, i, buffers[i % 2], buffers[(i + 1) % 2], 0, table[i, ROWS])
    return buffers[1].copy()  # the last matrix has 400 rows


alone = one_thread()
alone.shape

# %% [markdown]
# ## Build: meet, in slow motion
#
# The plan: *every* thread runs the whole loop, and computes a share of the rows of every matrix. But nobody may begin with
# matrix i + 1 before all have finished with matrix i, since its `x` is everybody's work. A place where each waits until all
# have come is a **barrier**.
#
# How does a thread know that all have come? They can only tell each other by way of memory that all share. A mistake in such
# code may show once in a million runs, so we first look at it in slow motion, as lesson 10 did with its races. In the next
# cells a thread is a generator, and a `yield` is **one access to shared memory**. There are four kinds: `load`, `store`, `add`
# (it gives what was in the cell before), and `until`, which waits for a condition. Between two steps of one thread the others
# can take any number of theirs. `every_order` goes through *all* orders that are possible.

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.course.exercises.engine_orders import add, every_order, load, store, until

show(load, store, add, until)

# %% [markdown]
# The first idea: a count. Each thread adds one when it arrives, and waits until the count is as high as the number of threads.


# %% tags=["core"]
def count_up(threads):
    yield add("arrived", 1)
    yield until("arrived", lambda count: count >= threads)


# %% [markdown]
# To judge it, two threads work in phases, as they will for every matrix. In each phase a thread writes its part, waits for the
# other, and looks at the other's part: 1 if it is there, 0 if not. (All cells hold 0 at first. `yield from meet(2)` means: now
# come the barrier's steps.)

# %% tags=["core"]
from functools import partial


def worker(rank, meet, phases):
    """What thread 0 or 1 sees of the other in each phase."""
    seen = []
    for phase in phases:
        yield store(f"{phase}{rank}", 1)
        yield from meet(2)
        seen.append((yield load(f"{phase}{1 - rank}")))
    return tuple(seen)


def endings(meet, phases):
    return every_order([partial(worker, rank, meet, phases) for rank in (0, 1)])


# %% tags=["core"]
def tally(meet, phases):
    for ending in endings(meet, phases):
        print(f"{ending.orders:>6,} orders: {ending.results or 'they wait for ever'}")


tally(count_up, "A")

# %% [markdown]
# Two threads, one phase: their steps can follow each other in 36 orders, and in all of them both saw a 1. It works. A token has
# more than one phase:

# %% tags=["core"]
tally(count_up, "AB")

# %% [markdown]
# In 336 of 5,544 orders a thread sees a 0: it went on before the other had come. The count is still 2 from the first meeting,
# so whoever comes first to the second one finds it full. A test that runs it a few times may well find nothing wrong.
#
# The second idea: the last to come sets the count back to 0, and that is what the others wait for.


# %% tags=["core"]
def count_down(threads):
    if (yield add("arrived", 1)) == threads - 1:
        yield store("arrived", 0)
    else:
        yield until("arrived", lambda count: count == 0)


tally(count_down, "AB")

# %% [markdown]
# Nobody goes on too early any more. But in 6 of 618 orders they wait for ever. Here is one of these orders; time runs down, and
# thread 1 is on the right. Find the moment at which thread 0 should have looked at `arrived`.


# %% tags=["core"]
def columns(ending):
    for rank, taken in ending.example:
        print(f"{'':{26 * rank}}{taken}")


columns(endings(count_down, "AB")[-1])

# %% [markdown]
# One thread waits for a 0. The other set it, ran on to the second meeting, and made it a 1 again, all before the first one
# looked. Now each waits for the other.
#
# So what a thread waits for **must not be gone again before it looks**. A number that only grows is safe: how many barriers
# have been passed. Its value at the time when a thread arrives is called the **generation**, and the thread waits until it is
# another one.
#
# ## Build: a barrier of atomics
#
# Now for real, in compiled code. There `count += 1` is three steps, load, add and store, and between them another thread may do
# the same: one arrival gets lost (lesson 10). An **atomic** operation is one step, for all cores. `atomic_add` gives what was
# there before, so exactly one thread learns that it was the last.
#
# And it keeps order. A core, and a compiler too, may let ordinary reads and writes change places where one thread alone would
# not notice; none of them passes these operations. So whoever sees `passed` change also sees *everything* that the others wrote
# before they arrived. Slow motion took that for granted, and without it the right algorithm is worth nothing.
#
# Waiting means to look again and again: the thread **spins**. `pause` tells the core that it does. And each of the two numbers
# has cache lines to itself, since a write takes the whole line away from the cores that are looking at it: two of them, because
# some cores fetch lines in pairs. (The places are the package's, whose counters you will read, too.)

# %% tags=["core"]
from llambda.simd.cpu import atomic_add, atomic_load, atomic_store, pause

LINES = 16  # int64 numbers in two cache lines
ARRIVED, PASSED = 1 * LINES, 2 * LINES


@njit(nogil=True)
def meet(control, threads):
    passed = atomic_load(control, PASSED)
    if atomic_add(control, ARRIVED, 1) == threads - 1:
        atomic_store(control, ARRIVED, 0)
        atomic_store(control, PASSED, passed + 1)
    else:
        while atomic_load(control, PASSED) == passed:
            pause()


# %% [markdown]
# Four accesses, and their order is everything. The generation is read *before* arriving: afterwards the last may have come and
# changed it. The count is reset *before* anybody is let go: afterwards somebody may have arrived at the next barrier, and be
# erased.
#
# Two real threads now meet 200 times, and count what they find missing. Each writes the number of the round into its place on a
# board and meets the others; then it looks whether all places hold that number. A second meeting lets nobody write before all
# have looked.


# %% tags=["core"]
@njit(nogil=True)
def rounds(meet, control, board, rank, threads, count):
    """Meet 2 * count times. Returns how many parts were not there when they should have been."""
    missing = 0
    for number in range(1, count + 1):
        board[rank * LINES] = number
        meet(control, threads)
        for other in range(threads):
            missing += board[other * LINES] != number
        meet(control, threads)
    return missing


# %% tags=["core"]
from concurrent.futures import ThreadPoolExecutor


def in_threads(job, count):
    """[job(0), job(1), ...], each in a thread of its own."""
    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(job, range(count)))


def missing(meet, control, count, threads=2):
    board = np.zeros(threads * LINES, np.int64)
    return in_threads(lambda rank: rounds(meet, control, board, rank, threads, count), threads)


# %% tags=["core"]
control = np.zeros(3 * LINES, np.int64)
print(f"missing: {missing(meet, control, 100)}, barriers passed: {control[PASSED]}")

# %% [markdown]
# It holds. One thing is wrong with it all the same, and you see it only on a busy computer. A thread that spins keeps its core
# to itself. If the thread that it waits for has no core, since another program runs there, then both wait until the operating
# system takes a core away from somebody. That can be milliseconds, as long as a whole token.
#
# So a thread should spin for a short while only, and then let go of its core. Two ways are open. It may **yield**: go to the
# end of the queue for that core, and look again when its turn comes. Or it may **sleep**, and is not in the queue at all until
# somebody wakes it. For that, the last to come must know of sleepers. Here is a first attempt; before you run it, look for the
# order in which it fails.


# %%
def naps(threads):
    passed = yield load("passed")
    if (yield add("arrived", 1)) == threads - 1:
        yield store("arrived", 0)
        yield store("passed", passed + 1)
        yield store("asleep", 0)  # wake up!
    elif (yield load("passed")) == passed:  # not yet?
        yield store("asleep", 1)  # then sleep
        yield until("asleep", lambda asleep: asleep == 0)


tally(naps, "A")
columns(endings(naps, "A")[-1])

# %% [markdown]
# A **lost wake-up**: between looking and falling asleep there is a gap, the call came in it, and who was not asleep yet did not
# hear it. The operating system closes the gap with one step that looks *and* falls asleep: `sleep_while(control, PASSED, passed,
# ...)` sleeps only if the number is still `passed`. (Linux calls it a *futex*. On other systems the function yields.)
#
# The package's barrier first spins, for `PATIENCE`, a tenth of a millisecond: others that run are earlier. To sleep at once
# would be dear. Falling asleep and waking somebody are calls of the operating system, and whoever wakes late comes late to the
# next barrier, where another falls asleep for it. `NAP` is a millisecond, the longest that it sleeps before it looks at a flag,
# `ABORTED`: when a thread has failed, nobody shall wait for it. `LATE` adds up how long a thread waited when its patience was
# not enough; we shall need it.

# %% tags=["nbval-ignore-output"]
from llambda.barrier import barrier, new_control, reaches

show(barrier, reaches)

# %% tags=["core"]
theirs = new_control(2)
print(f"missing: {missing(barrier, theirs, 100)}, barriers passed: {theirs[PASSED]}")
print("the same as ours:", bool(theirs[PASSED] == control[PASSED]))

# %% [markdown]
# Why not simply yield? Who wakes from sleep has the core at once, as a rule, since it has used so little of it; who yields
# waits for the turn of all others. Beside one busy program on two cores, the engine of this lesson kept 17 % of its quiet speed
# when waiting threads yielded, and 22 to 26 % when they slept. (That is still bad. Below it gets better.)
#
# What does it cost to meet, in nanoseconds (a thousand of them are a microsecond)? Remember what a fork and join took.

# %%
from llambda.course.predictions import outcome, predict

guess = ...
predict("11.barrier", "nanoseconds of one barrier", guess)


# %% tags=["nbval-ignore-output", "core"]
def once(meet, threads, count, repeats):
    """Seconds for one barrier: 2 * count of them in a row, and the best of several tries."""

    def in_a_row():
        missing(meet, new_control(threads), count, threads)

    return seconds(in_a_row, repeats) / (2 * count)


wait = once(barrier, threads, 500, repeats=40)
outcome("11.barrier", "nanoseconds of one barrier", 1e9 * wait)
print(f"a fork and join takes {fork / wait:.0f} times as long")

# %% [markdown]
# And with twice as many threads as there are cores? Ours has to be patient then. Look at the last column.

# %% tags=["nbval-ignore-output", "core"]
crowd = 2 * default_threads()
for name, way, times in (("spins", meet, 5), ("spins, then sleeps", barrier, 100)):
    few, many = once(way, threads, 100, 5), once(way, crowd, times, 5)
    print(f"{name:<18} {1e6 * few:9.1f} us with {threads} threads, {1e6 * many:9.1f} with {crowd}")

# %% [markdown]
# (Is a barrier as dear as a fork and join, or the first row slow even with few threads? Then somebody else is using your cores
# just now, which is the case that sleeping is for. Both columns hold a little of the time that it takes to start threads.)
#
# ## Build: one call
#
# Now the whole chain in one call. Every thread makes it, and is told its `rank`. `share(total, part, parts, 16)` is lesson 10's
# division of rows: whole cache lines, so that no two threads write one. The `stamps` are only for a picture: the processor's
# tick counter, before and after each product.

# %% tags=["core"]
from llambda.simd.cpu import cycles
from llambda.threads import share


@njit(nogil=True)
def whole_chain(table, control, buffers, stamps, rank, threads):
    for i in range(len(table)):
        first, last = share(table[i, ROWS], rank, threads, 16)
        stamps[rank, i, 0] = cycles()
        some_rows(table, i, buffers[i % 2], buffers[(i + 1) % 2], first, last)
        stamps[rank, i, 1] = cycles()
        barrier(control, threads)


# %% [markdown]
# One barrier a matrix is enough. Look at the buffers to see why: with matrix i all read buffer A and write B; with the next one
# they read B and write A. When somebody writes to A again, the barrier in between says that nobody reads it any more.

# %% tags=["core"]
stamps = np.zeros((threads, len(table), 2), np.int64)
meeting = new_control(threads)


def one_call():
    buffers[0, :256] = start
    in_threads(lambda rank: whole_chain(table, meeting, buffers, stamps, rank, threads), threads)
    return buffers[1].copy()


print("the same bits as one thread:", np.array_equal(one_call(), alone))

# %% [markdown]
# The same bits, and not only nearly the same: each row is added up by one thread, in one order. Beside it, the same chain as
# lesson 10 would do it, a fork and join for each matrix.

# %% tags=["core"]
from llambda.engines.fused_clock import read_ticks

forked_stamps = np.zeros_like(stamps)


def part(i, rank):
    x, y = buffers[i % 2], buffers[(i + 1) % 2]
    forked_stamps[rank, i, 0] = read_ticks()
    some_rows(table, i, x, y, *share(table[i, ROWS], rank, threads, 16))
    forked_stamps[rank, i, 1] = read_ticks()


def forked():
    buffers[0, :256] = start
    for i in range(len(table)):
        pool.map(partial(part, i), range(threads))
    return buffers[1].copy()


print("the same bits as one thread:", np.array_equal(forked(), alone))

# %% [markdown]
# Both on one axis of time, a **Gantt chart** like lesson 10's. A bar is one thread's share of one matrix. Each way runs eight
# times, and the picture takes the quietest stretch. (Which of its threads takes a share, the pool leaves to chance; the rows of
# the upper part are shares.) Count the matrices that each way has done when the picture ends.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.engine import gantt
from llambda.profiling import Ticks

counter, runs = Ticks(read_ticks), {"fork and join": [], "one call": []}
for _ in range(8):
    _ = forked(), one_call()
    runs["fork and join"].append(forked_stamps.copy())
    runs["one call"].append(stamps.copy())
ticks, elapsed = counter.look()
rate = ticks / elapsed  # ticks a second
gantt({name: [(run - run.min()) / rate * 1e6 for run in each] for name, each in runs.items()})

# %% [markdown]
# ## Build: threads that stay
#
# Our `one_call` starts new threads every time. To start one takes longer than many a matrix. The package's `Workers` keep
# theirs, and they keep them *awake*: after a token a worker lingers in compiled code for about a millisecond and watches a
# counter. When the next token is posted there, it enters the next call without any Python. Only when nothing comes does it go
# to sleep. (To spin for ever would heat the room, and take a core from others.)
#
# In `follow`, `POSTED` counts what has been posted, and `call3` calls a compiled function by its address. The `else` is for
# going to sleep, where a wake-up can get lost again. Here the remedy is an order: put up a flag *first*, then look *once more*.
# Whoever posts does so first, and looks for flags afterwards; so one of the two sees the other.

# %% tags=["nbval-ignore-output"]
from llambda.handoff import follow
from llambda.workers import Workers

show(follow, Workers.run_compiled)

# %% [markdown]
# `Workers.run` takes a Python function, as `in_threads` does. Four ways through the same chain, in milliseconds:

# %% tags=["nbval-ignore-output", "core"]
workers = Workers(threads)


def staying():
    buffers[0, :256] = start
    workers.run(lambda rank: whole_chain(table, workers.control, buffers, stamps, rank, threads))
    return buffers[1].copy()


assert np.array_equal(staying(), alone)
for way in (one_thread, forked, one_call, staying):
    print(f"{way.__name__:<12} {1e3 * seconds(way, repeats=15):6.2f} ms")

# %% [markdown]
# The last three are the point: the same threads and the same products, with less and less around them. `one_thread` is there to
# be fair. Such small matrices hardly need a second thread, and with a fork and join for each it may well do harm.
#
# ## Build: the finished form
#
# The engine itself is this idea, with the operations of lesson 04 in place of a chain. A layer has several places where threads
# must wait. Guess: how many barriers does one token of `tiny` pass? It has 3 layers, and a head.

# %%
guess = ...
predict("11.barriers", "barriers of one token of tiny", guess)

# %% [markdown]
# The picture shows a layer in two threads. What you need to know of it: a *norm* brings the token's vector to a standard size;
# q, k and v are made from it by three matrices, for each *head* separately; attention compares q with the keys of all positions
# (*scores*), and mixes their values; `o`, `gate`, `up` and `down` are four more matrices. *prepare* brings a vector into the
# form that a product wants, for instance rounded to 8 bits (lesson 09).

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.engine import layer

layer()

# %% [markdown]
# Before every orange line somebody writes what somebody else reads after it. And look at the amber boxes. **Every thread does
# the norm of the whole vector for itself.** To share it would halve that work, and cost one barrier more: whoever multiplies
# with the result needs all of it. Which of the two is cheaper, you measure further down. To let operations follow one another
# without a wait, and to do small ones twice for that sake, is called **fusion**; hence the rung's name.
#
# The package's barrier counts how often it was passed. We look into the engine's control array before and after one token.

# %% tags=["core"]
fused = llambda.load("tiny").engine  # the rung "fused" is the default
state = fused.new_state(64)
_ = fused.forward(state, ids)
before = fused._workers.control[PASSED]
_ = fused.forward(state, ids[:1])
outcome("11.barriers", "barriers of one token of tiny", fused._workers.control[PASSED] - before)

# %% [markdown]
# Six in each of 3 layers and one after the head: 19. For `smollm2` it is 181. And how many calls from Python? What was counted
# at the top of this lesson, 25 for `threaded`, is now:

# %% tags=["core"]
run = Workers.run_compiled
with patch.object(Workers, "run_compiled", autospec=True, side_effect=run) as calls:
    _ = fused.forward(state, ids[:1])
calls.call_count

# %% [markdown]
# Here is that call. `step` is the array of plain numbers that says everything: sizes, addresses of buffers, address of the
# table. `w` is a layer's row of the table. Each of the five phases of a layer ends with a `wait`, a barrier that also looks at
# the clock; the sixth is inside `attend`, between scores and mixed values.

# %% tags=["nbval-ignore-output", "core"]
from llambda.engines.phases import attn_out, forward, qkv

show(forward, qkv, attn_out)

# %% [markdown]
# And how a matrix comes into the table, once, when a model is loaded. All packed weights lie in one piece of memory, the
# *arena*. Beside a matrix's address stands that of the compiled *product* which its format wants, and the engine calls it by
# that address: so a file may mix formats as it likes. (`CODED` products take 8-bit numbers, `FLOATS` do not.)

# %% tags=["nbval-ignore-output"]
from llambda.engines.plan import Plan

show(Plan._place_matrix)

# %% [markdown]
# Is it true that the table says where things are? We follow an address of it by hand, with `ctypes` as in lesson 01.

# %%
import ctypes

from llambda.engines import step

plan = Plan(model.config, model.weights)
address = int(plan.table[2, step.ATTN_NORM])  # of layer 2
there = np.array((ctypes.c_float * 128).from_address(address))
print(plan.table.shape, np.array_equal(there, model.weights.layers[2].attn_norm.numpy()))

# %% [markdown]
# Three layers and a row for the head; 34 numbers for each. Nothing in it is a type, so one compiled function serves them all.
#
# <details><summary>In Lisp</summary>
#
# ```lisp
# (defstruct control (arrived 0 :type sb-ext:word) (passed 0 :type sb-ext:word))
#
# (defun meet (control threads)
#   (let ((passed (control-passed control)))
#     (cond ((= (sb-ext:atomic-incf (control-arrived control)) (1- threads))
#            (setf (control-arrived control) 0) (sb-ext:atomic-incf (control-passed control)))
#           (t (loop while (= passed (control-passed control)) do (sb-ext:spin-loop-hint))))))
# ```
#
# `atomic-incf` gives the old value, as our `atomic_add` does. In another language the same four accesses stand in the same
# order. (The plain `setf` keeps its place on x86, where writes are seen in order; elsewhere it needs a barrier of its own.)
#
# </details>

# %% [markdown]
# ## Check: the same numbers
#
# First our chain. NumPy computes it in float64 from the same matrices. How far off may ours be? Let *u* = 2⁻²⁴ be the largest
# error of one float32 operation, as a share of its result. Errors of *N* additions in a row walk about √*N* · *u* away, and as
# in lesson 06 we leave a factor of 64 for what enlarges them on the way. *N* is the sum of all columns.

# %%
exact = start.astype(np.float64)
for m in matrices:
    exact = exact @ m  # m is [columns, rows]
n = int(table[:, COLS].sum())
allowed = 2**-24 * 64 * n**0.5 * np.sqrt(np.mean(exact**2))
print(f"{n:,} additions in a row; off by {allowed:.1e} at most for values about 0.5")
print("ours is within:", bool(np.abs(alone - exact).max() < allowed))

# %% [markdown]
# The mistake that a table of addresses invites: one address is that of a neighbour. Nothing crashes, since there are numbers
# too.

# %%
right = table[7, WHERE]
table[7, WHERE] = table[9, WHERE]  # the planted mistake
print("it is noticed:", bool(np.abs(one_thread() - exact).max() > allowed))
table[7, WHERE] = right

# %% [markdown]
# Now the engine, against PyTorch's float64 reference of lesson 04, every intermediate result, with the prompt cut into calls of
# 4, 3, 1 and 1. `tiny` stores float32 numbers, so nothing but the order of additions may differ. `compare_engine` derives what
# each result may be off by, as above: from the number of additions up to it. Last comes the mistake it must reject: a cache
# that keeps keys and values in 16 bits, which rounds each to 11 significant bits instead of 24.

# %% tags=["core"]
from llambda.check import compare_engine, tolerances


def first_wrong(engine):
    return compare_engine(engine, model.config, model.weights, ids, [4, 3, 1, 1]).divergence


half_cache = llambda.load("tiny", cache="f16").engine
found = first_wrong(half_cache)
print(f"allowed for logits: a share of {tolerances(model.config, 9)['logits'][-1]:.1e}")
print("the fused engine is within:", first_wrong(fused) is None)
print(f"halves are noticed in layer {found.layer}, {found.operation}")

# %% [markdown]
# Then ourselves. Rungs 4 to 7 add in the same order, so with float weights they must agree *to the last bit*; so must any
# number of threads, and a second run. Why be so strict? Because "nearly the same" is what a race looks like. A fault that shows
# now and then hides in a tolerance; it cannot hide in an equality.

# %% tags=["core"]
from llambda.paths import data_dir


def logits_of(source="tiny", **settings):
    with llambda.load(source, **settings) as loaded:
        state = loaded.engine.new_state(16)
        loaded.engine.forward(state, ids[:5])
        return [loaded.engine.forward(state, [token]).copy() for token in ids[5:]]


once_more = logits_of(threads=2)
for count in (1, 2, 3):
    print(f"{count} threads:", np.array_equal(logits_of(threads=count), once_more))
print("reruns:", all(np.array_equal(logits_of(threads=2), once_more) for _ in range(10)))
print("rung 4, vectorized:", np.array_equal(logits_of(engine="vectorized"), once_more))

# %% [markdown]
# Quantized weights have a bar of their own, since products there round the activations to 8 bits (lesson 09). First: the fused
# engine gives the same bits as rung 5, which made that decision. Second, how much the rounding costs, as a **KL divergence**
# from PyTorch: what is lost, in units called nats, when you take our probabilities for the exact ones. llama.cpp rounds in much
# the same way; its own loss was recorded at 305 positions of `smollm2`, 0.0031 on average. We allow ourselves 1.15 times that.

# %%
from llambda.check import kl_divergence
from llambda.oracle import Oracle

eight_bits = data_dir() / "tiny-q8_0.gguf"
print(
    "the bits of rung 5:",
    np.array_equal(logits_of(eight_bits), logits_of(eight_bits, engine="quantized")),
)

# %%
text = model.tokenizer.encode(
    "The for statement is used to iterate over the elements of a sequence (such as a string, "
    "tuple or list) or other iterable object."
)


def loss(truth, engine):
    """Mean KL divergence of an engine's answers from the true logits, nats."""
    logits = engine.forward(engine.new_state(64), text, all_logits=True)
    return kl_divergence(truth, logits).mean()


small = llambda.load(eight_bits)
exactly = Oracle(small.config, small.weights, "float64").logits(text)  # by PyTorch
print("within the bar:", bool(loss(exactly, small.engine) < 1.15 * 0.0031))

# %% [markdown]
# The planted fault: in one matrix each block of 32 weights gets the scale of the next block. A Q8_0 block is 34 bytes, and its
# first two are the scale.

# %%
from dataclasses import replace

from llambda.engines import FusedEngine
from llambda.tensor import Tensor

first, *others = small.weights.layers
blocks = first.gate.blocks().copy()  # uint8 [rows, blocks, 34]
blocks[:, :, :2] = np.roll(blocks[:, :, :2], -1, axis=1)
shifted = replace(first, gate=Tensor(blocks, first.gate.dtype, first.gate.shape))
faulty = FusedEngine(small.config, replace(small.weights, layers=(shifted, *others)))
print("the planted mistake is noticed:", bool(loss(exactly, faulty) > 1.15 * 0.0031))

# %% [markdown]
# Last, the real model, greedily, against what llama.cpp wrote: 24 ids recorded by llama-cpp-python 0.3.36. Both round
# activations, not in quite the same way, so their logits differ by about half a unit. Where llama.cpp's first two choices were
# less than 1.0 apart, the other choice would be no fault; its margins were recorded as well.

# %% tags=["real", "nbval-ignore-output", "core"]
from llambda.fetch import KNOWN

said = [7042, 30, 198, 198, 504, 1797, 1918, 553, 253, 2155, 282, 4723]
said += [216, 35, 33, 33, 2215, 701, 30, 198, 198, 504, 1797, 1918]
margins = [2.5, 1.2, 1.4, 1.5, 0.9, 0.3, 2.1, 0.7, 1.8, 1.3, 5.5, 1.9]
margins += [7.2, 8.4, 0.2, 1.1, 1.9, 0.4, 0.6, 0.2, 3.4, 2.0, 3.1, 1.4]
if KNOWN["smollm2"].is_here:
    with llambda.load("smollm2") as real:
        made = list(real.generate("The capital of France is", temperature=0, max_tokens=24).ids)
        print(real.tokenizer.decode(made))
    same = [ours == theirs for ours, theirs in zip(made, said, strict=True)]
    first = same.index(False) if False in same else None
    print("ids equal to llama.cpp's:", len(said) if first is None else first)
    assert first is None or margins[first] < 1
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: where a token's time goes
#
# The fused engine cannot be watched from outside any more: it is one call. So it carries a clock. Within the block below every
# thread reads the processor's tick counter before and after each piece of work, and adds up the difference by kind.

# %% tags=["nbval-ignore-output", "core"]
big_name = "smollm2" if KNOWN["smollm2"].is_here else "tiny"
big = llambda.load(big_name)
state, clocks = big.engine.new_state(64), []
logits = big.engine.forward(state, big.tokenizer.encode("The class statement"))
for _ in range(40):
    with big.engine.profile() as clock:
        logits = big.engine.forward(state, [int(logits.argmax())])
    clocks.append(clock)

# %% [markdown]
# Of 40 tokens we keep the fastest, since whatever disturbs a token only makes it slower. `spent` is the mean of the threads, in
# seconds.

# %% tags=["nbval-ignore-output", "core"]
clock = min(clocks, key=lambda each: each.elapsed)
token = clock.elapsed  # seconds
spent = {kind: float(np.mean(each)) for kind, each in clock.seconds.items()}

# %% [markdown]
# The table divides by how often each kind occurs in a token: *L* layers have 7 *L* matrices and the head, 4 *L* preparations
# and the head's, and so on. `rate`, ticks a second, is from the Gantt chart. (On x86 a tick is about as
# long as a cycle of a core.)

# %% tags=["nbval-ignore-output", "core"]
layers = big.config.n_layers
times = {
    "prepare": 4 * layers + 1,
    "multiply": 7 * layers + 1,
    "turn": layers,
    "attend": 2 * layers,
}
times |= {"swiglu": layers, "add": 2 * layers, "wait": 6 * layers + 1}
for kind, count in times.items():
    ticks = spent[kind] / count * rate
    print(f"{kind:<9} {count:>4} x {ticks:>10,.0f} ticks   {spent[kind] / token:6.1%} of the token")
assert set(times) == set(spent)

# %% [markdown]
# Two lines of it matter: `multiply` and `wait`. Everything that lesson 04 made such efforts to get right takes a few percent.
#
# Compare `prepare`, which holds the norms, with a barrier, which you have measured above. Two threads that shared a norm would
# save half of the one and pay the whole of the other:

# %% tags=["nbval-ignore-output", "core"]
saved, paid = spent["prepare"] / times["prepare"] * rate / 2, wait * rate
print(f"saved {saved:,.0f} ticks, paid {paid:,.0f} ticks")

# %% [markdown]
# That is why it is done twice. (At a barrier's best the two can be close, and without wide registers it may come out the other
# way. But a `wait` in the table is longer than a barrier at its best: whoever is done first waits for the slowest, and
# sometimes another program has the slowest one's core. Run it again on a quiet machine, or while a video plays.)
#
# Now the question of this lesson. What share of the ceiling does the engine reach? Guess a number from 0 to 1.

# %%
guess = ...
predict("11.share", "share of the ceiling that the fused engine reaches", guess)

# %% [markdown]
# The bar below is one token. Its first part is the ceiling itself: the time in which the weights can be read once. If
# `multiply` takes longer, the products do not keep memory busy all of the time. (If it takes less, lesson 00 found memory busy;
# then the first part is all of `multiply`.) The rest is what stands between you and the limit.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.engine import where_it_goes
from llambda.weights import stored_bytes

floor = min(stored_bytes(big.weights) / fastest, spent["multiply"])
parts = {"the weights, read once": floor, "more in products": spent["multiply"] - floor}
parts["small operations"] = sum(spent[k] for k in ("prepare", "turn", "attend", "swiglu", "add"))
parts |= {"waiting": spent["wait"], "Python": max(0.0, token - sum(spent.values()))}
where_it_goes({name: 1e3 * each for name, each in parts.items()})

# %% [markdown]
# On a quiet machine most of the bar is blue. Waiting is what grows when threads do not have the cores to themselves. And
# Python, where we began, is a sliver: it fills in one array a token. (With `tiny` the bar is mostly the other colours: there is
# next to nothing to read.)
#
# ## Profile: the switches
#
# Two things can be chosen when a model is loaded: `threads`, and the numbers that the `cache` keeps, `"f32"` or `"f16"`. To get
# to a position quickly, the next function only says that we are there: the cache holds zeros, and time does not depend on the
# numbers. (`fill` matters. Memory that was never written is not there yet, and to read it costs next to nothing.)


# %% tags=["core"]
def at_positions(positions, **settings):
    """Seconds a token at each of some positions."""
    with llambda.load(big_name, **settings) as loaded:
        engine = loaded.engine
        state = engine.new_state(positions[-1] + 10)
        state.cache.fill(0)

        def one_token(position):
            state.ids = [0] * position
            engine.forward(state, [0])

        return [seconds(partial(one_token, position), repeats=9) for position in positions]


# %% tags=["nbval-ignore-output"]
for count in sorted({1, 2, default_threads()}):
    (first,) = at_positions([0], threads=count)
    print(f"{count} threads: {1e3 * first:6.2f} ms a token at position 0")

# %% [markdown]
# A second thread helps as long as memory has more to give (compare lesson 00's curve of the bandwidth), and as long as it has a
# core to itself. When another program takes that core, a second thread does harm: every barrier waits for it, hundreds of times
# a token. The engine sees it by `LATE`. Then it lets a thread rest, and twice a second tries whether it may come back.

# %% tags=["nbval-ignore-output"]
from llambda.turnout import Turnout

show(Turnout)

# %% [markdown]
# So beside one busy program the engine keeps 33 to 36 % of its quiet speed, and beside two on its two cores 25 to 27 %. No bit
# of the logits changes with the number of threads, so nobody notices but the clock.
#
# And the cache? Halves are half the bytes. At position 2,000 a token of `smollm2` reads 96.4 MB of weights and 92.2 MB of
# float32 keys and values. How many times as long does it take as with halves? Guess.

# %%
guess = ...
predict("11.half", "time at position 2,000 with f32 over f16", guess)

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.engine import by_position

last = min(2000, big.config.context_length - 10)
positions = [0, last // 4, last // 2, last * 3 // 4, last]
measured = {f"cache of {kind}": at_positions(positions, cache=kind) for kind in ("f32", "f16")}
singles, halves = measured.values()
outcome("11.half", "time at position 2,000 with f32 over f16", singles[-1] / halves[-1])
by_position({name: [1e3 * each for each in found] for name, found in measured.items()}, positions)

# %% [markdown]
# By bytes alone it would be (96.4 + 92.2) / (96.4 + 46.1) = 1.32. Is yours nearer to 1? Then attention is not limited by memory
# on your machine: halves have to be converted, and that is work. (With `tiny` the text ends at 512, and there is little to
# see.)
#
# And what do halves cost in accuracy? `tiny` with a cache of halves, against exact numbers, by the measure of the section
# *Check*:

# %%
lost = loss(Oracle(model.config, model.weights, "float64").logits(text), half_cache)
print("nats lost, fewer than a millionth:", bool(lost < 1e-6))
print("a thousandth of what 8 bits may lose, or less:", bool(1000 * lost < 0.0031))

# %% [markdown]
# A switch worth having: it saves half of the memory and some time, and loses almost nothing. Almost nothing is not nothing, so
# it is off until you ask for it.
#
# ## Profile: the ladder under the ceiling
#
# Every rung of the course, PyTorch, and llama.cpp if the package `llama-cpp-python` is installed here. Each is drawn as soon as
# it is measured; the first ones take a while. At the right stand tokens a second and the share of the ceiling. Where llama.cpp
# is missing, the lower part shows what was recorded on *another* machine, under that machine's own ceiling: PyTorch 2.13, and
# llama-cpp-python 0.3.36 as pip built it there. Between two machines compare the shares, and not the tokens a second.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.engine_ladder import climb

ladder = climb()

# %% tags=["nbval-ignore-output", "core"]
reached = ladder["fused"] / ladder["ceiling"]
outcome("11.share", "share of the ceiling that the fused engine reaches", reached)
print(f"{ladder['fused'] / ladder['naive']:,.0f} times as fast as naive")
assert ladder.keys() >= {"naive", "fused", "ceiling"}

# %% [markdown]
# Where did 99 % go? That was the question since lesson 05, and each rung is a part of the answer: work done twice (`cached`),
# lanes left empty (`vectorized`), bytes too many (`quantized`), cores asleep (`threaded`), and waiting for Python (`fused`). Is
# your share below two thirds? Look at the bar above: a busy machine makes threads wait, and the ceiling was measured at the
# best moment. (`tiny` fits into a small cache, and its barriers take longer than its weights; this engine is not for such
# models.)
#
# And the roof of lesson 07, for a single text one last time. A dot's place from left to right is how many operations an engine
# does for each byte that it reads.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.roofs import roof_so_far

_ = roof_so_far("fused")

# %% [markdown]
# The blue dot stands under the slope: what bounds it is memory. Faster arithmetic would not lift it, nor would another
# language. To get on from there one has to move to the **right**, to more operations for each byte. Lesson 12 does that.
#
# ## Break it: a missing barrier
#
# Here is lesson 04's table once more. What is bold is new.
#
# | symptom | look first at |
# |---|---|
# | text is garbage, or one token for ever | tokenizer, sampling, how weights are parsed; **an address in a table** |
# | text is well formed, but wrong | weights, precision, shapes; and, if it begins right, the cache |
# | crash or fault | alignment, foreign pointers, bounds, a missing CPU feature; **memory that was let go** |
# | slow | no SIMD, task size, contention, too many threads |
# | now right, now wrong | a race, **which may be a missing barrier**; a seed, order of addition; a state used twice |
# | **hangs, now and then** | **a barrier at which somebody waits alone** |
#
# In two threads, `tiny`'s work on q, k and v is divided as in the picture above: thread 0 makes the four heads of q, thread 1
# both heads of k and of v. Then both compute scores, and each needs all of q and all of k. Somebody takes the barrier between
# them for superfluous. We watch it in slow motion, where no real memory is harmed, and beside it with a barrier. (Used only
# once, the count is a right one.)


# %%
def no_barrier(threads):
    yield from ()


def attends(rank, meet):
    """Make q (thread 0) or k and v (thread 1), then look at everything. Right if all is there."""
    mine = ["q"] if rank == 0 else ["k", "v"]
    for name in mine:
        yield store(name, 1)
    yield from meet(2)
    found = []
    for name in ("q", "k", "v"):
        found.append((yield load(name)))
    return "right" if all(found) else "stale"


# %%
for meet_or_not in (no_barrier, count_up):
    for ending in every_order([partial(attends, rank, meet_or_not) for rank in (0, 1)]):
        print(f"{meet_or_not.__name__:<11} {ending.orders:>3} orders: {ending.results}")

# %% [markdown]
# In 24 of 126 orders somebody reads what is not there yet. And on a real machine the orders are not equally likely: two threads
# that begin together, with about the same work, may keep step a thousand times, and lose it when another program gets one of
# the cores.
#
# **Symptom:** now right, now wrong. Nothing crashes: where a key is missing there are zeros, or what an earlier text left. What
# does that do to the numbers? Attention in layer 0, with the newest key right and with zeros in its place:

# %%
from llambda.kernels.attention import attention

trace = {}
fused.forward(fused.new_state(16), ids, trace=trace)
q, k, v = (trace[f"blk.0.{name}"] for name in ("q_rope", "k_rope", "v"))  # [9, heads, head_dim]
keys, values = k.swapaxes(0, 1), v.swapaxes(0, 1)  # [n_kv_heads, 9, head_dim]
stale = keys.copy()
stale[:, -1] = 0
difference = attention(q[-1:], keys, values, 8) - attention(q[-1:], stale, values, 8)
print("off by more than 0.01:", bool(np.abs(difference).max() > 0.01))

# %% [markdown]
# **How to find it.** Lesson 07's method is to look inside: take a trace, compare layer by layer. It shows nothing, and you can
# see why if you count how often a trace enters compiled code:

# %%
with patch.object(Workers, "run_compiled", autospec=True, side_effect=run) as calls:
    fused.forward(fused.new_state(16), ids, trace={})
calls.call_count

# %% [markdown]
# A trace runs the 16 phases *one at a time*, 5 in each layer and the head. At the end of each run all threads are waited for:
# where you look, there is a barrier. So the fault is gone when it is looked at, and that is a finding in itself. What remains:
#
# - one thread instead of two is always right: so it is a matter of threads;
# - the same call a thousand times, compared bit by bit, is what rings the alarm, as in the section *Check*;
# - and then it takes no run at all, but paper: what does each operation read, and who wrote it? That is exercise 11.1.
#
# ## Break it: a stale generation
#
# The second fault is in the barrier itself. Somebody saves an access: a thread reads the generation once, when it begins, and
# not each time it arrives. From the second meeting on it compares with a number of long ago.


# %%
def stale_generation(threads):
    if (yield add("arrived", 1)) == threads - 1:
        yield store("arrived", 0)
        yield add("passed", 1)
    else:
        yield until("passed", lambda now: now != 0)  # the generation when the program began


tally(stale_generation, "AB")

# %% [markdown]
# The first meeting is right. At the second one `passed` is no longer 0, so nobody waits. **Symptom:** the first layer is right,
# and then it is wrong now and then. The opposite mistake is as easy. Here each thread reads the generation, but one line too
# late:


# %%
def late_generation(threads):
    if (yield add("arrived", 1)) == threads - 1:
        yield store("arrived", 0)
        yield add("passed", 1)
    else:
        passed = yield load("passed")  # after arriving
        yield until("passed", lambda now: now != passed)


tally(late_generation, "AB")
columns(endings(late_generation, "AB")[-1])

# %% [markdown]
# Thread 0 arrives. Before it reads `passed`, the other one arrives, is the last, and lets all go. Now thread 0 reads a 1 and
# waits for a 2: for a barrier that cannot be passed without it.
#
# **Symptom:** now and then the program hangs; with a core at 100 % if those who wait spin, and silently if they sleep. **How to
# find it:** read the counters of the program that hangs. Nobody has failed; `arrived` is 1, and nobody is on the way to make it
# 2. Then ask of each thread *which number it waits for, and when it learned of it*. That question finds the first fault, too.
#
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %%
from llambda.course.exercises import engine as check

# %% [markdown]
# ### Exercise 11.1 · The fewest barriers
#
# *code · 15 minutes · difficulty 3 of 5*
#
# Here is a layer as a list of operations: what each one reads and writes. How a thread reads a buffer is `"all"` of it, or its
# `"own"` part, which it wrote itself. It writes its `"own"` part of a buffer that all share, or a `"copy"`: the whole of it,
# into memory that no other thread sees. (A thread's own part of a buffer is the same in all operations, and no operation
# writes a buffer of which it reads all.)

# %%
for name, reads, writes in check.LAYER:
    print(f"{name:<8} reads {reads}, writes {writes}")

# %% [markdown]
# Write `barriers`, for any such list: the places of the barriers, as few as possible. Place 3 is the barrier *before* operation
# 3; operations count from 0. Two things may not happen without a barrier in between: a thread reads all of a buffer to which
# others wrote their parts, and a thread writes its part of a buffer of which others read all. For example, the answer for
#
# ```python
# [("make", {}, {"u": "own"}), ("use", {"u": "all"}, {"v": "own"})]
# ```
#
# is `[1]`. The checker asks for two layers, one behind the other, and for some shorter lists.


# %% tags=["exercise"]
def barriers(operations):
    """The places of the fewest barriers: a list of numbers of operations."""
    ...


# %% tags=["checker"]
check.fewest_barriers(barriers)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Go through the list and keep two sets: what was written in parts since the last barrier, and of what all was read. Put a
# barrier only when the next operation would go wrong without one. What is in the sets behind a barrier?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def barriers(operations):
#     places, read, written = [], set(), set()
#     for i, (_, reads, writes) in enumerate(operations):
#         looks = {buffer for buffer, how in reads.items() if how == "all"}
#         changes = {buffer for buffer, how in writes.items() if how == "own"}
#         if looks & written or changes & read:
#             places.append(i)
#             read, written = set(), set()
#         read |= looks
#         written |= changes
#     return places
# ```
#
# A copy is in no set: it is read whole, but only by the thread that wrote it. So the norm, done by everybody, needs no barrier.
#
# </details>

# %% [markdown]
# ### Exercise 11.2 · A barrier, again and again
#
# *code · 15 minutes · difficulty 4 of 5*
#
# Write a barrier in slow motion that can be used again and again, by any number of threads: nobody goes on before all have
# come, and nobody waits for ever, in *no* order of the steps. It is a generator, like `count_up`, and may use `load`, `store`,
# `add` and `until` with any cells it likes, except those of the test, `"A0"`, `"B1"` and the like. Two cells make it easy. One
# is enough, if you find out what it has to count.


# %% tags=["exercise"]
def wait_for_all(threads):
    """Come, and go on when all `threads` have come."""
    ...


# %% tags=["checker"]
check.meeting(wait_for_all)

# %% [markdown]
# <details><summary>Hint</summary>
#
# What a thread waits for must not be gone again before it looks. With two cells: who reads the generation, and when? With one:
# if the count is never reset, `add` tells each thread how many came before it in the whole life of the barrier. At which count
# is this meeting complete?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def wait_for_all(threads):
#     ticket = yield add("arrived", 1)
#     complete = (ticket // threads + 1) * threads
#     yield until("arrived", lambda count: count >= complete)
# ```
#
# With `==` in place of `>=` it would be wrong: a fast thread may have arrived at the next barrier before a slow one looks. The
# package's barrier uses two cells all the same: threads that wait for `passed` are not disturbed by every arrival.
#
# </details>

# %% [markdown]
# ### Exercise 11.3 · The share at position 2,000
#
# *predict · 6 minutes · difficulty 2 of 5*
#
# `smollm2` lies in a file of 98.4 MB; 96.4 MB of it are weights that a token reads. A position of its float32 cache takes
# 46,080 bytes, in all layers together. A machine reads 40 GB/s. At position 2,000 (so there are 2,000 before it, and itself)
# you measure 188 tokens a second. What share of the bandwidth is used, as a number from 0 to 1 with three digits?

# %% tags=["exercise"]
share_of_bandwidth = ...

# %% tags=["checker"]
check.share(share_of_bandwidth)

# %% [markdown]
# <details><summary>Hint</summary>
#
# How many bytes are read for one token? Two kinds of things are. MB and GB are powers of ten.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# share_of_bandwidth = 188 * (96.4e6 + 2001 * 46_080) / 40e9
# ```
#
# At position 0 the same machine would make nearly twice as many tokens at the same share. Tokens a second without the position
# say little.
#
# </details>

# %% [markdown]
# ## Recap
#
# All guesses that you made, and what came of them, from lesson 00 to here:

# %% tags=["nbval-ignore-output", "core"]
from IPython.display import Markdown

from llambda.course.predictions import table as predictions

outcome("00.ceiling", "the most tokens/s that smollm2 can make here", fastest / 96.4e6)
Markdown(predictions())

# %% [markdown]
# A token is now one call: a table of addresses says where everything lies, threads stay in compiled code, and they meet at a
# barrier wherever one reads all of what others wrote, and nowhere else. A barrier costs a small part of a fork and join, and
# hardly less than sharing a norm would save, so small work is done by every thread for itself. Most of what a token still takes
# is the time that memory needs.
#
# The next lesson needs this engine and its roof. One text cannot go faster than its bytes, but the same bytes can serve many
# texts: **12 · Why do servers love batches?**
#
# **Further reading.**
#
# - John Mellor-Crummey and Michael Scott, *Algorithms for Scalable Synchronization on Shared-Memory Multiprocessors*, ACM
#   Transactions on Computer Systems 9(1), 1991: barriers for hundreds of cores.
# - Maurice Herlihy and Nir Shavit, *The Art of Multiprocessor Programming*, 2008: its chapters on spin locks and on barriers.
# - Hans Boehm and Sarita Adve, *Foundations of the C++ Concurrency Memory Model*, 2008: what an atomic operation promises.
# - Samuel Williams, Andrew Waterman and David Patterson, *Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures*, Communications of the ACM 52(4), 2009.
