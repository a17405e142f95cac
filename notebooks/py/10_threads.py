# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Threads
#
# **What can run at once, and what cannot?**
#
# - **You will build** a pool of threads with a queue, an engine on all cores, a recorder that draws what each thread did
#   during one token, and a scheduler that tries every order in which threads can get into each other's way.
# - **You will be able to** say what Python's lock lets through, cut a matrix so that no thread disturbs another, tell work
#   from waiting, and write a test that no race survives by luck.
# - **You need** a matrix product, and the idea that a model is layers of matrices through which every token passes. The
#   compiled functions that multiply are lessons 08's and 09's; here they are imported.
#
# *75 minutes · difficulty 4 of 5*
#
# In the picture `threads` is lit. So far the engine has run on one core, and your machine has more. Keep a guess ready: how many
# times as fast will it be on all of them?

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("10")

# %% [markdown]
# ## Build: two threads, one lock
#
# A **core** is a piece of hardware that executes instructions, one chain of them. A **thread** is such a chain. A program may
# start several; they share its memory, and the operating system puts them on cores, as many at once as there are. How many
# are yours? (A *logical* core may be half a physical one: lesson 00, and a measurement further down.)

# %% tags=["nbval-ignore-output"]
from llambda.machine import this_machine

machine = this_machine()
print(f"{machine.usable_cores} usable logical cores, on {machine.physical_cores} physical ones")

# %% [markdown]
# Two functions, then. One keeps Python busy; the other calls several functions, each in a thread of its own, and returns when
# all have ended.

# %% tags=["core"]
from functools import partial
from threading import Thread


def count(n):
    i = 0
    while i < n:
        i += 1


def together(*calls):
    """Each call in a thread of its own; return when all have ended."""
    threads = [Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# %% [markdown]
# We count to two million twice: once one after the other, once in two threads. On two cores, what part of the time will the two
# threads need? Half would be 0.5, no gain would be 1.

# %% tags=["core"]
from llambda.course.predictions import outcome, predict

guess = ...
predict("10.python", "time of two threads that count over one after the other", guess)

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.timing import seconds


def gain(call):
    """Time of a call in two threads at once, over that of the same call twice in turn."""
    in_turn = seconds(lambda: [call(), call()])
    return seconds(lambda: together(call, call)) / in_turn


ratio = gain(partial(count, 2_000_000))
outcome("10.python", "time of two threads that count over one after the other", ratio)

# %% [markdown]
# About 1. (If it is far from that, other programs are at work; run the cell again.) The threads took turns. Python's interpreter
# has one lock, the **GIL** (*global interpreter lock*). A thread executes Python only while it holds the lock; every 5
# milliseconds another one may have it. It protects the interpreter's own data, above all the count of references that every
# object carries. (There are builds of Python without it since version 3.13. This course runs on the usual ones.)
#
# But our kernels are not Python. A **kernel** is a function that Numba compiles to machine code (lesson 08). While it runs it
# touches numbers in arrays and no Python object, so it does not need the lock. `nogil=True` tells Numba to let go of it on
# the way in, and to take it back on the way out. The same function, compiled in both ways (each step needs the one before, so
# that the compiler can leave nothing out):

# %% tags=["core"]
import numpy as np
from numba import njit


def scramble(n):
    x = np.int64(1)
    for _ in range(n):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    return x


kernels = {"with the lock": njit(scramble), "without": njit(nogil=True)(scramble)}

# %% tags=["nbval-ignore-output", "core"]
for name, kernel in kernels.items():
    kernel(1)  # compiled now, and not while the clock runs
    print(f"{name:<14} two threads take {gain(partial(kernel, 30_000_000)):.2f} of the time")

# %% [markdown]
# That is the whole condition for the rest of this lesson: **Python takes turns, kernels without the lock run at once.** (With a
# single core nothing can be gained, and both lines say 1.)
#
# A clock convinces nobody on a busy machine. Here is a proof without one. `meet` says *I am here*, and then waits until the other
# thread has said so, too. If only one of two kernels could be inside at a time, neither would ever return. (`atomic_store` and
# `atomic_load` write to memory and read from it at once, where the compiler might keep a number in a register; `yield_core`
# offers the core to another thread, in case there is only one.)

# %%
from llambda.simd.cpu import atomic_load, atomic_store, yield_core


@njit(nogil=True)
def meet(flags, mine, other):
    atomic_store(flags, mine, 1)
    while atomic_load(flags, other) == 0:
        yield_core()


flags = np.zeros(2, np.int64)
together(partial(meet, flags, 0, 1), partial(meet, flags, 1, 0))
print("both were inside at the same time")

# %% [markdown]
# ## Build: threads that stay
#
# `together` starts new threads and ends them. What does that cost, if the work is nothing at all? (`int()` does nothing.)

# %% tags=["nbval-ignore-output"]
cost = seconds(lambda: [together(int) for _ in range(100)]) / 100
print(f"{cost * 1e6:.0f} microseconds to start a thread and to see it end")

# %% [markdown]
# A small matrix is multiplied in less. So we keep threads, and give them work through a queue: a **pool**. A `SimpleQueue` is
# made for that: whoever calls `get` sleeps until somebody has called `put`.

# %% tags=["core"]
from queue import SimpleQueue

queue = SimpleQueue()
queue.put("first")
queue.put("second")
queue.get(), queue.get()

# %% [markdown]
# Here is a pool in twenty lines. Read the class from the bottom. To hand out tasks is to **fork**; to wait until all have ended
# is to **join**. (`daemon=True`: the threads keep no program from ending.)


# %% tags=["core"]
class HandPool:
    def __init__(self, threads):
        self.inbox = SimpleQueue()
        for _ in range(threads):
            Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while (call := self.inbox.get()) is not None:
            function, task, place, results, ended = call
            results[place] = function(task)
            ended.put(place)

    def map(self, function, tasks, patience=None):  # seconds to wait for a task; None: for ever
        results, ended = [None] * len(tasks), SimpleQueue()
        for place, task in enumerate(tasks):
            self.inbox.put((function, task, place, results, ended))  # fork
        for _ in tasks:
            ended.get(timeout=patience)  # join
        return results


# %% tags=["core"]
pool = HandPool(2)
pool.map(lambda n: n * n, range(8))

# %% [markdown]
# Whoever is free takes the next task, and every result goes to the place of its task: so the order is right, whoever was first.
# No two threads write to the same place. Remember that: it is the reason why nothing in this lesson's engine needs a lock.
#
# The finished form is `llambda.threads.Pool`. Each call is an object that keeps its own outcome. Look for what is new: what
# happens to an error, who may claim a call, what an interrupt does.

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.threads import Call, Pool

show(Pool, Call)

# %%
with Pool(2) as finished:
    print("both agree:", finished.map(np.sqrt, range(8)) == pool.map(np.sqrt, range(8)))

# %% [markdown]
# ## Build: a text for each thread
#
# What shall we share out? The simplest cut is between texts. An **engine** is a model ready to run: it only reads its weights, so
# threads may share it. What a text has been so far is kept in a *state*, and each text has one of its own (lesson 06). So
# nothing is written that another thread reads.

# %% tags=["core"]
import llambda

model = llambda.load("tiny", engine="quantized")
prompts = ["The for statement", "The import statement", "A class is", "The first argument"]


def write(prompt):
    return "".join(model.generate(prompt, max_tokens=24, temperature=0))


with Pool(4) as four:
    print("the same texts:", four.map(write, prompts) == [write(prompt) for prompt in prompts])

# %% [markdown]
# Is it faster? Now we want a model that is worth the trouble: `smollm2` if it is on this machine, else `tiny` again. `engine` is
# lesson 09's, on one thread. We count tokens a second, for all texts together.

# %% tags=["nbval-ignore-output"]
from llambda.fetch import KNOWN

name = "smollm2" if KNOWN["smollm2"].is_here else "tiny"
real = llambda.load(name, engine="quantized")
config, engine = real.config, real.engine
start = real.tokenizer.encode("The class statement")


def decode(text):
    state, token = engine.new_state(64), start[-1]
    for _ in range(16):
        token = int(engine.forward(state, [token]).argmax())


with Pool(2) as two:
    in_turn = 32 / seconds(lambda: [decode(text) for text in range(2)], repeats=2)
    at_once = 32 / seconds(lambda: two.map(decode, range(2)), repeats=2)
print(f"{name}, tokens/s: {in_turn:.0f} in turn, {at_once:.0f} with a thread for each text")

# %% [markdown]
# On two free cores it is more, though rarely twice as many: between its kernels each thread needs Python, and there they take
# turns. (With `tiny` it is even less than before, for there Python is nearly all.) And note what it does *not* do: nobody gets
# an answer sooner. It helps a server with many readers (more **throughput**), and not the one who waits (the same
# **latency**). Also, each thread reads all the weights for itself. How one reading can serve many texts is lesson 12.
#
# We want *one* text to come sooner. So we have to cut inside of a token.
#
# ## Build: rows
#
# A token is mostly matrix times vector. Each number of the result is the dot product of *one row* with the vector, and needs no
# other row. So each thread can have some rows. The first idea: divide.

# %% tags=["core"]
rows, threads = 1536, 7
each = rows // threads
[(part * each, (part + 1) * each) for part in range(threads)]

# %% [markdown]
# Look at the last number. Rows 1533 to 1535 are nobody's: 7 times 219 is 1533. The remainder of a division is the first thing
# that gets lost when work is cut. Multiply first, and divide then, and the ends meet:


# %% tags=["core"]
def cut(rows, parts):
    return [(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]


print(cut(rows, threads))

# %% [markdown]
# This is complete, and still not good. Memory does not travel in numbers, but in **cache lines** of 64 bytes, 16 float32 numbers
# each. A core that wants to write a number needs the line to itself: it takes it away from all other cores. If two threads write
# two *different* numbers of one line, the line travels back and forth between them. The result is right, and the time is lost.
# That is **false sharing**, and we measure it below. So parts should end where lines end. `share` cuts like that: its last
# argument is the unit that is never divided.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.threads import cuts
from llambda.threads import share

whole_lines = [share(100, part, 3, 16) for part in range(3)]
cuts(100, {"100 numbers, cut anywhere": cut(100, 3), "cut between cache lines": whole_lines})

# %% [markdown]
# A box with a frame is a cache line, a cell a number. How to cut so is your first exercise, so we do not look inside of `share`
# yet.
#
# Our kernels make it easy. They compute rows in **strips** of 16 or 32 (two registers of rows; lesson 08), which are whole lines
# if the result begins with one. (NumPy's arrays begin at multiples of 16 bytes. What that costs this lesson's engine is a line
# under "claim 3"; lesson 11's engine aligns what it writes to.) `pack` puts a matrix in the order that its kernel reads, `tiled`
# does so with the vector, and `multiply` computes the strips from `first` to `last`, with Python's lock let go.

# %%
from llambda.kernels.matrix import multiply, pack, tiled

matrix = pack(model.weights.layers[0].gate)  # [320, 128]
x = np.random.default_rng(10).normal(size=(1, 128)).astype(np.float32)  # [n, in]
tiles = tiled(x, matrix.coded)
whole = np.zeros((1, matrix.padded_rows), np.float32)  # [n, out]
multiply(matrix, tiles, whole, 0, matrix.strips)

# %%
shared = np.zeros_like(whole)
pool.map(lambda part: multiply(matrix, tiles, shared, *share(matrix.strips, part, 3)), range(3))
print("the same bits:", shared.tobytes() == whole.tobytes())

# %% [markdown]
# ## Build: heads, and the engine
#
# Attention is cut in the same way: the **heads** of a layer do not know of each other (lesson 04), so each thread gets some.
# Lesson 08's engine was written with that in mind. Look where `share_out` is called, and with what: strips of rows in the one
# case, in the other `units`, which for a single token are the heads of keys and values.

# %% tags=["nbval-ignore-output"]
from llambda.engines import QuantizedEngine, VectorizedEngine

show(VectorizedEngine.linear, VectorizedEngine.attention, VectorizedEngine.share_out)

# %% [markdown]
# `work(first, last)` does a part of the work, and `share_out` does all of it in one call. A threaded engine has to replace this one
# method:


# %% tags=["core"]
class OurEngine(QuantizedEngine):
    def __init__(self, config, weights, threads):
        super().__init__(config, weights)
        self.threads, self.pool = threads, HandPool(threads)

    def share_out(self, total, work):
        parts = min(total, self.threads)
        self.pool.map(lambda part: work(*share(total, part, parts)), range(parts))


# %% tags=["nbval-ignore-output"]
from llambda.engines import ThreadedEngine

show(ThreadedEngine)

# %% [markdown]
# Do they agree, with each other and with the engine on one thread? `logits` are the scores of all possible next tokens; we compare
# their bits, after a prompt and after two more tokens.

# %% tags=["core"]
ids = model.tokenizer.encode("The for statement is used")


def bits(engine):
    """The logits after a prompt and two single tokens, as bytes."""
    state = engine.new_state(64)
    return b"".join(engine.forward(state, new).tobytes() for new in (ids, [5], [6]))


ours, finished = (kind(model.config, model.weights, 2) for kind in (OurEngine, ThreadedEngine))
print("the same bits:", bits(ours) == bits(finished) == bits(model.engine))

# %% [markdown]
# <details><summary>In Lisp: threads and a lock</summary>
#
# ```lisp
# (defun map-in-threads (function tasks)              ; fork, then join; bordeaux-threads
#   (mapcar #'bt:join-thread
#           (mapcar (lambda (task) (bt:make-thread (lambda () (funcall function task)))) tasks)))
# (defvar *lock* (bt:make-lock))
# (defvar *sum* 0)
# (defun add (n) (bt:with-lock-held (*lock*) (incf *sum* n)))
# ```
#
# SBCL has no global lock: its threads run at once without further ado. That makes `with-lock-held` all the more necessary,
# and a pool just as much, since to start a thread costs tens of microseconds there, too.
#
# </details>

# %% [markdown]
# ## Check: right, and the same bits
#
# Two different promises. The first is as in every lesson: the engine is *right*. PyTorch computes the same model in float64,
# and each intermediate result may differ by so much as float32 must round. Lesson 04 derives how much: a share of the number's
# size that grows with the root of the additions in a row.

# %%
from llambda.check import additions, compare_engine, tolerances

n = int(additions(model.config, len(ids))["logits"][-1])
allowed = tolerances(model.config, len(ids))["logits"][-1]
print(f"{n} additions in a row; off by a share of {allowed:.1e} at most")


# %%
def right(engine):
    """Whether every intermediate result is as near to PyTorch's as it has to be."""
    return compare_engine(engine, model.config, model.weights, ids).divergence is None


three = ThreadedEngine(model.config, model.weights, 3)
print("right:", right(three))

# %% [markdown]
# The second promise is stronger: **the number of threads changes no bit.** The tolerance is zero. Why can we promise it? A cut
# between rows moves no addition: each dot product is still computed by one thread, from its first column to its last. Only
# *who* computes it changes. Three threads, and seven, which is more than there are heads:

# %% tags=["core"]
by_threads = {n: ThreadedEngine(model.config, model.weights, n) for n in (1, 2, 3, 7)}
same = {n: bits(engine) == bits(model.engine) for n, engine in by_threads.items()}
print("the same bits as with one thread:", same)

# %% [markdown]
# That is not self-evident. There is another way to cut: between *columns*. Each part adds up some columns of every row, and the
# partial sums are added at the end. Here it is, as a variant of lesson 08's simplest engine; in parts, but without threads,
# since the question is only what it computes. `lost` is for a planted mistake: so many partial sums are forgotten.

# %%
from llambda.engines import ScalarEngine


class ByColumns(ScalarEngine):
    parts, lost = 1, 0

    def linear(self, x, weight, bias=None):  # x [n, in], weight [out, in], both float32
        sums = []
        for part in range(self.parts - self.lost):
            first, last = share(x.shape[1], part, self.parts)
            columns = np.ascontiguousarray(x[:, first:last]), weight[:, first:last].copy()
            sums.append(super().linear(*columns))
        return sum(sums)


# %%
columns = ByColumns(model.config, model.weights)
one_part = bits(columns)
for parts in (2, 3, 7):
    columns.parts = parts
    print(f"{parts} parts: right: {right(columns)}, the same bits: {bits(columns) == one_part}")

# %% [markdown]
# All are *right*: PyTorch's tolerance accepts them. None has the same bits, for the additions were put in another order, and sums
# of rounded numbers depend on it. Such an engine answers differently on a machine with more cores. And if partial sums are
# added in the order in which threads finish, it may answer differently on every run, which looks exactly like a race. So: cut
# where nothing is added up.
#
# Does each check notice what it is there for? The one with PyTorch a partial sum that gets lost; the one with bits an order of
# addition that changes.

# %%
columns.parts, columns.lost = 3, 1
print("a lost sum is noticed:", not right(columns))
columns.lost = 0
print("another order of addition is noticed:", bits(columns) != one_part)

# %% [markdown]
# ## Profile: is it faster?
#
# Everything is right. Now the clock. The quantized engine on one thread, then the threaded engine; up to four threads, so that
# the pictures below stay legible. Guess how many times as fast.

# %% tags=["core"]
guess = ...
predict("10.threaded", "speed of the threaded engine over that of one thread", guess)

# %% tags=["nbval-ignore-output", "core"]
from llambda.ladder import measure

threads = min(4, max(2, machine.default_threads))
threaded = ThreadedEngine(config, real.weights, threads)
rates = [measure(each, start, 16, repeats=2).decode_tok_s for each in (engine, threaded)]
print(f"{rates[0]:.0f} tokens/s with one thread, {rates[1]:.0f} with {threads}")
outcome("10.threaded", "speed of the threaded engine over that of one thread", rates[1] / rates[0])

# %% [markdown]
# Look at the last line. Below 1 means: **threads have made it slower.** That is what most machines say. (Is it above 1 on yours?
# Then your cores wake quickly, or one thread alone reads slowly. It is still far from the number of threads, and the question
# is the same: where has the rest gone?)
#
# The suspicion: so many joins. A layer has seven matrices and one attention, and behind the last layer stands the head, one
# matrix more. What does one fork and join cost, if the tasks do nothing? Guess in microseconds (millionths of a second).

# %% tags=["core"]
guess = ...
predict("10.join", "microseconds of a fork and join of nothing", guess)


# %% tags=["nbval-ignore-output", "core"]
def nothing(part):
    return None


with Pool(threads) as idle:
    join = seconds(lambda: [idle.map(nothing, range(threads)) for _ in range(300)]) / 300
outcome("10.join", "microseconds of a fork and join of nothing", join * 1e6)

# %% tags=["nbval-ignore-output", "core"]
count_joins = 8 * config.n_layers + 1
print(f"{count_joins} joins x {join * 1e6:.0f} microseconds = {count_joins * join * 1e3:.1f} ms")
print(f"a token with one thread takes {1e3 / rates[0]:.1f} ms")

# %% [markdown]
# Put the two lines side by side. The first is spent without a single number being multiplied; and of the second, two threads can
# save half at the very most. Besides, this is the lowest price: the threads have just run, and wake quickly.
#
# ## Profile: one token, drawn
#
# A suspicion is no proof. Let us see what each thread did. We wrap the engine's `share_out`, so that each part notes when it began
# and ended, and in which thread: the time stamps are taken *inside of the workers*. (Several
# threads call `parts.append`. That is safe: it is a single step of the interpreter, made under its lock.)

# %% tags=["core"]
from threading import current_thread
from time import perf_counter


def recording(share_out, joins):
    """share_out, which notes for each call the fork, every part's thread and times, the join."""

    def noted(total, work):
        parts = []

        def timed(first, last):
            begin = perf_counter()
            work(first, last)
            parts.append((current_thread().name, begin, perf_counter()))

        fork = perf_counter()
        share_out(total, timed)
        joins.append((fork, parts, perf_counter()))

    return noted


# %% [markdown]
# Twelve tokens are recorded, and we keep the fastest: what disturbs a token only ever makes it slower.

# %% tags=["nbval-ignore-output", "core"]
state, joins, tokens = threaded.new_state(64), [], []
threaded.share_out = recording(threaded.share_out, joins)
for _ in range(12):
    joins.clear()
    begin = perf_counter()
    threaded.forward(state, start[-1:])
    tokens.append((perf_counter() - begin, begin, joins[:]))
del threaded.share_out  # it is as it was
took, begin, token = min(tokens)
assert len(token) == count_joins

# %% [markdown]
# First a closer look at one layer. A row of the picture is a thread: the **caller**, which runs the engine's Python, and the
# workers. Each dotted line is a fork. (Such a picture is called a **Gantt chart**.) Before you read on: how much of it is blue?

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.threads import one_layer

middle = config.n_layers // 2
one_layer(token[8 * middle : 8 * middle + 8])

# %% [markdown]
# - **Blue** is what it is all for: a kernel computes.
# - **Orange** is the price of the fork and the join: a task lies in the queue, a sleeping thread is woken by the operating system,
#   gets Python's lock, and begins. Often one worker has done its part before the other is awake, or even both parts.
# - **Amber** is Python between the matrices: the norm, the rotation, preparing the next vector. One thread does it, all others
#   wait. What cannot be shared out sets a limit for all that can (Amdahl's law).
# - **Grey** is waiting: for the slower part, or for the caller.
#
# In numbers, for the whole token. The first line is the time that the kernels would take if they were shared out perfectly; the
# second is what forks and joins add to that.


# %% tags=["nbval-ignore-output", "core"]
def spent(token, took):
    """Seconds of a token: kernels, ideally shared; what forks and joins add; Python between."""
    kernels = sum(end - begin for _, parts, _ in token for _, begin, end in parts) / threads
    within = sum(joined - fork for fork, _, joined in token)
    return {"kernels": kernels, "fork and join": within - kernels, "Python": took - within}


for what, each in spent(token, took).items():
    print(f"{what:<13} {each * 1e3:6.2f} ms  {each / took:4.0%}")

# %% [markdown]
# ## Profile: the same token without the joins
#
# What would it be like without queue and without Python in between? That is lesson 11, and here is a first look. In its engine a
# token is *one* compiled call. Each thread enters it once, and there the threads wait for each other by watching a number in
# memory. The kernels are those that you have just used; the weights are the same, cut in the same way.
#
# This engine has a clock of its own inside of the compiled code. It adds up, so its bars show how much of each kind there is, and
# not when. What is left is Python before and after the call, in the first thread; in the others, what passes until they are in it.

# %% tags=["nbval-ignore-output", "core"]
from llambda.engines import FusedEngine

fused = FusedEngine(config, real.weights, threads)
state = fused.new_state(64)
clocks = []
for _ in range(16):
    with fused.profile() as clock:
        fused.forward(state, start[-1:])
    clocks.append(clock)
clock = min(clocks, key=lambda each: each.elapsed)  # of the fastest token

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.threads import one_token

one_token(token, begin, begin + took, clock.elapsed, clock.seconds)

# %% [markdown]
# Above, rung 6. Below, rung 7, on the same axis. The blue of both is the same multiplications. Above, it is islands in a sea of
# waiting; below, it is nearly all. (If grey is large below, too, other programs have taken a core. A thread that waits in a
# barrier feels that at once.) So threads are not slow. **What is slow is to ask for them hundreds of times a token.** Keep this
# picture for lesson 11.

# %%
fused.close()
threaded.close()

# %% [markdown]
# ## Profile: claim 1, "more tasks balance better"
#
# 32 rows could be 32 tasks: then nobody waits long for the last one. Let us test it, on a small matrix of 32 rows and on one of
# 4,096, both with 576 columns. `loops.linear` is lesson 08's plain loop, which takes any rows. For the small matrix, how many
# times as long will 32 tasks take as one? (The six ways take turns, and of each we take the median, not the best: how fast a
# sleeping thread wakes is part of the price.)

# %%
guess = ...
predict("10.tasks", "time of 32 rows as 32 tasks over that as one", guess)


# %%
from llambda.kernels import loops


def by_tasks(pool, rows):
    """Seconds of a matrix [rows, 576] times a vector, by the number of tasks."""
    weight, x = np.ones((rows, 576), np.float32), np.ones((1, 576), np.float32)
    out = np.zeros((1, rows), np.float32)

    def run(tasks):
        def part(number):
            first, last = share(rows, number, tasks)
            loops.linear(x, weight[first:last], out[:, first:last])

        pool.map(part, range(tasks))

    ways = {tasks: partial(run, tasks) for tasks in (1, 2, 4, 8, 16, 32)}
    rounds = [[seconds(way, repeats=1) for way in ways.values()] for _ in range(50)]
    return dict(zip(ways, np.median(rounds, axis=0), strict=True))


# %% tags=["nbval-ignore-output"]
from llambda.course.figures import threads as figures

with Pool(threads) as small_pool:
    tasks = {f"{rows:,} rows": by_tasks(small_pool, rows) for rows in (32, 4096)}
outcome(
    "10.tasks",
    "time of 32 rows as 32 tasks over that as one",
    tasks["32 rows"][32] / tasks["32 rows"][1],
)
figures.by_tasks(tasks)

# %% [markdown]
# For the small matrix a second task gains nothing or loses, and with more the line rises: each task costs microseconds for the
# queue, and a row takes less than one. For the large matrix it falls until there is a task for each thread, and then it is nearly
# flat: there the price of a few more tasks is small beside the work. **The claim holds where a task is long against the cost of handing it over**, and a task should be a few
# times that. In numbers that is your third exercise.
#
# ## Profile: claim 2, "a thread for every logical core"
#
# Three kinds of work, each done by 1, 2, 4 ... threads, up to four times as many as there are logical cores. Two you know from
# lesson 00: to multiply in registers, and to read memory. In the third, each thread computes for some 20 microseconds and then
# waits until all others have done so, over and over, as the threads of an engine must. (`barrier` is the waiting, and
# lesson 11 builds it.)

# %%
from llambda.barrier import barrier, new_control

compute = kernels["without"]


@njit(nogil=True)
def in_step(control, threads, rounds):
    x = 0
    for _ in range(rounds):
        x ^= compute(10_000)
        barrier(control, threads)
    return x


def meetings(threads, rounds=500):
    """Rounds a second of so many threads, all of them together."""
    control = new_control(threads)
    calls = [partial(in_step, control, threads, rounds)] * threads
    return threads * rounds / seconds(lambda: together(*calls), 3)


# %% tags=["nbval-ignore-output"]
from llambda.probe import fma_peak, read_bandwidth

logical = machine.usable_cores
most = min(4 * logical, logical + 64)
counts = sorted({1, 2, machine.default_threads, logical, 2 * logical, most})
meetings(1, 1)  # compiled now
curves = {
    "multiply in registers": {n: fma_peak(n, repeats=3) for n in counts},
    "read memory": {n: read_bandwidth(n, repeats=3) for n in counts},
    "compute, meet, compute, meet": {n: meetings(n) for n in counts},
}
figures.by_threads(curves, machine.default_threads, logical)

# %% [markdown]
# Look at the two lines of independent work first. They rise up to the physical cores (memory often less far). Are there more
# logical cores than physical ones on your machine? Then see whether anything is gained between the two orange lines: two threads
# on one core share its multipliers, and a kernel that keeps these busy leaves nothing over. (Some machines, above all rented
# virtual ones, call every half of a core a physical one. The line tells the truth: if two threads multiply no faster than one,
# they sit on one core.) Beyond the cores both lines are flat: threads take turns, and no work is lost.
#
# Now the third line. Beyond the cores it *falls*. Each meeting waits for the last thread, and that one may have no core just now,
# until one of those that wait goes to sleep and leaves its own. This is **oversubscription**: more threads than cores, of which
# each needs all others. An engine is of this kind. So llambda starts a thread for each physical core that it may use, and none
# more. If a library below you starts threads of its own, it adds up: BLAS, the library under NumPy's matrix product, is held to
# one thread in our engines.
#
# ## Profile: claim 3, "two numbers that only one thread writes do not disturb"
#
# A kernel that adds 1 over and over, and writes to memory every time, since that is what is to be tested. Two threads, each with
# a counter of its own: first side by side in one cache line, then 16 numbers (128 bytes) apart. (Two lines, not one: some
# processors fetch lines in pairs.)


# %% tags=["core"]
@njit(nogil=True)
def add(counters, at, n):
    """counters[at] += 1, n times: it reads, adds and writes, in this order."""
    for _ in range(n):
        atomic_store(counters, at, atomic_load(counters, at) + 1)


counters = np.zeros(32, np.int64)
add(counters, 0, 1)  # compiled now


# %% tags=["nbval-ignore-output"]
def nanoseconds(*places):
    """An addition, when a thread each adds to the counters at these places."""
    calls = [partial(add, counters, at, 2_000_000) for at in places]
    return seconds(lambda: together(*calls), repeats=3) / 2_000_000 * 1e9


for name, places in {"alone": (0,), "in one line": (0, 1), "far apart": (0, 16)}.items():
    print(f"{name:<12} {nanoseconds(*places):5.1f} ns an addition")

# %% [markdown]
# Compare the last line with the first: far apart, the second thread costs nothing. In one line each addition takes several times
# as long, although nobody reads the other's number, and the results are right in all three cases. The two threads wait for the
# line, which needs tens of nanoseconds from one core to the other. (If "in one line" costs about twice "alone" on your machine,
# and "far apart" does, too, the threads have taken turns on one core: other programs are at work, or there is no second core. Run
# the cell again. If "in one line" stays as cheap as "far apart", look at the picture of claim 2: where two threads multiply no
# faster than one, they sit on two halves of one core, which share its nearest cache.)
#
# In our engine each number of `out` is written once, so a shared line at a cut would cost a few hundred nanoseconds a matrix.
# Where it really hurts is in counters and partial sums that are written in a loop. `llambda.barrier` keeps each of its
# counters on two lines of its own.
#
# ## Profile: claim 4, "a lock makes it safe"
#
# It does. A **lock** can be held by one thread at a time, and all others wait. So what matters is how long it is held. 16 tasks
# compute something, and add it to one sum: once all of it under the lock, once only the addition.

# %%
from threading import Lock

lock, total = Lock(), [0]


def all_locked(task):
    with lock:
        total[0] += int(compute(200_000)) & 1


def sum_locked(task):
    mine = int(compute(200_000)) & 1
    with lock:
        total[0] += mine


# %% tags=["nbval-ignore-output"]
with Pool(threads) as locked_pool:
    for name, work in {"all of it": all_locked, "the addition": sum_locked}.items():
        taken = seconds(partial(locked_pool.map, work, range(16)))
        print(f"under the lock {name:<13} {taken * 1e3:5.1f} ms")
print(f"one thread, no lock         {16 * seconds(partial(compute, 200_000)) * 1e3:5.1f} ms")

# %% [markdown]
# With everything under the lock, many threads are one thread and a queue. That is **contention**. Nothing is wrong, no result
# and no line of code; it is only slow, and a profile shows threads that wait in `acquire`. The best lock is the one that you do not
# need: our parts write to places of their own, and only the join brings them together.
#
# ## Profile: the ladder, and the roof
#
# The ladder so far, with all cores that llambda would use. The newest rung stands below the one before, or not much above.
# We keep it. It is right, it shows what is missing, and for a large model the same code is faster: its matrices take
# milliseconds, and a join still costs microseconds.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.progress import ladder_so_far

_ = ladder_so_far("threaded")

# %% [markdown]
# And the roof of lesson 07: how much of what memory or arithmetic allows does each rung use? Quantized and threaded stand on one
# vertical line, since they do as many operations for each byte. But the threaded rung has all cores, and so a higher roof. Compare
# the two shares: has the rung risen as much as its roof?

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.roofs import roof_so_far

places = roof_so_far("threaded")
print(f"threaded reaches {places['threaded'].share:.1%} of the roof of all cores")

# %% [markdown]
# ## Break it: wrong only sometimes
#
# Until now no two threads wrote to the same place. Let us do it. `counted += 1` is three steps: read, add, write. If two threads
# read the same number before either writes, one addition is lost. That is a **race**: the result depends on who comes first.
# Eight threads, 100,000 additions each. How many get lost?

# %%
import sys

counted = 0


def plain(n):
    global counted
    for _ in range(n):
        counted += 1


def lost(work, n=100_000, threads=8):
    """Additions that got lost, with threads that take turns as often as Python can."""
    global counted
    counted, interval = 0, sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # seconds, instead of 0.005
    together(*[partial(work, n)] * threads)
    sys.setswitchinterval(interval)
    return threads * n - counted


# %% tags=["nbval-ignore-output"]
print(f"{lost(plain)} of 800,000 lost")

# %% [markdown]
# None, though they took turns as often as they could. Why? Look at the interpreter's own instructions for the loop:

# %% tags=["nbval-ignore-output"]
import dis

print(*(step.opname for step in dis.get_instructions(plain)))

# %% [markdown]
# Between the last `LOAD_GLOBAL` and `STORE_GLOBAL` stands only an addition. While it runs such code, CPython asks whether another
# thread wants the lock at two kinds of places: at a jump back (`JUMP_BACKWARD`), and where a function is called. None lies between.
# So the three steps are never divided. That is luck, and no promise of the language. Put a call in between, and it is over:


# %% tags=["nbval-ignore-output"]
def one():
    return 1


def with_a_call(n):
    global counted
    for _ in range(n):
        counted += one()


print(f"{lost(with_a_call):,} of 800,000 lost")

# %% [markdown]
# The race had been there all the time. Somebody moves an expression into a function, a clean change, and it shows.
#
# In a kernel without the lock there is no such luck. Two threads add to the *same* counter, and between two additions each does
# something else for half a microsecond, as real programs do. We try it with more and more additions: in how many of 20 runs is
# something lost?

# %% tags=["core"]
something_else = kernels["without"]


@njit(nogil=True)
def add_now_and_then(counters, at, n):
    x = 0
    for _ in range(n):
        x ^= something_else(300)
        atomic_store(counters, at, atomic_load(counters, at) + 1)
    return x


add_now_and_then(counters, 0, 1)  # compiled now

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.threads import luck


def goes_wrong(n):
    counters[0] = 0
    together(*[partial(add_now_and_then, counters, 0, n)] * 2)
    return counters[0] < 2 * n


amounts = 300, 1_000, 3_000, 5_000, 7_000, 10_000, 30_000
luck({n: np.mean([goes_wrong(n) for _ in range(20)]) for n in amounts})

# %% [markdown]
# Look at the left end. With few additions the first thread is done before the second has begun, or both take turns on one core,
# and nothing goes wrong. A test that adds 300 times is green. Further right chance decides: run the cell again, and the bars
# change. So a test may be green a thousand times, and then, on a busy day in production, it is not. **A race is wrong only
# sometimes; so a run that went well proves nothing.** (On a single core, or beside other programs, you may see few or no losses
# at all. That makes it worse, not better.)
#
# The processor has a remedy: an addition that nobody can divide, an **atomic** one.

# %%
from llambda.simd.cpu import atomic_add


@njit(nogil=True)
def add_atomically(counters, at, n):
    for _ in range(n):
        atomic_add(counters, at, 1)


counters[0] = 0
together(*[partial(add_atomically, counters, 0, 1_000_000)] * 2)
print("exact:", counters[0] == 2_000_000)

# %% [markdown]
# ## Break it: all orders
#
# If luck hides races, take luck away. We write tasks not as threads, but as generators: a **task** yields before every access to
# what is shared. There, and only there, another task may come in between. What lies between two yields is a **step**. A
# scheduler, which is ours, decides whose turn it is.


# %% tags=["core"]
def two_adders():
    memory = {"counter": 0}

    def add():
        yield
        read = memory["counter"]
        yield
        memory["counter"] = read + 1

    return [add(), add()], lambda: memory["counter"]  # the tasks, and what comes out in the end


# %% [markdown]
# Each task has two steps: read, write. Call the tasks A and B. The steps of each stay in their order, so there are six orders:
# AABB, ABAB, ABBA, BAAB, BABA, BBAA. How many of them give 2?

# %% tags=["core"]
guess = ...
predict("10.orders", "of 6 orders, those that count to 2", guess)

# %% [markdown]
# Now the scheduler. It runs the tasks to the end in some order, and notes at every step which other task could have had the turn.
# Each of those orders is run later, from the beginning and with fresh tasks: `order` says whose turn it is, as far as it goes. A
# task may also yield a *function*: then it can go on only when that gives True. We need that for locks. If tasks are left and
# none can go on, the outcome is `None`: they are stuck.

# %% tags=["core"]
from itertools import count as count_up

ENDED = "ended"


def every_order(make):
    unexplored = [[]]
    while unexplored:
        order = unexplored.pop()
        tasks, final = make()
        at = [next(task, ENDED) for task in tasks]  # run to the first yield: nothing shared so far
        for turn in count_up():
            free = [i for i, gate in enumerate(at) if gate != ENDED and (gate is None or gate())]
            if not free:
                break
            if turn == len(order):  # new ground
                unexplored += [[*order, other] for other in free[1:]]
                order.append(free[0])
            at[order[turn]] = next(tasks[order[turn]], ENDED)
        yield order, final() if at == [ENDED] * len(at) else None


# %% tags=["core"]
for order, result in every_order(two_adders):
    print("".join("AB"[i] for i in order), result)

# %% tags=["core"]
found = [result for _, result in every_order(two_adders)]
outcome("10.orders", "of 6 orders, those that count to 2", found.count(2))

# %% [markdown]
# Four of six are wrong, in every run, on every machine, also on one with a single core. And the order is printed, so that you can
# go through the fault step by step. In real life the four are rare, since the two steps are a nanosecond apart; here each
# order counts once. (There are many orders: two tasks of ten steps have 184,756. So such tests are small.)
#
# Now with a lock. `acquire` waits until it is free, and takes it in the same step. (To let go of it disturbs nobody, and needs no
# step of its own.)


# %% tags=["core"]
class StepLock:
    taken = False

    def acquire(self):
        yield lambda: not self.taken
        self.taken = True

    def release(self):
        self.taken = False


# %% tags=["core"]
def two_locked_adders():
    memory, lock = {"counter": 0}, StepLock()

    def add():
        yield from lock.acquire()
        read = memory["counter"]
        yield
        memory["counter"] = read + 1
        lock.release()

    return [add(), add()], lambda: memory["counter"]


print([result for _, result in every_order(two_locked_adders)])

# %% [markdown]
# All orders that are left give 2. This is no sample. It is a proof, for two tasks and as far as our yields stand where real
# threads can be divided. (What it does not see: processors may let other cores see two writes in another order than they were
# made. Atomic operations and locks rule that out, and our barrier is made of those.)
#
# It finds more than wrong numbers. Two tasks need the same two locks, and take them in opposite order:


# %%
def opposite():
    one, other = StepLock(), StepLock()

    def task(first, second):
        yield from first.acquire()
        yield from second.acquire()
        second.release()
        first.release()

    return [task(one, other), task(other, one)], lambda: "done"


print([result for _, result in every_order(opposite)])

# %% [markdown]
# Where it says `None`, each task holds the lock that the other one waits for: a **deadlock**. In a real program it waits for
# ever, rarely, and without a message.
#
# The finished form of `every_order` stands beside the checkers of this lesson's exercises. It only adds limits: a million orders
# help nobody.

# %% tags=["nbval-ignore-output"]
from llambda.course.exercises import threads as check

show(check.every_order)

# %%
print("both agree:", list(check.every_order(two_adders)) == list(every_order(two_adders)))

# %% [markdown]
# ## Break it: one source of chance for two texts
#
# Two texts are written at once, and both draw their random numbers from one generator. NumPy's generator has a lock inside: no
# number is drawn twice, none is lost. Not a race, then? The first text draws two numbers, and so does the second. How many
# different first texts are there, over all orders?


# %%
def two_texts(sources):
    def make():
        texts = [], []

        def write(text, source):
            for _ in range(2):
                yield
                text.append(source.random())

        tasks = [write(*pair) for pair in zip(texts, sources(), strict=True)]
        return tasks, lambda: tuple(texts[0])

    return make


# %%
def versions(sources):
    return len({text for _, text in every_order(two_texts(sources))})


print("one generator for both:", versions(lambda: [np.random.default_rng(7)] * 2))
print("one for each:", versions(lambda: [np.random.default_rng(7), np.random.default_rng(8)]))

# %% [markdown]
# **Symptom:** same seed, same prompt, another text, but only when several are written at once. **How to find it:** one text alone is
# stable, two are not. **The guard:** what is drawn from belongs to one text, like its state. In llambda each generation has a
# generator of its own, made from its seed.
#
# ## Break it: a worker that fails in silence
#
# What if a task raises an error in our `HandPool`? The error ends the *thread*, and Python reports it where threads report:
# on the terminal, if somebody looks there. We catch the report in a list, to see it here. And the caller? It waits for a result
# that never comes; our `patience` of half a second ends that.

# %%
from queue import Empty
from unittest.mock import patch

reports = []
with patch("threading.excepthook", reports.append):
    try:
        HandPool(2).map(lambda n: 1 // n, [2, 0, 1], patience=0.5)
    except Empty:
        print("the caller would wait for ever")
print("reported elsewhere:", [report.exc_type.__name__ for report in reports])

# %% [markdown]
# **Symptom:** a program that stands still, without an error. The other way to do it wrong is a `try` around the task that forgets
# the error: then the result is `None`, or memory that nobody wrote, and something fails later at another place. **How to find
# it:** log the begin and the end of each task, and look which has only one of them. **The guard:** a worker catches everything,
# keeps it with the call, and the *caller* raises it when it joins. `Pool` does so, and makes all other calls nevertheless:

# %%
ended = []


def divide(n):
    result = 1 // n
    ended.append(n)
    return result


with Pool(2) as careful:
    try:
        careful.map(divide, [2, 0, 1])
    except ZeroDivisionError as error:
        print("the caller gets:", error)
print("and the other tasks have ended:", sorted(ended))

# %% [markdown]
# ## Break it: memory that goes too soon
#
# Compiled code gets *addresses* (lesson 01), and an address keeps nothing alive. On one thread that is rarely a problem: the
# caller holds the array until the call is over. With threads, a function may return while another thread still reads. Here it
# hands over an array, or only its address, and returns at once. A weak reference tells us whether the array still exists, without
# holding it.

# %%
import weakref


def hand_over(inbox, what):
    numbers = np.arange(1000)
    inbox.put(what(numbers))
    return weakref.ref(numbers)  # and the name `numbers` ends here


inbox = SimpleQueue()
by_address = hand_over(inbox, lambda numbers: numbers.ctypes.data)
as_array = hand_over(inbox, lambda numbers: numbers)
print("before a thread has read: by address", by_address() is not None, end=", ")
print("as an array", as_array() is not None)

# %% [markdown]
# In the first case the memory is already free when the thread begins to read it. **Symptom:** now right (nobody has used the memory
# again yet), now garbage, now a crash, and never in the debugger. It looks like a race between kernels, and none of the kernels is
# at fault. **The guard:** whoever forks keeps hold of the owner until the join; one says the buffer is **pinned**. A `Call` holds
# its function and its argument, and so everything these refer to. After the call a thread lets go, so that an idle pool keeps
# nothing alive:

# %%
address, array = inbox.get(), inbox.get()
print("while the thread has it:", as_array() is not None)
del array
print("afterwards:", as_array() is not None)

# %% [markdown]
# <details><summary>In Lisp: pinned buffers, an atomic counter</summary>
#
# ```lisp
# (defun multiply-part (weights x out first last)            ; what a thread runs, in SBCL
#   (declare (type (simple-array single-float (*)) weights x out))
#   (sb-sys:with-pinned-objects (weights x out)
#     (multiply-rows (sb-sys:vector-sap weights) (sb-sys:vector-sap x)
#                    (sb-sys:vector-sap out) first last)))
# (defstruct counter (value 0 :type sb-ext:word))
# (defun take-number (counter) (sb-ext:atomic-incf (counter-value counter)))
# ```
#
# In Lisp the danger is greater: the collector does not only free what nobody holds, it also *moves* what is held, and that while
# another thread reads it. `with-pinned-objects` forbids both for as long as the block runs, in each thread that needs it.
# `atomic-incf` is the processor's undivided addition, and returns the value from before.
#
# </details>

# %% [markdown]
# ## Break it: what to look for
#
# The symptom table of lesson 04 once more, with what threads add.
#
# | symptom | look first at |
# |---|---|
# | slow | no SIMD; **tasks that are too small, contention, oversubscription, a shared line** |
# | now right, now wrong | **a race, a shared source of chance, a buffer that went too soon**, order of addition |
# | right, but other last digits with more threads | **order of addition: a cut through a sum** |
# | stands still | **a worker that failed in silence, a deadlock** |
#
# The method comes first: run it with one thread. If that is stable, suspect what is shared. If not, threads are not the cause.
#
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %% [markdown]
# ### Exercise 10.1 · Whole lines
#
# *code · 10 minutes · difficulty 2 of 5*
#
# Write `partition`. A product has `rows` results of 4 bytes, in memory one behind the other from the beginning of a cache line
# on, so that 16 of them fill a line. Return a list of pairs `(first, last)`, one for each thread and in order: thread 0 computes
# the rows `first`, `first + 1`, ..., `last - 1` of the first pair, and so on.
#
# - Every row is in exactly one part.
# - No cache line is written by two threads. (The last line may be shorter than 16.)
# - The parts are even: in lines, they differ by at most one. Where there are fewer lines than threads, some parts are empty,
#   `first == last`.


# %% tags=["exercise"]
def partition(rows, threads):
    """[(first, last), ...], a pair for each thread."""
    ...


# %% tags=["checker"]
check.partition(partition)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Share out lines with the formula of `cut`, then turn lines into rows. How many lines are there, if the last one may be shorter?
# And where does the last part end then?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def partition(rows, threads):
#     lines = -(-rows // 16)
#     ends = [min(lines * part // threads * 16, rows) for part in range(threads + 1)]
#     return list(zip(ends[:-1], ends[1:]))
# ```
#
# `-(-a // b)` divides and rounds up. Because every part begins where the one before ends, nothing can be lost or doubled: that is
# worth more than a test. Now you may look at `share`.
#
# </details>

# %% [markdown]
# ### Exercise 10.2 · A test that no race survives
#
# *code · 20 minutes · difficulty 4 of 5*
#
# There are classes whose objects hand out numbers. `numbers = kind(n)` makes an object of the class `kind`. Its method `take` gives the
# numbers from 0 to n - 1, each once, in any order; then `None`, as often as one asks. Several tasks may use one object. `take` is
# written for our scheduler, so a task calls it with `number = yield from numbers.take()`.
#
# There are nine such classes. Three are right, and each of the other six has a race. Write the test: `test(kind)` returns `True` if
# the class is right and `False` if not. Use `check.every_order(make)` from above: `make()` returns a list of fresh tasks and a
# function that gives the outcome, and for each order you get a pair: the order, and the outcome (`None` if tasks are stuck).
#
# Think about what a user of this class may rely on, and about nothing else: a test that rejects correct code is as bad as one
# that lets a race through. Few tasks and small n do; more than 20,000 orders are refused.


# %% tags=["exercise"]
def test(kind):
    """Whether no order of steps makes this class go wrong."""
    ...


# %% tags=["checker"]
check.test(test)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `make` makes the object, a list for all numbers taken, and two workers. A worker is a generator: it takes numbers until it gets
# `None`, and puts each into the list. What must the list be in the end, whatever the order? And what is the outcome when workers
# are stuck?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def test(kind):
#     def make():
#         numbers, taken = kind(2), []
#
#         def worker():
#             while (number := (yield from numbers.take())) is not None:
#                 taken.append(number)
#
#         return [worker(), worker()], lambda: sorted(taken)
#
#     return all(outcome == [0, 1] for _, outcome in check.every_order(make))
# ```
#
# One of the six survives with a single number: it needs a second call that overwrites what the first has not fetched yet. Another
# one needs the end, a third shows itself only by standing still. So the *scenario* is as much a part of a test as the comparison.
#
# </details>

# %% [markdown]
# ### Exercise 10.3 · Joins, and what is worth one
#
# *predict · 8 minutes · difficulty 3 of 5*
#
# `smollm2` has 30 layers with seven matrices each (q, k, v, o, gate, up, down), and the head. A machine has 8 logical cores on 4
# physical ones. One thread computes a row in 25 nanoseconds. Four threads on four cores are four times as fast; two threads on
# the same core are together as fast as one. A fork and join costs 36 microseconds, for any number of threads.
#
# - `joins`: how often a token forks and joins, if it does so for each *matrix* (attention left aside)
# - `parts`: into how many parts a matrix is best cut on this machine
# - `rows`: how many rows a matrix must have at least, so that one cut into so many parts is done as soon as one computed by one
#   thread without any join (within 1 %)

# %% tags=["exercise"]
worth = {"joins": ..., "parts": ..., "rows": ...}

# %% tags=["checker"]
check.joins(worth)

# %% [markdown]
# <details><summary>Hint</summary>
#
# For `rows`, write down both times for r rows: one thread's, and that of a part plus the join. Where are they equal?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# worth = {"joins": 30 * 7 + 1, "parts": 4, "rows": 36e-6 / (25e-9 * (1 - 1 / 4))}
# ```
#
# r x 25 ns = r / 4 x 25 ns + 36 microseconds. Compare the result with the rows of the matrices: 576 for q, o and down, 192 for k
# and v, 1,536 for gate and up, 49,152 for the head.
#
# </details>

# %% [markdown]
# ### Exercise 10.4 · Four traces
#
# *diagnose · 6 minutes · difficulty 2 of 5*
#
# Four recordings of programs with threads. Name the cause of each: `"race"`, `"contention"`, `"order of addition"`,
# `"lost exception"` or `"oversubscription"`.

# %%
for name, text in check.TRACES.items():
    print(f"{name}: {text}\n")

# %% tags=["exercise"]
causes = {"A": ..., "B": ..., "C": ..., "D": ...}

# %% tags=["checker"]
check.traces(causes)

# %% [markdown]
# <details><summary>Hint</summary>
#
# For each: is it wrong, or only slow? If it is wrong: in every run, or now and then? And which task has begun and never ended?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# causes = {
#     "A": "contention",
#     "B": "lost exception",
#     "C": "race",
#     "D": "order of addition",
# }
# ```
#
# Only C is a race. To call everything that threads do a race is the surest way not to find it.
#
# </details>

# %% [markdown]
# ## Recap
#
# Python takes turns, and kernels that let go of its lock run at once; rows and heads can be cut so that no thread writes where
# another one reads, and then neither locks are needed nor does a single bit change. A fork and join through a queue costs as much as
# a small matrix, and a token has hundreds of those: so threads first make it slower. What is shared goes wrong only sometimes, and
# therefore is tested over all orders, not over many runs.
#
# The next lesson needs the Gantt chart, with its orange and its grey. It keeps the threads inside of compiled code for a whole
# token: **11 · What is left between you and the limit?**
#
# **Further reading.**
#
# - Leslie Lamport, *How to Make a Multiprocessor Computer That Correctly Executes Multiprocess Programs*, 1979: what "an order of
#   steps" is.
# - Maurice Herlihy and Nir Shavit, *The Art of Multiprocessor Programming*, 2008: locks, atomics, and what can be built of them.
# - Patrice Godefroid, *Model Checking for Programming Languages using VeriSoft*, 1997: to run a program in all orders, without
#   keeping its states.
# - Madanlal Musuvathi and others, *Finding and Reproducing Heisenbugs in Concurrent Programs*, 2008: the same for large programs.
# - Gene Amdahl, *Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities*, 1967.
# - Ulrich Drepper, *What Every Programmer Should Know About Memory*, 2007: cache lines, and how cores take them from each other.
