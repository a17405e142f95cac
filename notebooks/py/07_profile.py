# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · Profile
#
# **Where does the time go?**
#
# - **You will build** a profiler: spans that time the parts of a program, a ledger of what each part has to do, and the
#   roof that says how fast it could be done.
# - **You will be able to** say which part of a program is worth improving, and how much faster the whole can get at most,
#   before you improve anything.
# - **You need** a matrix product, and the idea that a model is a stack of *layers* through which every token passes. The
#   engine of lesson 06 is imported; what you need to know of it is explained.
#
# *60 minutes · difficulty 3 of 5*
#
# The second of the four steps begins, and it is a step of its own: calibrate. Nothing gets faster in this lesson.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("07")

# %% [markdown]
# ## Build: a gap
#
# A model writes text piece by piece; a piece is a **token**. Lesson 06 left us with an engine that writes correctly and
# does not slow down: `cached`, the second rung of the ladder that this course climbs. Here it is under lesson 00's
# **ceiling**, the most tokens a second that this machine could make if all its cores did nothing but read the model's
# numbers. (The model is `smollm2` if it is here, else `tiny`. What earlier lessons measured is taken from them, the rest is
# measured now.)

# %% tags=["nbval-ignore-output"]
from llambda.course.progress import ladder_so_far

so_far = ladder_so_far("cached")

# %% [markdown]
# Where is the rest? Ask three people and get three answers. Python is slow. There are too many multiplications. Memory is
# slow. Each of the three would now spend a week on something else, and at most one of these weeks is well spent. So we do
# not ask people, we ask the program. It takes three questions:
#
# 1. How long does each part *take*?
# 2. How much does each part have to *do*?
# 3. How fast *could* that be done here?
#
# ## Build: a stopwatch goes wrong
#
# The first question sounds simple: look at the clock before and after. We begin with `tiny`, the small model that ships
# with this course. An **engine** is a model ready to run; a **state** is one text in it; `forward` reads a token and
# answers with a score for every possible next one. Here are nine tokens, and the time that each takes:

# %%
from time import perf_counter

import numpy as np

import llambda

model = llambda.load("tiny", engine="cached")
engine, config = model.engine, model.config
ids = model.tokenizer.encode("The for statement is used to iterate")
len(ids)


# %%
def stopwatch(work):
    """Seconds of one call."""
    begin = perf_counter()
    work()
    return perf_counter() - begin


# %% tags=["nbval-ignore-output"]
state = engine.new_state(64)
times = [stopwatch(lambda token=token: engine.forward(state, [token])) for token in ids]
print("milliseconds:", *(f"{1000 * each:.2f}" for each in times))

# %% [markdown]
# Nine times almost the same work. Look at the first number. Which one is *the* time of a token?
#
# The first call of anything pays for what happens once. Here it looks for NumPy's matrix library, and brings weights and
# code into the caches. One such cost surprises everybody, so we take it apart. How long does it take to get 64 MiB of
# memory, to fill it, and to fill it again?

# %% tags=["nbval-ignore-output"]
arrays = []
asked = stopwatch(lambda: arrays.append(np.empty(2**24, np.float32)))
once = stopwatch(lambda: arrays[0].fill(0))
twice = stopwatch(lambda: arrays[0].fill(0))
print(f"to get {1e3 * asked:.2f} ms, to fill {1e3 * once:.1f} ms, again {1e3 * twice:.1f} ms")

# %% [markdown]
# To get it costs next to nothing, because you get nothing: an address and a promise. Memory is handed out in **pages**,
# mostly of 4 KiB, each when it is touched for the first time. The processor stops (a **page fault**), the system finds a
# page, wipes it and goes on. So the first fill measures the operating system, too. A model's file comes into memory in the
# same way (lesson 02), and there the first touch may even wait for a disk.
#
# After the first call the numbers still differ. Other programs run, and a warm processor turns its clock down. All of that
# makes a run *slower* than it could be, so there are two honest numbers: the **best** of several runs says what the code can
# do, the **median** what it usually does. The average is neither: one hiccup moves it. And what is repeated must be the same
# work, so each run begins its text anew:


# %% tags=["nbval-ignore-output"]
def first_token():
    state.truncate(0)
    engine.forward(state, ids[:1])


times = sorted(stopwatch(first_token) for _ in range(60))
best, median, mean = times[0], times[30], np.mean(times)
print(f"best {1e3 * best:.2f} ms, median {1e3 * median:.2f} ms, average {1e3 * mean:.2f} ms")

# %% [markdown]
# **First rule:** warm up, then measure, and more than once. (Is the first call slow and does it matter to your users? Then
# measure it too, by itself, under its own name.)
#
# ## Build: a span
#
# A stopwatch times one call. We want the parts of a program, and parts have parts. A **span** is a named part, from a begin
# to an end. To see what a profiler really does, we take a clock that we move ourselves: time passes only when it is told
# to.


# %%
class Clock:
    """Time that passes when it is told to."""

    now = 0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


# %% [markdown]
# And a token that takes 8 seconds. It does something for a second, then attention for 3 (the last of them in a softmax),
# then a matrix product for 4. `span` comes from outside, so that we can try several.


# %%
def token(span):
    with span("token"):
        clock.wait(1)
        with span("attention"):
            clock.wait(2)
            with span("softmax"):
                clock.wait(1)
        with span("matrix"):
            clock.wait(4)


# %% tags=["nbval-ignore-output"]
from llambda.course.figures.profile import timeline

timeline([
    ("token", 0, 8), ("token/attention", 1, 4), ("token/attention/softmax", 3, 4),
    ("token/matrix", 4, 8),
])  # fmt: skip

# %% [markdown]
# The naive profiler: one stopwatch for each name. `contextmanager` makes a `with` block of a function: what stands before
# `yield` happens at the beginning of the block, what stands behind it at the end.

# %%
from contextlib import contextmanager


@contextmanager
def span(name):
    begin = clock()
    yield
    spent[name] = spent.get(name, 0) + clock() - begin


# %%
clock, spent = Clock(), {}
token(span)
print(spent)
print(f"together {sum(spent.values())}, and {clock.now} have passed")

# %% [markdown]
# 16 seconds in a token of 8. The second of softmax is counted three times: as softmax, inside attention, and inside token.
# If you now print percentages of 16, they add up to 100, look fine, and are all wrong.
#
# Every span has two times. **Inclusive** is from begin to end. **Own** is that, less the spans directly inside it. Own
# times add up. So each span must tell the one around it how long it took, and to know which one that is, we keep the
# **path**: the names of all spans that are open now.


# %%
class Profile:
    def __init__(self, clock=perf_counter):
        self.clock, self.path = clock, []
        self.seconds, self.inside = {}, {}  # inclusive; of that, in spans directly inside

    @contextmanager
    def span(self, name):
        outer = "/".join(self.path)
        self.path.append(name)
        path, begin = "/".join(self.path), self.clock()
        try:
            yield
        finally:
            took = self.clock() - begin
            self.path.pop()
            self.seconds[path] = self.seconds.get(path, 0) + took
            self.inside[outer] = self.inside.get(outer, 0) + took

    def own(self):
        return {path: took - self.inside.get(path, 0) for path, took in self.seconds.items()}


# %%
clock = Clock()
mine = Profile(clock)
token(mine.span)
print(mine.own())
print(f"together {sum(mine.own().values())}, and {clock.now} have passed")

# %% [markdown]
# Compare with the picture: a span's own time is where nothing hangs below it. (`try ... finally` is for a block that raises
# an error: its time has passed all the same, and the path must be right for whoever goes on.)
#
# ## Build: how much is done?
#
# Before we put spans into an engine, the second question. What does one token *have to* do? Most of it is the
# **multiply-add**: a weight times a number, added to a sum. It is one instruction on many processors, and still two
# **operations**; mixing the two ways of counting is a classic mistake.
#
# Formulas come later. First we count what really happens. NumPy lets a class of arrays step in: before it computes with
# such an array, it calls `__array_ufunc__` with the operation and its inputs. Ours does the operation, and writes down how
# much it was.


# %%
def plain(x):
    """The same as ordinary arrays, also inside a tuple."""
    if isinstance(x, tuple):
        return tuple(map(plain, x))
    return x.view(np.ndarray) if isinstance(x, Counted) else x


# %%
class Counted(np.ndarray):
    __array_priority__ = 1  # when arrays are joined, the result is counted as well

    def __array_ufunc__(self, operation, method, *inputs, **options):
        inputs = plain(inputs)
        options = {name: plain(value) for name, value in options.items()}
        result = getattr(operation, method)(*inputs, **options)
        count["calls"] += 1
        if operation is np.matmul:  # each element of a product adds up a row of multiply-adds
            count["multiply-adds"] += result.size * inputs[0].shape[-1]
        else:  # one operation for each element
            count["others"] += max(map(np.size, (result, *inputs)))
        return result.view(Counted) if isinstance(result, np.ndarray) else result


# %% [markdown]
# Now an engine over the same weights, all of this class. Whatever it computes from them is counted, too. Nine tokens, one
# by one; we look at the last, which stands at **position** 8 (the first is 0):

# %%
from collections import Counter

from llambda.engines import CachedEngine

counting = CachedEngine(config, model.weights)
counting.weights = counting.weights.map(lambda array: array.view(Counted))
text = counting.new_state(64)
for each in ids:
    count = Counter()
    logits = counting.forward(text, [each])
print(f"{count['multiply-adds']:,} multiply-adds")
print("fewer than 20,000 other operations:", count["others"] < 20_000)

# %% [markdown]
# A multiply-add is two operations, so of 100 operations some 99 are in matrix products. All the rest that lesson 04 was so
# careful about, norms, rotations, softmax, is a hundredth of the arithmetic.
#
# Then, surely, nearly all the *time* is in the products? 98 of the 99 are products with weights, and all of these are done
# in one method of the engine, `linear`. What share of the time does `tiny` spend there? Guess, in percent.

# %%
from llambda.course.predictions import outcome, predict

guess = ...
predict("07.products", "% of the time of tiny's token in matrix products", guess)

# %% [markdown]
# ## Build: watch an engine
#
# We will not write spans into the engine's code, for they would stay there and cost time for ever. An object's method can
# be replaced while we look, and put back:


# %%
def watched(profile, function, name):
    """A function that does the same, in a span."""

    def timed(*arguments):
        with profile.span(name):
            return function(*arguments)

    return timed


# %% [markdown]
# An engine of lesson 04 is made of six methods. What is left outside of them (the additions, the loop over layers, storing
# keys and values) stays in the own time of `token`.
#
# | method | what it does |
# |---|---|
# | `embed` | looks up the row of numbers that stands for the token |
# | `rms_norm` | scales a row to a common size |
# | `linear` | a matrix times the row; seven in a layer, and the **head** at the end, which makes the scores |
# | `rotate` | turns queries and keys by their position (RoPE) |
# | `attention` | compares a query with all keys that were kept, and mixes the values |
# | `swiglu` | a gate: an element by element product of two rows |

# %%
METHODS = ("embed", "rms_norm", "linear", "rotate", "attention", "swiglu")


def decode(engine, state, last, span, count):
    """Read the token `last`, choose the likeliest to follow, read that ... Returns the newest."""
    for _ in range(count):
        with span("token"):
            last = int(engine.forward(state, [last]).argmax())
    return last


# %% tags=["nbval-ignore-output"]
state = engine.new_state(128)
last = int(engine.forward(state, ids).argmax())
last = decode(engine, state, last, Profile().span, 8)  # to warm up: its profile is not kept

profiles = []
for _ in range(8):
    mine = Profile()
    for method in METHODS:
        setattr(engine, method, watched(mine, getattr(engine, method), method))
    last = decode(engine, state, last, mine.span, 8)
    for method in METHODS:
        delattr(engine, method)
    profiles.append(mine.own())

own = {path: min(each[path] for each in profiles) for path in mine.own()}  # the best of eight
for path, took in own.items():
    print(f"{path:<16} {1e3 * took / 8:6.3f} ms a token {took / sum(own.values()):6.1%}")

# %% tags=["nbval-ignore-output"]
share = 100 * own["token/linear"] / sum(own.values())
outcome("07.products", "% of the time of tiny's token in matrix products", share)

# %% [markdown]
# On most machines it is a tenth or two. 98% of the arithmetic takes a tenth or two of the time! So *operations are not
# time*. What does the rest do all day? Look at what a single NumPy call costs, and a norm, which is seven of them, for rows
# of very different length. (`seconds` is lesson 00's stopwatch: the best of five.)

# %% tags=["nbval-ignore-output"]
from llambda.course.timing import seconds


def microseconds(function, *inputs):
    return 1e6 * seconds(lambda: [function(*inputs) for _ in range(200)]) / 200


for n in (1, 128, 16_384):
    row = np.ones((1, n), np.float32)
    product, norm = microseconds(np.multiply, row, row), microseconds(engine.rms_norm, row, row, 1)
    print(f"{n:>6} numbers: product {product:6.2f} µs, norm {norm:6.2f} µs")

# %% [markdown]
# 128 numbers cost hardly more than one: you pay for the *call*. Python finds the function, NumPy looks at types and shapes
# and gets memory for the result. And a norm costs more than seven products, since Python has its own steps between them.
# What `tiny` knows of a token is a row of 128 numbers. How many such calls does a token make? We have counted them:

# %%
print(f"about {round(count['calls'], -1)} operations on arrays, for {config.n_layers} layers")

# %% [markdown]
# At a microsecond or a few for each, with all that lies around it (views, new arrays, Python's own steps), that is most of
# `tiny`'s token. Would the same hold for `smollm2`? It has ten times the layers, and 208 times the weights. We will look,
# but first we want a proper tool.
#
# ## Build: the finished form
#
# The package's `Profiler` is ours with a count of calls and a report. `watch_operations` does what our loop did, and sees
# more: it tells the matrices apart by the weight that comes in. `qkv` are the three that make queries, keys and values;
# `attn_out` follows attention; `gate_up` and `ffn_out` are the feed-forward part.

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.profiling import Profiler, watch_operations

show(Profiler, watch_operations)

# %% [markdown]
# Do the two agree? Both get the clock that we move by hand. (`patch` replaces something while the block runs.)

# %%
from types import SimpleNamespace
from unittest.mock import patch

clock = Clock()
mine, theirs = Profile(clock), Profiler()
with patch("llambda.profiling.time", SimpleNamespace(perf_counter=clock)):
    token(mine.span)
    token(theirs.span)
{path: span.own for path, span in theirs.spans.items()} == mine.own()

# %% [markdown]
# One thing a profiler cannot see is itself. An empty span costs something as well:


# %%
def empty_spans(profiler):
    for _ in range(1000):
        with profiler.span("nothing"):
            pass


# %% tags=["nbval-ignore-output"]
for on in (True, False):
    took = seconds(lambda on=on: empty_spans(Profiler(on=on))) / 1000
    print(f"a span that is {'on' if on else 'off'}: {1e6 * took:.2f} µs")

# %% [markdown]
# A token of `tiny` has 43 spans. Multiply: it is a few percent of its time, and goes to the account of whatever is *around*
# the spans. So spans belong around parts that take much longer than a span; around a single addition they would measure
# themselves.
#
# (Ours is an *instrumenting* profiler: it sees each begin and end. A *sampling* one, `py-spy` or Linux's `perf`, stops the
# program some hundred times a second from outside, and notes where it is. It changes nothing in the program and costs the
# same however many calls there are; but it knows shares of the time, and no single call.)
#
# ## Build: what must be done, by formula
#
# Counting needs a run. A formula needs only the model's sizes, and tells what you will pay before you build it. For the
# matrices it could not be simpler: every weight is used in one multiply-add for each token. `c` holds the sizes.


# %%
def matrices(c):
    """Multiply-adds with weights, for one token."""
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    layer = c.dim * (q + kv + kv) + q * c.dim  # qkv, attn_out
    layer += 3 * c.dim * c.ffn_dim  # gate, up, ffn_out
    return c.n_layers * layer + c.vocab_size * c.dim  # and the head


# %% [markdown]
# Attention has no weights. In each layer, each of the query heads takes `head_dim` multiply-adds for the score of one
# position, and as many to add that position's value to the mixture. A token at position *p* looks at *p* + 1 positions:
# those before it, and itself.


# %%
def attention(c, position):
    """Multiply-adds of one token's attention, at this position."""
    return c.n_layers * c.n_heads * 2 * c.head_dim * (position + 1)


# %%
smollm2 = SimpleNamespace(
    n_layers=30, dim=576, n_heads=9, n_kv_heads=3, head_dim=64, ffn_dim=1536, vocab_size=49_152
)
print(f"{matrices(config) + attention(config, 8):,} for tiny at position 8")
print(f"{matrices(smollm2):,} for smollm2, and {attention(smollm2, 0):,} for each position seen")

# %% [markdown]
# The first is the number that we counted, to the last digit. The second is lesson 04's.
#
# Now the other column of the ledger, and the one that beginners leave out: **bytes**. Before a weight can be multiplied, it
# has to come from memory; in this engine it is a float32, 4 bytes. (What was just computed, a row of a few hundred numbers,
# is still in the core's own cache, and does not count.) Attention has no weights to read, but all the keys and values that
# were kept: two rows for each position, layer and *key/value* head. Several query heads share one of those.

# %%
position_bytes = 30 * 2 * 3 * 64 * 4  # layers, keys and values, heads, numbers, bytes
print(f"{4 * matrices(smollm2):,} bytes of weights, and {position_bytes:,} for each position seen")

# %% [markdown]
# The package's form is `costs`: flops and bytes of each operation. (A **flop** is one operation on floats.)

# %% tags=["nbval-ignore-output"]
from llambda.profiling import Cost, costs, total

show(Cost, costs)

# %%
nbytes = model.weights.map(lambda weight: 4 * weight.size)  # held as float32
ledger = costs(config, nbytes, position=8)
for operation, cost in ledger.items():
    print(f"{operation:<10} {cost.flops:>9,} flops {cost.nbytes:>9,} bytes")

# %%
products = ("qkv", "attention", "attn_out", "gate_up", "ffn_out", "head")
flops = sum(ledger[operation].flops for operation in products)
flops == 2 * (matrices(config) + attention(config, 8)) == 2 * count["multiply-adds"]

# %% [markdown]
# ## Build: the roof
#
# Now divide the two columns. How many operations does a part do for each byte that it reads? This is its **arithmetic
# intensity**. A matrix has two operations for each weight of 4 bytes:

# %%
print(ledger["gate_up"].intensity, ledger["head"].intensity, ledger["attention"].intensity)

# %% [markdown]
# A half, whatever the matrix. Attention does a little better, since two query heads share a key/value head, and so its bytes.
#
# Is a half much or little? That depends on the machine, and on two numbers of it that lesson 00 measured: how many
# operations a second it does at most (its **peak**), and how many bytes a second it reads (its **bandwidth**). `limits`
# takes them from there, or measures them now. Our engine has one thread, so we want the smaller ones; all cores together
# have the larger ones.

# %% tags=["nbval-ignore-output"]
from llambda.course.roofs import limits

most_flops, most_bytes = limits(min)
print(f"{most_flops / 1e9:.0f} billion operations and {most_bytes / 1e9:.1f} GB a second")
print(f"so {most_flops / most_bytes:.1f} operations in the time of one byte")

# %% [markdown]
# In a second, memory brings `most_bytes`. With an intensity of *I*, that is enough for `most_bytes` times *I* operations.
# And no second has room for more than `most_flops`. The smaller of the two is the **roof**:


# %%
def roof(intensity):
    """The most operations a second for a part with this intensity."""
    return min(most_flops, most_bytes * intensity)


# %% [markdown]
# The same thing seen from the other side: a part takes at least the time of its operations, and at least the time of its
# bytes. At best the two overlap, so the longer one counts.


# %%
def least_seconds(cost):
    return max(cost.flops / most_flops, cost.nbytes / most_bytes)


head = ledger["head"]
bool(np.isclose(least_seconds(head), head.flops / roof(head.intensity)))

# %% [markdown]
# Let us walk along it. How does one change the intensity of a matrix? By sending several rows through it at once. Each
# weight is then read once and used for each row: *n* rows, *n* times the operations, the same bytes. Here is a matrix of
# 100 MB, too large for the caches of most machines. It gets 1 row, then 64. That is 64 times the work. How many times as
# long will it take?

# %%
guess = ...
predict("07.rows", "time of 64 rows over that of one", guess)

# %% tags=["nbval-ignore-output"]
from threadpoolctl import threadpool_limits

matrix = np.ones((4096, 6144), np.float32)  # [out, in]
took = {}
with threadpool_limits(1):
    for n in (1, 4, 16, 64, 256):
        x = np.ones((n, 6144), np.float32)
        took[n] = seconds(lambda x=x: x @ matrix.T, repeats=3)
outcome("07.rows", "time of 64 rows over that of one", took[64] / took[1])

# %% [markdown]
# Nowhere near 64. On the roof you see why. Both axes are logarithmic: equal steps are equal factors.

# %% tags=["nbval-ignore-output"]
from llambda.course.plots import LIMIT, OURS, figure, finish, label, plain_numbers

fig, ax = figure(height=4.2)
across = np.geomspace(0.1, 500, 200)
ax.plot(across, [roof(intensity) / 1e9 for intensity in across], color=LIMIT)
for n, each in took.items():
    intensity, reached = 2 * n / 4, 2 * n * matrix.size / each / 1e9
    ax.plot(intensity, reached, "o", color=OURS, markersize=8)
    words = f"{n} rows" if n > 1 else "1 row"
    ax.annotate(words, (intensity, reached), (8, -12), textcoords="offset points")
ax.set(xscale="log", yscale="log")
ax.margins(y=0.1)
ax.text(0.3, 1.3 * roof(0.3) / 1e9, "memory", color=LIMIT, ha="right")
ax.text(500, 1.06 * roof(500) / 1e9, "arithmetic", color=LIMIT, ha="right")
plain_numbers(ax.xaxis)
plain_numbers(ax.yaxis)
label(ax, "One matrix under your roof", "operations for each byte read", "billion operations/s")
finish(fig)

# %% [markdown]
# The slope on the left is memory: there, speed is bytes, and more operations cost nothing. The flat part on the right is
# arithmetic. They meet at the **ridge**, where the machine can do just as many operations as it gets bytes for.
#
# Where a dot lies under the line, something else is in the way. With a few rows NumPy's library prepares the matrix for a
# program meant for many, and that costs more than it brings. With many rows it must still fetch every number from a cache,
# which lesson 00's loop for the peak need not: it stays in registers. (Is a dot *above* the line? Then your last cache holds
# 100 MB and reads faster than memory, or the machine was busy when the limits were measured.)
#
# You have met the two ends. Writing a text sends one row at a time: this is **decoding**, far out on the slope. Reading a
# prompt sends all its rows at once: this is **prefill**, on the right. And here is the answer to the question that lesson
# 06 left open. Without a cache, a token at position 255 does 216 times the multiplications, and takes nowhere near 216
# times as long: its 256 rows share the bytes.
#
# The package's form takes the two limits as arguments:

# %% tags=["nbval-ignore-output"]
from llambda.profiling import most_to_gain, roofline

show(roofline, most_to_gain)

# %%
all(roofline(most_flops, most_bytes, each) == roof(each) for each in (0.1, 0.5, 8, 64, 1000))

# %% [markdown]
# ## Build: two limits multiply
#
# The other function shown is this lesson's point. Let a part take a share *s* of the time, and reach *r* of its roof. At
# the roof itself it would take *r* times what it takes now. The rest, 1 - *s*, stays as it is:
#
# $$\text{how many times as fast} \;\le\; \frac{1}{(1-s) + s \, r}$$
#
# Two well known answers are the edges of it. **Amdahl's law** asks only for the share, and lets the part vanish (*r* = 0).
# The **roofline** asks only for the distance, and lets the part be everything (*s* = 1). Take a part with half of the time,
# at half of its roof:

# %%
share, of_roof = 0.5, 0.5
print(f"by share alone {1 / (1 - share):.2f}, by roof alone {1 / of_roof:.2f}")
print(f"by both {most_to_gain(share, of_roof):.2f}")

# %% [markdown]
# Each alone promises twice the speed. Both together promise a third more. What can be saved is a *product*, *s* times 1 -
# *r*. Think of a rectangle: as wide as the share, as high as the distance to the roof. The area counts, and nothing else.
#
# ## Check: the spans add up
#
# On the clock moved by hand they did. Now on a real one, where seconds are rounded floats. If *u* = 2⁻⁵³ is the largest
# rounding error of one addition, as a share of its result, and *N* spans are each added into two sums that never exceed the
# whole *T*, then the own times add up to *T* within 2*N* · *u* · *T*.


# %%
def spans_add_up(kind):
    """Whether own times add up to the whole; within what, as a share; how many spans there were."""
    profile, tokens, state = kind(), 32, engine.new_state(64)
    engine.linear = watched(profile, engine.linear, "linear")
    decode(engine, state, ids[0], profile.span, tokens)
    del engine.linear
    spans = tokens * (1 + 7 * config.n_layers + 1)  # a token, seven matrices a layer, the head
    whole, allowed = profile.seconds["token"], 2 * spans * 2**-53
    return abs(sum(profile.own().values()) - whole) <= allowed * whole, allowed, spans


# %%
right, allowed, spans = spans_add_up(Profile)
print(f"{spans} spans add up within a share of {allowed:.0e}:", right)

# %% [markdown]
# The planted mistake: nobody tells the span around it.


# %%
class Forgetful(Profile):
    def own(self):
        return self.seconds


print("the planted mistake is noticed:", not spans_add_up(Forgetful)[0])

# %% [markdown]
# ## Check: the formula counts right
#
# We counted one token at one position. Now all nine, and against somebody else: PyTorch has a counter of its own, which
# sees each matrix product that PyTorch does. It watches the reference model of lesson 04. That one knows no cache and masks
# only afterwards, so for *n* tokens it does all *n* × *n* scores. The tolerance is zero: these are whole numbers.

# %%
from torch.utils.flop_counter import FlopCounterMode

from llambda.oracle import Oracle

with FlopCounterMode(display=False) as counter:
    Oracle(config, model.weights).forward(ids)
n, a_position = len(ids), attention(config, 0)
formula = 2 * (n * matrices(config) + n * n * a_position)
print(f"PyTorch counts {counter.get_total_flops():,}, we {formula:,}")

# %% [markdown]
# Three mistakes that people make, and what the count says to them:

# %%
heads, kv_heads = config.n_heads, config.n_kv_heads
mistakes = {
    "a multiply-add as one": formula // 2,
    "key/value heads for query heads": formula - 2 * n * n * a_position * kv_heads // heads,
    "the head forgotten": formula - 2 * n * config.vocab_size * config.dim,
}
for mistake, wrong in mistakes.items():
    print(f"the planted mistake is noticed ({mistake}):", wrong != counter.get_total_flops())

# %% [markdown]
# And our own count, token by token, and the bytes: those of all weights and one row of the embedding (it is the same array
# as the head), and those of the cache that the engine has really allocated.

# %%
text.truncate(0)
for position, each in enumerate(ids):
    count = Counter()
    counting.forward(text, [each])
    assert count["multiply-adds"] == matrices(config) + attention(config, position)
held = sum(array.nbytes for array in engine.weights.unique())
everything, cache = total(ledger.values()), engine.new_state(9).cache.data
print("the weights' bytes:", everything.weight_bytes == held + 4 * config.dim)
print("the cache's bytes:", everything.kv_bytes == cache.nbytes)

# %% [markdown]
# The same for the real model, if it is here: counted while it runs, not computed.

# %% tags=["real", "nbval-ignore-output"]
from llambda.fetch import KNOWN

if KNOWN["smollm2"].is_here:
    with llambda.load("smollm2", engine="cached") as real:
        real.engine.weights = real.engine.weights.map(lambda array: array.view(Counted))
        count = Counter()
        real.engine.forward(real.engine.new_state(1), [1])
        print(f"{count['multiply-adds']:,} multiply-adds, in {count['calls']:,} calls of NumPy")
        assert count["multiply-adds"] == matrices(smollm2) + attention(smollm2, 0)
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: the real model
#
# All three questions at once. `smollm2` if it is here, else `tiny` again, decodes sixteen tokens, warm. Each has a profile
# of its own; this is the fastest one. Where did the time go? Look at the last column.

# %% tags=["nbval-ignore-output"]
name = "smollm2" if KNOWN["smollm2"].is_here else "tiny"
big = llambda.load(name, engine="cached")
state = big.engine.new_state(64)
last = int(big.engine.forward(state, big.tokenizer.encode("The class statement")).argmax())
last = decode(big.engine, state, last, Profile().span, 4)  # to warm up

position, tokens = state.length + 8, [Profiler() for _ in range(16)]
for profiler in tokens:
    with watch_operations(profiler, big.engine):
        last = decode(big.engine, state, last, profiler.span, 1)
print(min(tokens, key=lambda profiler: profiler.whole).report())

# %% [markdown]
# With `smollm2`, most of the time is in the matrices now: about seven tenths, where `tiny` had one or two. The same
# program, and another answer. Whoever profiles a small model because it is quicker optimizes something else.
#
# Now the roof of each operation. `now` is the best time it had in any of the sixteen tokens, `least` what it would take at
# its roof. The columns will be: its share of the token, the bytes a second that it reads, how much of its roof it reaches,
# and how many times as fast the *whole token* would be if this one operation got there. Guess first: if *every* operation
# reached its roof, and only the rest around them stayed, how many times as fast would the token be?

# %%
guess = ...
predict("07.gain", "times as fast, if every operation reached its roof", guess)

# %% tags=["nbval-ignore-output"]
nbytes = big.engine.weights.map(lambda array: array.nbytes)
ledger = costs(big.config, nbytes, position)
now = {each: min(token.own()[each] for token in tokens) for each in profiler.own()}
now["in no operation"] = now.pop("token")
least = {operation: least_seconds(ledger[operation]) for operation in now if operation in ledger}
whole = sum(now.values())
print(f"{'':<10} {'share':>6} {'reads':>11} {'of roof':>7} {'whole token':>12}")
for operation, at_roof in least.items():
    share, of_roof = now[operation] / whole, at_roof / now[operation]
    rate, gain = ledger[operation].nbytes / now[operation], most_to_gain(share, min(1, of_roof))
    print(f"{operation:<10} {share:6.1%} {rate / 1e9:6.1f} GB/s {of_roof:7.1%} {gain:6.2f} times")

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.profile import to_gain

to_gain(name, now, least)

# %% [markdown]
# Each column is an operation, as wide as its share of the time; it is blue as high as it reaches its roof. The pale area is
# what could be gained. The hatched column lies between the operations: additions, storing keys and values, Python's own
# steps, and our spans.
#
# Look at two kinds of columns. The wide, blue ones are the matrices. They already run in a library that experts have tuned
# for decades, so all that is left is how well they read. The narrow ones have hardly any blue: norms, rotations, attention
# and the gate are calls, not work. (Some column is blue to the top? Then its weights were in a cache, which is faster than
# the roof of memory that we drew, as with all matrices of `tiny`; or the machine was busy when the roof was measured.)
#
# All the blue and the hatched area together is what remains when every operation is at its roof:

# %% tags=["nbval-ignore-output"]
remains = now["in no operation"] + sum(min(now[each], least[each]) for each in least)
most = whole / remains
big.close()
outcome("07.gain", "times as fast, if every operation reached its roof", most)

# %% [markdown]
# ## Profile: a prediction for lesson 08
#
# Lesson 08 does exactly this: it compiles every operation and writes it for the machine's widest registers, with the
# weights in the order in which they are needed. It leaves what lies between the operations, and it leaves the bytes: a
# weight stays a float32, and there is one thread. So what you have just computed is the most that it can bring, as far as
# the measurements can be trusted. (With `tiny` it may bring more: the roof of a cache is higher than the one we took.) We
# write it down, and lesson 08 will hold its result beside it.

# %% tags=["nbval-ignore-output"]
predict("08.gain", "decoding, vectorized over cached", most)

# %% [markdown]
# A bound like this is worth most when it disappoints. With `smollm2` it is perhaps 1.5, perhaps 3, and lesson 08 is a lot
# of work. It is worth it all the same, since the other lessons stand on it. You will see below what each of them can bring.
#
# **Your roof, with all rungs so far.** A dot is an engine while it decodes. Its distance to the line above it is what a
# better program could bring; what moves it to the right is reading fewer bytes for each operation. The dotted roof belongs
# to one thread.

# %% tags=["nbval-ignore-output"]
from llambda.course.roofs import roof_so_far

places = roof_so_far("cached")

# %% [markdown]
# Two things are worth a second look. `cached` stands on the slope, at an intensity of a half: all that you know of matrices
# with one row. And `naive` stands *higher*. It does more operations a second, and is the slower engine: it computes all
# positions anew for each token, and does that quite efficiently. A place near the roof is no merit in itself. First do not
# do the work, then do it fast.
#
# **The gap, taken apart.** Now we can answer the question that the lesson began with. The ceiling is some number of times
# the speed of `cached`. Three factors make it up, and each has its lessons:

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.profile import gap

here, made, possible = places["cached"], so_far["cached"], so_far["ceiling"]
all_bytes = limits(max)[1]  # a second, by all threads
read, stored = here.flops / here.intensity / made, all_bytes / possible  # bytes a token
factors = {
    "to the roof of its own bytes\n(lessons 08 and 11)": 1 / here.share,
    "from one thread to all\n(lesson 10)": all_bytes / most_bytes,
    "from float32 to bytes as stored\n(lesson 09)": read / stored,
}
gap(name, made, factors)
print(f"the three together {np.prod(list(factors.values())):.2f}, the gap {possible / made:.2f}")

# %% [markdown]
# Not "Python is slow", not "too many multiplications": for `smollm2` the largest factor is, as a rule, that a float32 takes
# 4 bytes where the file needs less than one. No faster loop brings that back. That is why one measures first. (For `tiny`
# it is the first factor. Its weights are read in no time, and the calls remain.) The first factor is more than the bound we
# have just handed to lesson 08: to get to this roof, the hatched column must go as well. That is left to lesson 11.

# %% [markdown]
# ## Break it: timing the first call
#
# A profile is a program too, and can be wrong. In the symptom table of lesson 04, *slow* had one line. Here is what to ask
# before you believe a number that says so:
#
# | symptom | look first at |
# |---|---|
# | A beats B, and B beats A when it goes first | the first call: pages, caches, a warm-up left out |
# | one part takes nearly all of it, in the first run only | the compile |
# | the parts add up to more than the whole | a span counted in the one around it |
# | faster than the roof | a cache; or other work than you think was timed |
#
# The first one. Somebody wants to know whether zeros can be written faster than ones, and measures each once:

# %% tags=["nbval-ignore-output"]
from functools import partial

for order in ((0, 1), (1, 0)):
    fill = np.empty(2**24, np.float32).fill
    first, second = (stopwatch(partial(fill, value)) for value in order)
    words = f"{order[0]} first, then {order[1]}: {order[1]} is written"
    print(f"{words} {first / second:.1f} times as fast")

# %% [markdown]
# **Symptom:** whoever goes second wins. **How to find it:** swap the order. If the winner changes sides, you have measured
# the order. It is the page faults of the beginning of this lesson. **The guard:** do everything once before the clock
# starts, then measure in turns, A B A B.
#
# ## Break it: profiling the compile
#
# From lesson 08 on, functions are **compiled**: Numba translates a Python function into machine code when it is called for
# the first time. Somebody compiles the norm, and profiles the engine to see what it brought:

# %%
from numba import njit


@njit
def compiled_norm(x, weight, eps):
    out = np.empty_like(x)
    for i in range(x.shape[0]):
        squares = np.float32(0)
        for value in x[i]:
            squares += value * value
        scale = 1 / np.sqrt(squares / x.shape[1] + eps)
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * scale * weight[j]
    return out


class WithCompiledNorm(CachedEngine):
    def rms_norm(self, x, weight, eps):
        return compiled_norm(x, weight, eps)


# %% tags=["nbval-ignore-output"]
other = WithCompiledNorm(config, model.weights)
for run in ("first", "second"):
    profiler, state = Profiler(), other.new_state(9)
    with watch_operations(profiler, other), profiler.span("prompt"):
        other.forward(state, ids)
    print(f"{run} run: norms {profiler.own()['norms'] / profiler.whole:.0%} of the time")

# %% [markdown]
# **Symptom:** one part, often an innocent one, takes nearly everything, and in a second run it does not. All spans are
# right, and add up: that time did pass there. It was spent on making the function, once. **How to find it:** profile twice
# in the same process; or look at the longest call beside the average. **The guard:** a warm-up that nobody times, which is
# why `decode` above ran before each profile.
#
# ## Break it: a span inside a span, counted twice
#
# The last one hides best. Somebody takes inclusive times, sees that they add up to too much, and divides by their sum, so
# that the shares make 100%. Here with the token of 8 seconds, of which matrices take 4:

# %%
inclusive = mine.seconds
for path, took in inclusive.items():
    pie, right = took / sum(inclusive.values()), mine.own()[path] / sum(mine.own().values())
    print(f"{path.rpartition('/')[2]:<10} {pie:6.1%} in the pie, {right:6.1%} in truth")

# %% [markdown]
# **Symptom:** none that the pie shows; it is a perfect pie. The matrices seem to have a quarter of the time, and Amdahl's
# law then promises little for a part that has half. **How to find it:** add up the *seconds*, not the shares, and hold them
# against a stopwatch around the whole. 16 is not 8. **The guard:** the check above.
#
# <details><summary>In Lisp</summary>
#
# ```lisp
# (defmacro with-span ((profile name) &body body)
#   (let ((begin (gensym)))
#     `(let ((,begin (get-internal-real-time)))
#        (unwind-protect (progn ,@body)
#          (incf (gethash ,name ,profile 0)
#                (- (get-internal-real-time) ,begin))))))
# ```
#
# `unwind-protect` is Python's `try ... finally`. The macro is expanded when the program is compiled, so a span costs two
# looks at the clock, an entry in a table, and no call of ours. It can be wrong in the same ways.
#
# </details>

# %% [markdown]
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %%
from llambda.course.exercises import profile as check

# %% [markdown]
# ### Exercise 07.1 · A ledger of your own
#
# *code · 12 minutes · difficulty 2 of 5*
#
# Write down what three operations of **one layer** cost, for one token: a dict with the keys `"norm"`, `"qkv"` and
# `"attention"`, each with a pair (operations, bytes). All numbers are float32.
#
# - `norm`, one of the layer's two: each of the `dim` numbers of a row is squared, added to a sum, multiplied by one over the
#   root, and multiplied by its weight: four operations. (The root itself is done once, and does not count.)
# - `qkv`: three matrices, which make `n_heads` queries, `n_kv_heads` keys and `n_kv_heads` values of `head_dim` numbers
#   each, out of a row of `dim` numbers. There are no biases, and `n_heads` times `head_dim` need not be `dim`.
# - `attention`: the token looks at `seen` positions, itself among them. Count its matrix products and leave out the
#   softmax.
#
# As bytes count the weights, and what is read of the cache, each once; not the rows that come in and go out.


# %% tags=["exercise"]
def ledger_of_a_layer(dim, n_heads, n_kv_heads, head_dim, seen):
    """Operation -> (operations on floats, bytes read)."""
    ...


# %% tags=["checker"]
check.ledger(ledger_of_a_layer)

# %% [markdown]
# <details><summary>Hint</summary>
#
# For a matrix, write down how many weights it has; the pair is twice and four times that. In attention, ask of both
# columns: how many heads?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def ledger_of_a_layer(dim, n_heads, n_kv_heads, head_dim, seen):
#     q, kv = n_heads * head_dim, n_kv_heads * head_dim
#     weights = dim * (q + 2 * kv)
#     return {
#         "norm": (4 * dim, 4 * dim),
#         "qkv": (2 * weights, 4 * weights),
#         "attention": (2 * 2 * q * seen, 4 * 2 * kv * seen),
#     }
# ```
#
# In `attention`, one 2 is for a multiply-add, the other for scores and mixture; on the right the 2 is for keys and values.
#
# </details>

# %% [markdown]
# ### Exercise 07.2 · The most to gain
#
# *predict · 5 minutes · difficulty 2 of 5*
#
# A profile says: the products of the matrices with single rows take 80% of the time, and read their weights at 60% of the
# bandwidth. You are offered a kernel that works on 8 numbers at once. How many times as fast can the whole program get, if
# nothing but the products changes? (Two decimals are enough.)

# %% tags=["exercise"]
times_as_fast = ...

# %% tags=["checker"]
check.gain(times_as_fast)

# %% [markdown]
# <details><summary>Hint</summary>
#
# On which part of the roof is a product with a single row? Then draw the rectangle: how wide, how high?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# times_as_fast = 1 / (0.2 + 0.8 * 0.6)
# ```
#
# The 8 is a decoy. A row at a time is on the slope, where memory decides, and wider arithmetic waits for the same bytes.
#
# </details>

# %% [markdown]
# ### Exercise 07.3 · Where attention catches up
#
# *predict · 6 minutes · difficulty 3 of 5*
#
# For `smollm2`, the weights cost the same for every token; attention costs more with every position. How many positions
# must a token look at, until its attention does as many multiply-adds as all the matrices? (30 layers; 9 query heads and 3
# key/value heads of 64 numbers.)

# %% tags=["exercise"]
positions_seen = ...

# %% tags=["checker"]
check.attention_catches_up(positions_seen)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Both numbers are printed above, under "what must be done, by formula". Or build the second one: layers, heads, and for
# each of them two products of rows of 64.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# positions_seen = 134_479_872 / (30 * 9 * 2 * 64)
# ```
#
# At 3,891 positions. Long before, at a tenth of that, attention's share of the arithmetic is 9%, and here we have seen that
# arithmetic is not time: for attention too, ask for its bytes.
#
# </details>

# %% [markdown]
# ### Exercise 07.4 · Three bad profiles
#
# *diagnose · 7 minutes · difficulty 2 of 5*
#
# Three people have profiled `smollm2`, and each has come to a conclusion that is wrong. What happened to each? Choose among
# `"the compile counted"`, `"nested spans added"`, `"prefill counted as decode"` and `"a disturbed machine"`. A token has 30
# layers, 211 products with matrices (7 a layer and the head) and 61 norms.

# %%
for name_of_report, report in check.REPORTS.items():
    print(f"--- {name_of_report}: {report}")

# %% tags=["exercise"]
causes = {"A": ..., "B": ..., "C": ...}

# %% tags=["checker"]
check.profiles(causes)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Ask each the same three things. Do the parts add up to the stopwatch? Is the longest call like the others? Is the speed
# below the roof?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# causes = {
#     "A": "the compile counted",
#     "B": "nested spans added",
#     "C": "prefill counted as decode",
# }
# ```
#
# In C, 3,587 products are 17 times 211: sixteen tokens, and one call for the whole prompt. Its 240 rows shared the bytes,
# and the average of the two kinds describes neither.
#
# </details>

# %% [markdown]
# ## Recap
#
# A stopwatch measures what happens to go on, so warm up, repeat, and let spans report their own time. Operations are not
# time: count the bytes as well, divide, and the machine's roof says how fast each part can be at most. What is to be gained
# is a product, the share of the time and the distance to the roof; with one token at a time the distance is one of bytes,
# and for small parts one of calls.
#
# The next lesson puts your prediction to the test. It compiles every one of these operations, and looks at the single
# instructions: **08 · How do you speak AVX2 from Python?**
#
# **Further reading.**
#
# - Samuel Williams, Andrew Waterman and David Patterson, *Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures*, Communications of the ACM 52(4), 2009.
# - Gene Amdahl, *Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities*, AFIPS Spring
#   Joint Computer Conference, 1967.
# - Susan Graham, Peter Kessler and Marshall McKusick, *gprof: A Call Graph Execution Profiler*, 1982: own and inclusive
#   times.
# - Brendan Gregg, *The Flame Graph*, Communications of the ACM 59(6), 2016: spans below spans, as a picture.
# - Torsten Hoefler and Roberto Belli, *Scientific Benchmarking of Parallel Computing Systems*, 2015: how to report what you
#   measured.
