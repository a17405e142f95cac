# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Batching
#
# **Why do servers love batches?**
#
# - **You will build** a matrix product for many tokens at once, an engine that evaluates several texts in one call, the loop of a
#   server where texts join and leave as they like, and a pipeline of two stages, first as threads and then as processes.
# - **You will be able to** say from which batch on arithmetic is your limit and no longer memory, what a batch costs the people
#   in it, and how to make sure that nobody reads what belongs to somebody else.
# - **You need** a matrix product, and the idea of lesson 06: each text has a memory of its own, the keys and values of its
#   tokens. What else is needed of the lessons before is said again where it is used.
#
# *90 minutes · difficulty 4 of 5*
#
# The lit box stands beside the cache. A batch is nothing that a model has; it is something that we do with it.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("12")

# %% [markdown]
# ## Build: eight readers, one engine
#
# A **server** answers several people. It has one engine, and a **state** for each of them: one text, with its memory. The engine
# below is that of lesson 11. `forward(state, ids)` puts **tokens** (pieces of text, given by their numbers, the *ids*) at the end
# of that text, and returns the **logits**, a score for every token that could come next. The model is `smollm2` if it is here,
# else `tiny`, the small one that comes with the course.

# %% tags=["core"]
import numpy as np

import llambda
from llambda.fetch import KNOWN

name = "smollm2" if KNOWN["smollm2"].is_here else "tiny"
served = llambda.load(name)
eight = [served.engine.new_state(64) for _ in range(8)]

# %% [markdown]
# Eight people wait for their next token. The naive way: one after the other.


# %% tags=["core"]
def in_turn(engine, states, token):
    for state in states:
        engine.forward(state, [token])


# %% [markdown]
# The engine has another method. It takes a list of states, and a list of ids for each of them:


# %% tags=["core"]
def together(engine, states, token):
    engine.forward_batch(states, [[token]] * len(states))


# %% [markdown]
# Both evaluate eight tokens, with the same multiplications. Guess: how many times as many tokens a second does the second way
# make?

# %% tags=["core"]
from llambda.course.predictions import outcome, predict

guess = ...
predict("12.eight", "tokens/s of 8 texts together over one after the other", guess)

# %% tags=["nbval-ignore-output", "core"]
from functools import partial

from llambda.course.timing import seconds

apart, joined = (seconds(partial(way, served.engine, eight, 1)) for way in (in_turn, together))
print(f"8 tokens one after the other: {1e3 * apart:.1f} ms; together: {1e3 * joined:.1f} ms")
outcome("12.eight", "tokens/s of 8 texts together over one after the other", apart / joined)

# %% [markdown]
# The same work in less time. So part of the time does not go into the work. It goes into what the two ways do differently: to
# make a token, an engine reads *every weight of the model*. One after the other, eight times; together, once. (How much that
# saves depends on the machine and on the format of the weights. At the end of the lesson you can say why it is not more.)
#
# A weight that has come all the way from memory is used for two operations, a multiplication and an addition, and is gone. In
# the time in which the four bytes of a float32 weight come in, a core could have done dozens (lesson 00). A **batch** gives it
# something to do: two operations for each text. This lesson builds it from the bottom: first the arithmetic, then the texts,
# then the people.
#
# ## Build: count the loads
#
# Take one matrix of weights and a few tokens, each a vector of numbers. Every weight of a row is multiplied with a number of the
# token, and the products are added up:

# %%
rng = np.random.default_rng(12)
w = rng.normal(size=(24, 16)).astype(np.float32)  # [rows, cols]
x = rng.normal(size=(12, 16)).astype(np.float32)  # [tokens, cols]


# %% [markdown]
# How often must something be fetched for that? An array that counts will tell.


# %%
class Counted:
    """An array that counts the numbers that are read from it."""

    def __init__(self, array):
        self.array, self.shape, self.loads = array, array.shape, 0

    def __getitem__(self, place):
        self.loads += 1
        return self.array[place]


# %% [markdown]
# The naive way, token by token and row by row:

# %%
from itertools import product


def one_by_one(w, x):
    out = np.zeros((x.shape[0], w.shape[0]), np.float32)  # [tokens, rows]
    for t, r in product(range(x.shape[0]), range(w.shape[0])):
        for c in range(w.shape[1]):
            out[t, r] += w[r, c] * x[t, c]
    return out


# %%
weights, numbers = Counted(w), Counted(x)
plain = one_by_one(weights, numbers)
multiply_adds = w.size * len(x)
print(f"{(weights.loads + numbers.loads) / multiply_adds:g} loads for each multiply-add")
print(f"each weight is loaded {weights.loads // w.size} times, once for every token")

# %% [markdown]
# Two loads for one multiply-add. Now a block of `tall` rows and `wide` tokens at a time: a **tile**. Look at one column `c`: its
# `tall` weights are loaded once and serve `wide` tokens; each token's number is loaded once and serves `tall` rows.


# %%
def in_tiles(w, x, tall, wide):
    out = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for t, r in product(range(0, x.shape[0], wide), range(0, w.shape[0], tall)):
        for c in range(w.shape[1]):
            column = [w[r + i, c] for i in range(tall)]
            for j in range(wide):
                number = x[t + j, c]
                for i in range(tall):
                    out[t + j, r + i] += column[i] * number
    return out


# %%
for tall, wide in [(1, 1), (4, 1), (1, 4), (4, 3), (2, 12)]:
    weights, numbers = Counted(w), Counted(x)
    same = np.array_equal(in_tiles(weights, numbers, tall, wide), plain)
    loads = (weights.loads + numbers.loads) / multiply_adds
    often = weights.loads // w.size
    print(f"{tall} x {wide:<2}  {loads:.2f} loads; each weight {often:>2} x; same bits: {same}")

# %% [markdown]
# Three things to see in this table.
#
# *Loads*, for each multiply-add. A tile needs `tall + wide` loads for `tall * wide` multiply-adds. The larger, the better, and
# squares are best.
#
# *Weights.* How often the whole matrix comes by depends on `wide` alone. A load of a number that was just used is cheap: it comes
# out of the nearest cache. The weights of a model come out of memory, and that is what we pay for. With all 12 tokens in one
# tile each weight comes once.
#
# *Bits.* Every sum is added up from column 0 to the last, whoever else is in the tile. Floating point sums depend on their order
# (lesson 01), and here the order is always the same. Keep that: it is why batches can be trusted.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.batching import tiles

tiles([(1, 1), (4, 1), (1, 4), (4, 3)])

# %% [markdown]
# ## Build: a tile in registers
#
# All of this holds only if the sums cost nothing. If a sum has to be fetched from memory and put back for every addition, the
# loads that we saved are lost again. So the sums must stay in **registers**, the few places inside a core that instructions
# work on. There are 16 for vectors, with AVX-512 32; each holds several numbers, its **lanes**. In the package `LANES` is 8 or
# 16.
#
# So one register of weights is a column of `LANES` rows at once, and one register of sums belongs to `LANES` rows and one
# token. The token's number is copied into all lanes of a register of its own. What fits? The package takes two registers of
# rows, and `TILE` tokens:

# %%
from llambda.simd.tiles import TILE
from llambda.simd.widest import LANES

registers = {8: 16, 16: 32}[LANES]
sums, column, number = 2 * TILE, 2, 1
print("a tile of 2 x TILE fits:", sums + column + number <= registers)

# %% [markdown]
# Now as machine code. The instructions of lesson 08 are Python functions here: `load` fetches a register of weights, `fma_tile`
# adds the products of one column to all sums of a tile, `store_tile2` writes them. A tile is a tuple of registers; how many
# there are is its length. `inlined` and `kernel` compile. (Sixteen or thirty-two rows side by side in memory are a **strip**.)

# %%
from llambda.simd.jit import inlined, kernel
from llambda.simd.tiles import fma_tile, pair1, pair_tile, store_tile2
from llambda.simd.widest import load

STRIP = 2 * LANES  # rows


@inlined
def strips(sums, w, x, out):
    tokens = len(sums) // 2
    cols = len(x) // tokens
    for strip in range(len(w) // (STRIP * cols)):
        acc = sums  # zeros
        for c in range(cols):
            at = (strip * cols + c) * STRIP
            acc = fma_tile(acc, (load(w, at), load(w, at + LANES)), x, c * tokens)
        store_tile2(out, strip * STRIP, len(out) // tokens, acc)


# %% [markdown]
# One function, compiled twice: for one token with two sums (`pair1`), and for `TILE` tokens.


# %%
@kernel
def one_token(w, x, out):
    strips(pair1(), w, x, out)


@kernel
def one_tile(w, x, out):
    strips(pair_tile(), w, x, out)


# %% [markdown]
# They want the weights packed: strip after strip, in each of them column after column. And the tokens' numbers column by column.

# %%
rows, cols = 4096, 576
w = rng.normal(size=(rows, cols)).astype(np.float32)
x = rng.normal(size=(TILE, cols)).astype(np.float32)
packed = np.ascontiguousarray(w.reshape(-1, STRIP, cols).swapaxes(1, 2)).reshape(-1)
by_column = np.ascontiguousarray(x.T).reshape(-1)  # [cols * TILE]

# %%
tile_rows = np.zeros((TILE, rows), np.float32)
one_tile(packed, by_column, tile_rows.reshape(-1))
alone = np.zeros((TILE, rows), np.float32)
for row, out in zip(x, alone, strict=True):
    one_token(packed, row, out)
print("the same bits alone and in a tile:", np.array_equal(tile_rows, alone))

# %% [markdown]
# Is it right? PyTorch multiplies in float64. Each of our sums has `cols` additions, and each of them rounds by at most a share
# *u* = 2⁻²⁴ of what is added up so far, which is no more than the sum of all *magnitudes* of the products. So we may be off by
# `cols` · *u* times that. Beside it a planted mistake: the numbers one column late.

# %%
import torch


def off(result, x):
    """The largest error, as a share of what is allowed."""
    a, b = (torch.from_numpy(each).double() for each in (x, w))
    allowed = cols * 2.0**-24 * (a.abs() @ b.abs().T)
    return float(((torch.from_numpy(result) - a @ b.T).abs() / allowed).max())


print("within the bound:", off(tile_rows, x) < 1)
print("the planted mistake is noticed:", off(tile_rows, np.roll(x, 1, axis=1)) > 1)

# %% [markdown]
# And does the compiler keep the sums in registers? Look at its instructions: in the innermost loop each `vfmadd` does
# multiply-adds for one register, and whatever names a place in brackets loads from memory.

# %% tags=["nbval-ignore-output", "core"]
from llambda.simd.listing import loops, text_of
from llambda.simd.target import target_has


def counted(kernel):
    lines = [line for loop in loops(text_of(kernel), "vfmadd") for line in loop]
    adds = sum(line.startswith("vfmadd") for line in lines)
    return adds, sum(line.startswith("v") and "(" in line for line in lines)


if target_has("fma"):
    for kind in (one_token, one_tile):
        adds, loads = counted(kind)
        print(f"{kind.__name__}: {adds} multiply-adds, {loads} loads: {loads / adds:.2f} for each")
    assert loads < adds
else:
    print("this target has no FMA, so there are no such instructions to count")

# %% [markdown]
# With AVX-512 you see 14 loads for 24 multiply-adds, with AVX2 8 for 12; alone it is 3 for 2. Not one load or store of a sum.
# Here is the loop of the tile, all of it:

# %% tags=["nbval-ignore-output"]
if target_has("fma"):
    print("\n".join(next(loops(text_of(one_tile), "vfmadd"))))
else:
    print("no FMA here: the listing would be hundreds of lines long")

# %% [markdown]
# What is it worth? The matrix has 9 MB, and we multiply it with the same tokens, one by one and in a tile.

# %% tags=["nbval-ignore-output", "core"]
one = seconds(lambda: [one_token(packed, row, out) for row in x])
tile = seconds(lambda: one_tile(packed, by_column, tile_rows.reshape(-1)))
flops = 2 * rows * cols * TILE
print(f"{TILE} tokens one by one: {1e3 * one:.2f} ms, {flops / one / 1e9:.0f} GFLOP/s")
print(f"{TILE} tokens in a tile:  {1e3 * tile:.2f} ms, {flops / tile / 1e9:.0f} GFLOP/s")

# %% [markdown]
# The finished form is in `kernels/products.py`. Two things are added. With the first tile it asks for weights before they are
# needed (`fetch_ahead`), and with several tiles it walks over 256 columns of a strip with all of them before it goes on, so
# that those weights are still in the nearest cache. A call has tiles of one width: 1, 4 or `TILE`. What is left after the full
# tiles gets a second call: a single token with a tile of its own, more of them with tiles of 4 if these have fewer places than
# one of `TILE`, else with that. (Places without a token hold zeros.)

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.kernels.products import sum_strips
from llambda.simd.tiles import fma_each

show(sum_strips, fma_each)

# %%
from llambda.kernels.matrix import multiply, pack, tiled
from llambda.tensor import Tensor

matrix, tokens = pack(Tensor.from_numpy(w)), tiled(x, coded=False)
theirs = np.empty((tokens.room, matrix.padded_rows), np.float32)
multiply(matrix, tokens, theirs, 0, matrix.strips)
print("the same bits as the package's:", np.array_equal(theirs[:TILE, :rows], tile_rows))

# %% [markdown]
# A matrix times many vectors is called **GEMM**, a matrix times one vector **GEMV**. In most libraries these are two programs,
# which add in different orders. In ours they are one, with tiles of different widths.
#
# ## Build: a prompt is a batch already
#
# The first batch needs no second person. All tokens of a **prompt** are known before the first is evaluated, so they can go
# through each matrix together. This is **prefill**: GEMM. New tokens come one by one, each made from the one before. This is
# **decoding**: GEMV.

# %% tags=["nbval-ignore-output", "core"]
prompt = list(range(1, 97))
state = served.engine.new_state(2 * len(prompt))
whole = seconds(lambda: served.engine.forward(served.engine.new_state(96), prompt), repeats=3)
single = seconds(lambda: [served.engine.forward(state, [token]) for token in prompt], repeats=1)
print(f"96 tokens in one call {1e3 * whole:.0f} ms, in 96 calls {1e3 * single:.0f} ms")

# %% [markdown]
# That is why the first word of an answer may take a moment, and why a long prompt costs less than a long answer.
#
# For decoding we need other people. Their tokens are as good as those of a prompt, as far as a matrix is concerned.
#
# ## Build: tokens of different texts
#
# Which operation of a model has to know *whose* token it is working on? Go through a layer. Its matrices are called q, k, v
# and o (for attention), gate, up and down (for the feed-forward part):

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.batching import layer_of_texts

layer_of_texts(["text A", "text B", "text C", "text D"])

# %% [markdown]
# Norms and matrices see rows of numbers, and do not care whose they are. There are three exceptions, all in the middle:
#
# - **rope** turns queries and keys by an angle that depends on the token's position, and each text stands at another position;
# - **store** puts keys and values into the text's own cache;
# - **attention** looks at that cache, and at no other.
#
# So `x` gets a row for each text, and those three are done text by text. Lesson 08's engine asks for its angles and its `store`
# from outside. Here are both for several states. (`table` makes the cosines and sines for some positions of one text.)

# %% tags=["core"]
from llambda.kernels.rope import table


def angles(engine, starts):
    each = [table(engine.turning, start, start + 1) for start in starts]
    return [np.concatenate(part) for part in zip(*each, strict=True)]  # [texts, head_dim / 2] each


def own_caches(states):
    def store(layer, k, v):  # [texts, n_kv_heads, head_dim] each
        kept = [s.cache.extend(s.length, layer, k[[i]], v[[i]]) for i, s in enumerate(states)]
        return [keys for keys, _ in kept], [values for _, values in kept]

    return store


# %% [markdown]
# And the engine. `block` is one layer, unchanged; it hands what `store` gives to `attention`. There, and in `step`, is all that
# a batch takes.

# %% tags=["core"]
from llambda.engines import VectorizedEngine


class Batched(VectorizedEngine):
    def attention(self, q, keys, values, starts):
        one = super().attention
        each = zip(q[:, None], keys, values, starts, strict=True)  # [1, n_heads, head_dim], ...
        return np.concatenate([one(*own) for own in each])

    def step(self, states, ids):
        """One more id for each state. Returns logits [texts, vocab_size]."""
        starts = [state.length for state in states]
        rope, store = angles(self, starts), own_caches(states)
        x = self.embed(ids)  # [texts, dim]
        for layer in range(self.config.n_layers):
            x = self.block(layer, x, starts, rope, store, lambda name, value: None)
        for state, token in zip(states, ids, strict=True):
            state.ids.append(token)
        x = self.rms_norm(x, self.weights.final_norm, self.config.norm_eps)
        return self.linear(x, self.weights.head)


# %% [markdown]
# Eight texts about Python's statements, for the tiny model. Each is begun alone, id by id. Then their next tokens go through the
# model: all in one step, and one by one.

# %% tags=["core"]
tiny = llambda.load("tiny")
words = "for with import try break while return if".split()
texts = [tiny.tokenizer.encode(f"The {word} statement") for word in words]
engine = Batched(tiny.config, tiny.weights)


def begin(engine, text):
    """A state that holds a text, and the likeliest id after it."""
    state = engine.new_state(64)
    for token in text:
        (logits,) = engine.step([state], [token])
    return state, int(logits.argmax())


# %% tags=["core"]
def step_of_all(engine, texts):
    """Logits of the next step, [texts, vocab_size]: all together, and one by one."""
    states, ids = zip(*(begin(engine, text) for text in texts), strict=True)
    others, _ = zip(*(begin(engine, text) for text in texts), strict=True)
    single = [engine.step([s], [token])[0] for s, token in zip(others, ids, strict=True)]
    return engine.step(states, ids), np.stack(single)


all_together, each_alone = step_of_all(engine, texts)
print("the same bits together and alone:", np.array_equal(all_together, each_alone))

# %% [markdown]
# Not nearly the same: the same. The finished form is `forward_batch` of the fused engine. It takes any number of ids for each
# state, so that somebody's prompt and somebody else's single token can be in one call.

# %% tags=["nbval-ignore-output"]
from llambda.engines import FusedEngine

show(FusedEngine.forward_batch)

# %%
fused = tiny.engine
states = [fused.new_state(64) for _ in texts]
ids = [[int(logits.argmax())] for logits in fused.forward_batch(states, texts)]
print("the same bits as ours:", np.array_equal(fused.forward_batch(states, ids), all_together))

# %% [markdown]
# Two engines, one that is called from Python for every operation, and one that is a single call on all cores; and not a bit
# between them.
#
# ## Build: the static batch waits for the slowest
#
# Now the people. Eight requests, and **places** for four: a place is the memory for one text. Answers are not of one length.
# How long each will be nobody knows beforehand; here we decide it, so that you can follow.

# %% tags=["core"]
lengths = [3, 24, 6, 12, 5, 18, 4, 8]  # tokens

# %% [markdown]
# The naive server takes four, makes their answers together, and takes the next four. Whoever has ended is left out of the
# calls. (This is **greedy** decoding: the likeliest id is taken every time. So whatever we do, each answer must come out the
# same.)


# %% tags=["core"]
def static(engine, texts, lengths, places):
    """Answers, and the requests that took part in each call."""
    answers, calls = [[] for _ in texts], []
    for first in range(0, len(texts), places):
        group = list(range(first, min(first + places, len(texts))))
        states = {i: engine.new_state(64) for i in group}
        while group:
            new = [answers[i][-1:] or texts[i] for i in group]
            rows = engine.forward_batch([states[i] for i in group], new)
            for i, row in zip(group, rows, strict=True):
                answers[i].append(int(row.argmax()))
            calls.append(group)
            group = [i for i in group if len(answers[i]) < lengths[i]]
    return answers, calls


# %% tags=["core"]
answers, calls = static(fused, texts, lengths, places=4)
print(f"{len(calls)} calls for {sum(lengths)} tokens, where 4 x {len(calls)} places were there")
print(tiny.tokenizer.decode(answers[1]))

# %% [markdown]
# Half of the places were empty: request 1 has 24 tokens to say, and while it speaks nobody else may sit down.
#
# ## Build: join and leave
#
# Between two calls everything can change. A state is all that a text has, so whoever has ended can leave, and the next one can
# join, with its whole prompt, in the very next call. This is **continuous batching**.
#
# The same eight requests, the same four places, first come, first served. How many calls will it take? The least that is
# thinkable is 20: 80 tokens, four a call. Guess.

# %% tags=["core"]
guess = ...
predict("12.calls", "calls for the same answers by join and leave", guess)

# %% [markdown]
# No engine is needed to find out; a plan of the seats is enough. Each request takes the place that is free first.


# %% tags=["core"]
def plan(lengths, places):
    """The requests that take part in each call."""
    free, calls = [0] * places, [[] for _ in range(sum(lengths))]
    for request, length in enumerate(lengths):
        place = free.index(min(free))
        for call in range(free[place], free[place] + length):
            calls[call].append(request)
        free[place] += length
    return [call for call in calls if call]


planned = plan(lengths, places=4)
outcome("12.calls", "calls for the same answers by join and leave", len(planned))

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.batching import seats

seats({"static": calls, "join and leave": planned}, places=4)

# %% [markdown]
# Hatched is empty. Request 4 sits down the moment that request 0 has left. At the end places stay empty, because nobody is left
# to take them; on a busy server that does not happen.
#
# The finished form is `Batch`, in `batching.py`. `_let_join` fills the free places, `_tasks` says what each brings to this
# step, and `_evaluate` makes *one* call of it all. To write that loop yourself is the third exercise.

# %% tags=["nbval-ignore-output"]
from llambda.batching import Batch

show(Batch._advance, Batch._let_join, Batch._tasks, Batch._evaluate)

# %% [markdown]
# Does it sit people down as planned, and does everybody get the same answer?

# %%
from llambda.sampling import Sampling

batch = tiny.batch(max_running=4)
greedy = Sampling(temperature=0)
asked = [batch.submit(*each) for each in zip(texts, [greedy] * 8, lengths, strict=True)]
seen = []
while batch.busy:
    before = [len(answer.ids) for answer in asked]
    batch.step()
    grown = zip(asked, before, strict=True)
    seen.append([i for i, (answer, n) in enumerate(grown) if len(answer.ids) > n])
print("as planned:", [set(call) for call in seen] == [set(call) for call in planned])
print("the same answers:", [answer.ids for answer in asked] == answers)

# %% [markdown]
# One thing the plan did not show. A prompt joins with *all* its tokens, and a call with a prompt of 100 takes longer for
# everybody in it: all others see their text stop. So `Batch` gives prompts only so many tokens a step. Look at the numbers of
# tokens in each call: somebody is talking, and then a prompt of 100 comes in.

# %%
from unittest.mock import patch


def tokens_a_call(prompt_tokens):
    evaluate, sizes = fused.forward_batch, []

    def watched(states, ids):
        sizes.append([len(each) for each in ids])
        return evaluate(states, ids)

    with patch.object(fused, "forward_batch", watched):
        batch = tiny.batch(prompt_tokens=prompt_tokens)
        batch.submit(texts[0], greedy, 8)
        batch.step()
        batch.submit([5] * 100, greedy, 2)
        for _ in batch.run():
            pass
    return sizes


# %%
print("no limit:    ", *tokens_a_call(1000))
print("32 at a time:", *tokens_a_call(32))

# %% [markdown]
# Without a limit, one call does a hundred times the usual work; with it, three do a third, and one the rest. The long prompt
# gets its first token three calls later, and nobody else notices much. `deal` shares what is allowed if there are several
# prompts.
#
# <details><summary>In Lisp</summary>
#
# ```lisp
# (loop while (or waiting running) do
#   (loop while (and waiting (< (length running) places))
#         do (push (start (pop waiting)) running))
#   (mapc #'take-token running (forward-batch engine running))
#   (setf running (delete-if #'ended-p running)))
# ```
#
# Join, evaluate, take, leave. A server is a loop around one call.
#
# </details>

# %% [markdown]
# ## Build: two stages
#
# A model can be too large for one machine. Then its layers are divided: the first half here, the second half there, and between
# them travels `x`, one row of `dim` numbers for each token. This is a **pipeline**, and each part of it a **stage**. What
# travels is little; that is why it is done between machines, which cannot afford to wait for each other several times in every
# layer.

# %%
dim, half = 576, 134_479_872 / 2  # of smollm2: numbers in a row, weights in each stage
print(f"{4 * dim:,} bytes a token travel, where {half / 1e6:.0f} million weights stay")

# %% [markdown]
# A stage is a loop over some layers. Like every engine with a cache it has to know at which position its tokens start.
# `stepper` is the last rung that calls its layers one by one from Python, on one thread.

# %%
stepper = llambda.load("tiny", engine="quantized").engine


def through(layers, cache, start, x):
    rope = table(stepper.turning, start, start + len(x))
    store = partial(cache.extend, start)
    for layer in layers:
        x = stepper.block(layer, x, start, rope, store, lambda name, value: None)
    return x  # [n, dim]


# %%
cache = stepper.new_state(64).cache
front = through([0, 1], cache, 0, stepper.embed(texts[0]))
back = through([2], cache, 0, front)
trace = {}
stepper.forward(stepper.new_state(64), texts[0], trace=trace)
print("two stages, the same bits:", np.array_equal(back, trace["blk.2.ffn_residual"]))

# %% [markdown]
# But what does the second stage do while the first one works? It waits. And then the first waits for the second. So one cuts a
# batch into **micro-batches**: while stage 1 works on the first of them, stage 0 has the second. In the picture each turn takes
# one unit of time.

# %% tags=["nbval-ignore-output"]
from llambda.course.figures.batching import stages


def ideal(n):
    return [(stage, i, stage + i, stage + i + 1) for stage in (0, 1) for i in range(n)]


stages({"one micro-batch": ideal(1), "three micro-batches": ideal(3)}, "turns")

# %% [markdown]
# The hatched corners are the **bubble**: stages that have nothing to do, while the pipeline fills at the beginning and drains
# at the end. With one micro-batch it is half of everything, with three it is 2 of 8 turns.
#
# Now with threads: each stage runs in one, and a queue lies between them. (The package's `Stage` is our `through`, with the
# head behind the last layer.) A micro-batch is some tokens of one text: its cache, its position, its ids. `get` has a time
# limit: if the first thread fails, the second must not wait for ever.

# %% tags=["nbval-ignore-output"]
from llambda.course.pipeline_worker import Stage

show(Stage)

# %%
import time
from queue import SimpleQueue
from threading import Thread


def at_once(*functions):
    threads = [Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# %%
def pipeline(first, last, work):
    """The logits after each micro-batch, and what was done when: (stage, number, begin, end)."""
    queue, made, log = SimpleQueue(), [], []

    def stage_0():
        for i, (cache, start, ids) in enumerate(work):
            begin = time.perf_counter()
            queue.put(first.run(cache, start, first.engine.embed(ids)))
            log.append((0, i, begin, time.perf_counter()))

    def stage_1():
        for i, (cache, start, _) in enumerate(work):
            x = queue.get(timeout=60)
            begin = time.perf_counter()
            made.append(last.leave(last.run(cache, start, x)))
            log.append((1, i, begin, time.perf_counter()))

    at_once(stage_0, stage_1)
    return made, log


# %% [markdown]
# Eight prompts as eight micro-batches, against the whole engine:

# %%
caches = [stepper.new_state(64).cache for _ in texts]
work = [(cache, 0, text) for cache, text in zip(caches, texts, strict=True)]
made, _ = pipeline(Stage(stepper, 0, 2), Stage(stepper, 2, 3), work)
whole = [stepper.forward(stepper.new_state(64), text) for text in texts]
print("the same bits as in one piece:", np.array_equal(made, whole))

# %% [markdown]
# Is it faster? Take the real model, if it is here, and cut where half of the weights are behind us. The head counts as well: in
# `smollm2` it is as large as eight layers, so the second stage gets fewer of them.

# %% tags=["nbval-ignore-output"]
piped = llambda.load(name, engine="quantized")
n_layers = piped.config.n_layers
matrices = sum(t.size for t in piped.weights.unique() if len(t.shape) == 2)
cut = round(matrices / 2 / ((matrices - piped.weights.head.size) / n_layers))
first, last = Stage(piped.engine, 0, cut), Stage(piped.engine, cut, n_layers)
everything = Stage(piped.engine, 0, n_layers)
print(f"{cut} of {n_layers} layers in stage 0, {n_layers - cut} and the head in stage 1")


# %% [markdown]
# Three kinds of work: one token of one text, one token of each of four, and a prompt of 192 tokens in four parts. (The second
# part needs the keys and values of the first. It finds them: a stage does one thing after the other.)


# %%
def in_one_thread(work):
    embed = piped.engine.embed
    for cache, start, ids in work:
        everything.leave(everything.run(cache, start, embed(ids)))


caches = [piped.engine.new_state(192).cache for _ in range(4)]
kinds = {
    "1 token of 1 text": [(caches[0], 8, [7])],
    "1 token of 4 texts": [(cache, 8, [7]) for cache in caches],
    "192 tokens in 4 parts": [(caches[0], 48 * i, [7] * 48) for i in range(4)],
}

# %% tags=["nbval-ignore-output", "core"]
print(f"{'':<21}  one thread   pipeline   times as fast")
for kind, work in kinds.items():
    single = seconds(partial(in_one_thread, work), 3)
    staged = seconds(partial(pipeline, first, last, work), 3)
    print(f"{kind:<21} {1e3 * single:>8.1f} ms {1e3 * staged:>7.1f} ms {single / staged:>12.2f}")

# %% tags=["nbval-ignore-output", "core"]
_, log = pipeline(first, last, work)
start = min(begin for _, _, begin, _ in log)
log = [(stage, i, 1e3 * (begin - start), 1e3 * (end - start)) for stage, i, begin, end in log]
stages({f"{name}: {kind}": log}, "milliseconds")

# %% [markdown]
# The first line can never be more than 1: one token of one text passes one stage after the other, and half of the hardware
# waits. Two threads that share every matrix (lessons 10 and 11) have no such bubble.
#
# The last line has the most to gain. How large the bubble of four micro-batches is, the fourth exercise asks you. What else
# is missing you find in the picture: turns of unequal length (of each part the head takes the last token alone, so stage 1
# has less to do than with single tokens), two threads that want Python's lock for a moment between two operations, two cores
# that may be halves of one. (With `tiny` such moments are nearly all there is, and a pipeline only costs.)
#
# The second line has the same bubble, and something else against it. Its micro-batches hold one token each, so each of them
# reads all weights of its stage. Both threads read, at the same time, over the same wires: **one bus feeds both stages**. Count
# what comes over it for these four tokens:

# %%
weight_bytes = sum(t.nbytes for t in tiny.weights.unique())
print(f"tiny, as one batch:          {weight_bytes / 1e6:4.1f} MB")
print(f"tiny, as four micro-batches: {4 * weight_bytes / 1e6:4.1f} MB")

# %% [markdown]
# A pipeline needs micro-batches, and micro-batches give away what a batch has won. On one machine that is a bad bargain. It is
# a good one where each stage has a memory of its own: on two machines there are two buses, and each has only half of the
# weights to feed. So let us at least take the threads apart.
#
# ## Build: two processes
#
# Two **processes** share no memory. What one wants to tell the other it has to send. `torch.distributed` does that, for
# machines on a network as well as for processes on one machine: each process has a number, its **rank**, and `send` and `recv`
# move a tensor from one rank to another. Here they talk over the *loopback* device, which is a network without wires, inside
# this computer.
#
# The script is `llambda/course/pipeline_worker.py`. Rank 0 runs `front`, rank 1 `back`. Look at what travels: `x` forward, and
# one id back.

# %% tags=["nbval-ignore-output"]
from llambda.course import pipeline_worker

show(pipeline_worker.front, pipeline_worker.back, pipeline_worker.Link)

# %% [markdown]
# `isend` does not wait until the other side has taken what is sent. That is no detail. With a `send` that waits, rank 0 would
# stand there with the second text's `x` until rank 1 takes it, and rank 1 with the first text's new id until rank 0 takes that:
# two polite people at a door, for ever.
#
# A process that is started must also end, whatever happens. Three things see to that, and you should ask for all of them in any
# program that starts others:
#
# - we wait with a time limit, and kill both at the end, come what may;
# - each worker has a time limit of its own;
# - each worker reads its `stdin`, which nobody writes to. It ends when we close it, and also when *we* die.

# %%
import json
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen


def two_processes(folder, job):
    """The logits that rank 1 leaves in the folder."""
    file = Path(folder, "job.json")
    file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "llambda.course.pipeline_worker", file]
    pipes = {"stdin": PIPE, "stdout": DEVNULL, "stderr": PIPE, "text": True}
    workers = [Popen([*command, str(rank)], **pipes) for rank in (0, 1)]
    try:
        failed = [worker.stderr.read() for worker in workers if worker.wait(timeout=240)]
    finally:
        for worker in workers:
            worker.kill()
    assert not failed, "".join(failed)
    return np.load(Path(folder, "logits.npy"))  # [new, texts, vocab_size]


# %% [markdown]
# Four texts, four new tokens each. While rank 1 works on the first text, rank 0 has the second: the texts are the micro-batches.

# %%
from tempfile import TemporaryDirectory

job = {"model": "tiny", "cut": 2, "texts": texts[:4], "new": 4}
with TemporaryDirectory() as folder:
    logits = two_processes(folder, job)
logits.shape

# %%
states = [stepper.new_state(64) for _ in texts[:4]]
new, whole = texts[:4], []
for _ in range(4):
    whole.append([stepper.forward(state, ids) for state, ids in zip(states, new, strict=True)])
    new = [[int(row.argmax())] for row in whole[-1]]
print("two processes, the same bits:", np.array_equal(logits, whole))

# %% [markdown]
# Does a worker go when its time has come? Here is rank 0 alone. It would wait for rank 1, which nobody starts. `communicate`
# closes its `stdin` at once, as the system would do if this notebook were killed, and collects what it says.

# %%
with TemporaryDirectory() as folder:
    file = Path(folder, "job.json")
    file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "llambda.course.pipeline_worker", file, "0"]
    worker = Popen(command, stdin=PIPE, stderr=PIPE, text=True)
    _, said = worker.communicate(timeout=240)
print(said, end="")

# %% [markdown]
# ## Check: batched is alone, to the last bit
#
# How far may an answer in company be from the same answer alone? Here the tolerance needs no derivation: it is zero. Each
# number is the sum of the same products in the same order, whoever is beside it, so nothing can be rounded differently. And
# zero is the only tolerance that finds everything. A batch that is nearly right is one in which somebody has seen a little of
# somebody else's text.
#
# Sixteen requests of random ids, of any length, drawn at random too (temperature 1, with a seed each). First alone:

# %% tags=["core"]
rng = np.random.default_rng(12)
sizes = rng.integers(1, 40, size=16)
prompts = [rng.integers(1, 1000, size=n).tolist() for n in sizes]
wanted = rng.integers(1, 20, size=16).tolist()
ids_alone = [
    tiny.generate(prompt, max_tokens=n, temperature=1, seed=i).ids
    for i, (prompt, n) in enumerate(zip(prompts, wanted, strict=True))
]

# %% [markdown]
# Then in batches: one place, three, or one for everybody; prompts in small parts, or whole.

# %% tags=["core"]
for places, part in [(1, 64), (3, 5), (16, 1000)]:
    batch = tiny.batch(max_running=places, prompt_tokens=part)
    asked = [
        batch.submit(prompt, Sampling(temperature=1, seed=i), n)
        for i, (prompt, n) in enumerate(zip(prompts, wanted, strict=True))
    ]
    for _ in batch.run():
        pass
    print(f"{places:>2} places:", [answer.ids for answer in asked] == ids_alone)

# %% [markdown]
# And a prompt in parts is the whole prompt. Nine tokens can be cut in 256 ways (between any two neighbours there is a cut or
# not), and lesson 06 could only ask that all agree within rounding. Here all must agree.


# %%
def cuts(ids):
    """Every way to divide a list, in order."""
    if not ids:
        return [[]]
    return [[ids[:n], *rest] for n in range(1, len(ids) + 1) for rest in cuts(ids[n:])]


def logits_of(parts):
    state = fused.new_state(9)
    return [fused.forward(state, part) for part in parts][-1]


nine = tiny.tokenizer.encode("Return the number of items in the dictionary")
ways = cuts(nine)
whole = logits_of([nine]).copy()
print(len(ways), "ways, all the same bits:", all(np.array_equal(logits_of(p), whole) for p in ways))

# %% [markdown]
# Now the planted mistakes. The first: **one text leaks into another**. The caches are one off, so each text looks at its
# neighbour's keys and values. Alone it works: then a text is its own neighbour.


# %%
class Leaking(Batched):
    def attention(self, q, keys, values, starts):
        return super().attention(q, keys[1:] + keys[:1], values[1:] + values[:1], starts)


leaked, alone = step_of_all(Leaking(tiny.config, tiny.weights), texts)
print("the leak is noticed:", not np.array_equal(leaked, alone))

# %% [markdown]
# The second: **padding attended to**. Many programs want a batch to be a rectangle. So short prompts are filled up to the
# longest with an id that means nothing, and a mask has to hide it. Here the mask is forgotten. (In our batch there is no
# rectangle and nothing to fill: each text brings as many ids as it has. What fills up a tile of registers is thrown away before
# attention.)

# %%
company = [*texts, nine]
longest = max(map(len, company))
states = [fused.new_state(64) for _ in company]
right = [row.copy() for row in fused.forward_batch(states, company)]
states = [fused.new_state(64) for _ in company]
filled = [[0] * (longest - len(text)) + text for text in company]
padded = [row.copy() for row in fused.forward_batch(states, filled)]
print("the padding is noticed:", not np.array_equal(padded, right))

# %% [markdown]
# All of this compares the engine with itself. Whether it is *right* somebody else has to say: lesson 04's reference in PyTorch,
# in float64, text by text, without a cache. Now there is a tolerance again, since PyTorch adds in another order. It was derived
# in lesson 04: errors walk at random, so after *N* additions in a row they are about √*N* roundings off, and a factor of 64 is
# left as room.

# %%
from llambda.check import tolerances
from llambda.oracle import Oracle

oracle = Oracle(tiny.config, tiny.weights, "float64")


def furthest(rows, texts):
    """The largest error of any logit, as a share of what is allowed."""
    found = []
    for row, text in zip(rows, texts, strict=True):
        truth = oracle.logits(text)[-1]
        share = tolerances(tiny.config, len(text))["logits"][-1]
        allowed = share * np.hypot(truth, np.sqrt(np.mean(truth**2)))
        found.append((np.abs(row - truth) / allowed).max())
    return max(found)


# %%
share = tolerances(tiny.config, longest)["logits"][-1]
print(f"a logit may be off by {share:.1e} of its size")
print("all texts within the tolerance:", furthest(right, company) < 1)
print("and the padding is noticed:", furthest(padded, company) > 1)

# %% [markdown]
# "The same bits" is a promise of *this* engine, not of batches as such. NumPy's library, like most, picks another program for
# another number of rows, and that one adds in another order:

# %% tags=["nbval-ignore-output"]
in_company = x @ w.T  # [TILE, rows]
by_itself = np.stack([row @ w.T for row in x])
differ = (in_company != by_itself).mean()
print(f"{differ:.0%} of NumPy's numbers change when a token is multiplied in company")

# %% [markdown]
# Then an answer may change with the people who happen to be asking at the same time. It will be as good as before, but not the
# same, and nobody can test it by comparing. Now the real model, alone and together:

# %% tags=["real", "nbval-ignore-output"]
if KNOWN["smollm2"].is_here:
    questions = ["The capital of France is", "A cache is", "Water boils at"]
    batch = served.batch()
    asked = [batch.submit(question, greedy, 12) for question in questions]
    for _ in batch.run():
        pass
    alone = [served.generate(q, max_tokens=12, temperature=0).ids for q in questions]
    print(*(q + answer.text for q, answer in zip(questions, asked, strict=True)), sep="\n---\n")
    assert [answer.ids for answer in asked] == alone
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: under both roofs
#
# A batch of *B* tokens reads the weights once and computes *B* times. So there are two limits to the tokens in a second:
#
# $$\text{memory:}\;\; B \times \frac{\text{bytes per second}}{\text{bytes of weights}} \qquad
# \text{arithmetic:}\;\; \frac{\text{operations per second}}{\text{operations per token}}$$
#
# The first grows with *B*, the second does not. Where they meet is the **crossover**: below it a batch costs nothing, above it
# each further token pays for itself. First for one matrix of float32 numbers and one thread. Of what lesson 00 has measured you
# need two figures:

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.roofs import limits

compute, read = limits(min)  # of one thread; of all with max
print(f"one thread: {read / 1e9:.1f} GB/s, {compute / 1e9:.0f} GFLOP/s")

# %% [markdown]
# From which batch on is arithmetic the limit? Four bytes a weight, two operations for each token. Work it out for your two
# figures.

# %% tags=["core"]
guess = ...
predict("12.crossover", "batch from which a float32 matrix is limited by arithmetic", guess)


# %% tags=["nbval-ignore-output", "core"]
def where_they_meet(compute, read, nbytes, flops):
    return (compute / flops) / (read / nbytes)


crossover = where_they_meet(compute, read, nbytes=4, flops=2)
outcome("12.crossover", "batch from which a float32 matrix is limited by arithmetic", crossover)

# %% [markdown]
# Now measure. The matrix is `smollm2`'s head in float32: 49,152 rows of 576, 113 MB.

# %%
SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
large = pack(Tensor.from_numpy(rng.random((49_152, 576), dtype=np.float32)))


def products_a_second(n):
    tokens = tiled(np.ones((n, 576), np.float32), coded=False)
    out = np.empty((tokens.room, large.padded_rows), np.float32)
    return n / seconds(lambda: multiply(large, tokens, out, 0, large.strips))


# %% tags=["nbval-ignore-output", "core"]
one_matrix = {n: products_a_second(n) for n in SIZES}

# %% [markdown]
# First the time itself, and the tiles. Guess before you look: what takes longer, 16 tokens or 24?

# %% tags=["nbval-ignore-output", "core"]
from llambda.kernels import activations

for n, rate in one_matrix.items():
    widths = [tile.width for tile in activations.tiles(n)]
    print(f"{n:>2} tokens: {1e3 * n / rate:>5.1f} ms, in tiles of {widths}")

# %% [markdown]
# The second to the fourth token are nearly free: they come along while the matrix is read. And two tiles of one width need not
# take twice as long as one, since the matrix still comes once. But narrow tiles behind full ones are a second call, and **the
# second call reads the matrix again**. So a batch of 16 can take longer than one of 24 (with a `TILE` of 6, one of 8 longer
# than one of 12): it matters less how many tokens there are than how often the weights come by.
#
# Then the whole model, on all cores. `costs` counts its bytes and operations for one token (lesson 07). Keys and values are each
# text's own: a batch reads them *B* times, and the weights once. (Close other programs that are busy: the engine leaves them a
# core, works with fewer threads, and your dots sink.)

# %%
from llambda.profiling import costs, total

stored = served.weights.map(lambda weight: weight.nbytes)
token = total(costs(served.config, stored, position=12).values())


def batch_bytes(n):
    return token.weight_bytes + n * token.kv_bytes


def steps_a_second(n):
    engine = served.engine
    states = [engine.new_state(64) for _ in range(n)]
    engine.forward_batch(states, [[1] * 8] * n)
    return 1 / seconds(lambda: engine.forward_batch(states, [[1]] * n), repeats=8)


# %% tags=["nbval-ignore-output", "core"]
steps = {n: steps_a_second(n) for n in SIZES}

# %% [markdown]
# The arithmetic roof needs a word. It was measured with multiply-adds of float32 numbers. Quantized weights are multiplied as
# 8-bit codes (lesson 09), of which an instruction does more: with VNNI four multiply-adds a lane at once, with AVX2 alone four
# in three instructions. So their roof is higher, and drawn as a line of its own.

# %% tags=["nbval-ignore-output", "core"]
all_compute, all_read = limits(max)
arithmetic = {"arithmetic of floats": all_compute / token.flops}
if served.weights.layers[0].q.dtype.name != "F32":
    adds = 4 if target_has("vnni") else 4 / 3
    arithmetic["arithmetic of codes"] = adds * all_compute / token.flops

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.batching import under_both_roofs

under_both_roofs(
    {
        "One float32 matrix, one thread": (
            one_matrix,
            lambda n: n * read / (4 * 49_152 * 576),
            {"arithmetic": compute / (2 * 49_152 * 576)},
        ),
        f"{name}, all cores": (
            {n: n * rate for n, rate in steps.items()},
            lambda n: n * all_read / batch_bytes(n),
            arithmetic,
        ),
    }
)

# %% [markdown]
# Read the left panel first. While the batch is small the dots climb with the slope: twice the tokens for twice the batch, at no
# cost. Then they bend, at the crossover at the latest, since nothing passes the ceiling. They bend earlier if reading and
# computing take turns, where the roof lets them overlap (a full tile does not ask for its weights ahead), and they dip where the
# weights come twice. (Dots above the slope? Then the matrix comes out of a cache, faster than the memory that was measured. On
# large servers 113 MB fit in.)
#
# On the right is everything that a model does besides: attention over each text's own cache, norms, the scales of quantized
# numbers. A batch shares none of that. The codes are unpacked once for each tile, however wide it is. So the ceiling is further
# away. (The dips are shallower: a small matrix is still in a cache when it is read again.) And where a weight has less than a
# byte, the slope is steep: one text already comes close to what memory brings, and after a few more there is hardly any reading
# left to save. Fewer bits and larger batches win the same thing, the time that went into reading, and it can be won only once.
#
# The same dots on lesson 07's roof. The *intensity*, operations for each byte read, is what a batch changes: each point is
# further to the **right** than the one before. The roof itself does not move.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.batching import to_the_right

points = {
    n: (n * token.flops / batch_bytes(n), n * token.flops * rate)
    for n, rate in steps.items()
    if n in (1, 2, 4, 8, 16, 32)
}
to_the_right(points, all_compute, all_read, f"{name}: batches on your roof")

# %% [markdown]
# **The price.** Nobody in a batch of 16 gets a text that flows as it does alone: a step of 16 takes longer than a step of one.
# But nobody has to wait for fifteen others, either. Sixteen people ask at the same moment, for 12 tokens each, and there are 1,
# 4 or 16 places:


# %%
def sixteen(places):
    """Tokens a second in all; seconds to the first token and between two, means of all people."""
    batch = served.batch(max_running=places)
    begin, first = time.perf_counter(), {}
    asked = [batch.submit(prompt[:8], greedy, 12) for _ in range(16)]
    while batch.busy:
        batch.step()
        now = time.perf_counter() - begin
        first |= {i: now for i, answer in enumerate(asked) if answer.ids and i not in first}
    gaps = [a.stats["decode_s"] / max(len(a.ids) - 1, 1) for a in asked]
    return sum(len(a.ids) for a in asked) / now, np.mean(list(first.values())), np.mean(gaps)


# %% tags=["nbval-ignore-output", "core"]
print("places   tokens/s   first token after   then one every")
for places in (1, 4, 16):
    rate, first, gap = sixteen(places)
    print(f"{places:>6} {rate:>10.0f} {first:>16.2f} s {1e3 * gap:>13.1f} ms")

# %% [markdown]
# More places: more tokens in all, an earlier first word for most, and slower ones after it. A server chooses where on this
# table it wants to be. As long as text comes faster than people read, five to ten tokens a second, nobody feels the last
# column.
#
# **The ladder so far.** For one text, batches change nothing; the newest rung is lesson 11's.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.progress import ladder_so_far

_ = ladder_so_far("fused")

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.roofs import roof_so_far

_ = roof_so_far("fused")

# %% [markdown]
# Compare this picture with the one above. For one text a rung stands where its weights put it: half an operation a byte with
# float32, about three with `smollm2`'s quantized ones. (The naive rung stands further right only because it evaluates the whole
# text again.) From there one can climb to the slope, and no higher. That took eleven lessons. To go to the right, where the
# roof is higher, takes other people.
#
# ## Break it: the neighbour's memory
#
# Three rows of lesson 04's table of symptoms; what is bold is new.
#
# | symptom | look first at |
# |---|---|
# | text is garbage, or one token for ever | tokenizer, sampling, how weights are parsed |
# | text is well formed, but wrong | weights, precision, shapes; the cache; **the neighbours** |
# | now right, now wrong | a race, a seed, order of addition; **who else was there** |
#
# The most frequent fault of such servers is a list that is one off. Three texts are answered together. When one has ended, the
# others move up. In *one* of the lists they do not:


# %%
def talk(lengths, faulty):
    """Answers to the first texts, of so many tokens, made together."""
    states = [fused.new_state(64) for _ in lengths]
    answers, running = [[] for _ in lengths], list(range(len(lengths)))
    new = texts[: len(lengths)]
    while running:
        places = [states[i] for i in running]
        if faulty:  # the planted mistake: the first states, whoever is still running
            places = states[: len(running)]
        rows = fused.forward_batch(places, new)
        for i, row in zip(running, rows, strict=True):
            answers[i].append(int(row.argmax()))
        running = [i for i in running if len(answers[i]) < lengths[i]]
        new = [answers[i][-1:] for i in running]
    return [" ".join(tiny.tokenizer.decode(answer).split()) for answer in answers]


# %%
for faulty in (False, True):
    print(*talk([5, 14, 14], faulty), sep="\n", end="\n\n")

# %% [markdown]
# **Symptom:** all begin well. In the moment in which one leaves, the others go on with somebody else's sentence: what was asked
# about `with` is answered about `for`. No error, no garbage, and no trace of it as soon as you try one request alone.
#
# **How to find it:** send the same request alone and in company. If they differ, take the others away one by one; the one
# without whom it is right is the one from whom it leaks. Then look into the log: the first wrong token comes in the step after
# somebody left or joined. And the guard: compare with alone, bit for bit, with lengths that differ. A test in which all end
# together finds nothing.
#
# ## Break it: padding attended to
#
# The same question in a rectangle, beside prompts that are longer by 0, 2 and 8 tokens, and the mask is forgotten:


# %%
def beside_longer(by):
    state = fused.new_state(64)
    new, made = [0] * by + texts[0], []
    for _ in range(12):
        made.append(int(fused.forward(state, new).argmax()))
        new = made[-1:]
    return " ".join(tiny.tokenizer.decode(made).split())


for by in (0, 2, 8):
    print(f"{by} longer: {beside_longer(by)}")

# %% [markdown]
# **Symptom:** asked about *for*, it answers about *if*, fluently. It does so only if a longer prompt is in the same batch, and
# the longer that is, the worse. Short prompts suffer, long ones never do.
#
# **How to find it:** again alone and in company; and this time the answer depends only on the *length* of the longest
# neighbour, not on what it says. Nothing leaks from one text to another. It is the shape of the batch that does.
#
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %%
from llambda.course.exercises import batching as check

# %% [markdown]
# ### Exercise 12.1 · Where arithmetic takes over
#
# *predict · 5 minutes · difficulty 2 of 5*
#
# A machine computes 60 GFLOP/s and reads 24 GB/s. Its model has float32 weights, and the keys and values are too few to count.
# At which batch does arithmetic take as long as reading?

# %% tags=["exercise"]
batch_size = ...

# %% tags=["checker"]
check.crossover(batch_size)

# %% [markdown]
# <details><summary>Hint</summary>
#
# How many operations does the machine do while one weight comes in? How many of them does one text need?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# batch_size = 60e9 / 24e9 * 4 / 2
# ```
#
# 2.5 operations for each byte, 10 for each weight, and a text needs 2 of them.
#
# </details>

# %% [markdown]
# ### Exercise 12.2 · The best tile
#
# *code · 12 minutes · difficulty 3 of 5*
#
# A core has a number of vector registers. A tile of `vectors` registers of rows and `tokens` tokens needs
#
# - a register for each sum, and there are `vectors * tokens` of them;
# - `vectors` registers for the weights of the current column, which all tokens need;
# - one for the current token's number, in all its lanes. (The next token's number comes into the same register.)
#
# A column takes `vectors + tokens` loads and does `vectors * tokens` multiply-adds. Write `best_tile(registers)`: the pair
# `(vectors, tokens)` with the most multiply-adds for each load among all that fit. If several are equally good, any of them
# will do. There are at least 3 registers.


# %% tags=["exercise"]
def best_tile(registers):
    """(vectors, tokens) of the tile with most multiply-adds a load that fits."""
    ...


# %% tags=["checker"]
check.tile(best_tile)

# %% [markdown]
# <details><summary>Hint</summary>
#
# There are few enough to try them all. `max` takes a `key`.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def best_tile(registers):
#     shapes = product(range(1, registers), repeat=2)
#     fitting = [(v, t) for v, t in shapes if v * t + v + 1 <= registers]
#     return max(fitting, key=lambda tile: tile[0] * tile[1] / sum(tile))
# ```
#
# For 16 registers the square 4 x 4 would be better, and does not fit: its sums alone take all 16. A little less tall than wide is
# best, because each register of rows costs one more for its weights.
#
# </details>

# %% [markdown]
# ### Exercise 12.3 · Join and leave
#
# *code · 25 minutes · difficulty 4 of 5*
#
# Write the loop of a server. `serve(engine, places, requests)` gets
#
# - `engine`, whose `forward(places, new_ids)` takes two lists of one length: some places, each at most once, and for each a
#   list of at least one id. It puts these ids behind what the place holds, all in one call, and returns a list with the next id
#   of each.
# - `places`, a list of at least one. A place has room for one text at a time. It may still hold an old one, of somebody else;
#   `place.truncate(0)` empties it.
# - `requests`, a list of prompts (lists of ids), in the order in which they came.
#
# A text has ended when its next id is `check.END`, which is the last id of its answer. Return a list of answers, each a list of
# ids, in the order of the requests; every answer must be the one that its prompt gets alone. Who comes first joins first, a
# place is never free while somebody waits, and nothing is evaluated in vain: a joining prompt whole and once, then only the
# newest id, and `END` not at all. `requests` stays as it is. The checker reads the engine's log.


# %% tags=["exercise"]
def serve(engine, places, requests):
    """The answers to all requests, in their order."""
    ...


# %% tags=["checker"]
check.serve(serve)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Keep three lists: numbers of requests that wait, free places, and those who run, each as (request, place, ids to evaluate
# next). One turn of the loop: let join, call the engine once, look at the next ids. When are you done?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def serve(engine, places, requests):
#     answers = [[] for _ in requests]
#     waiting, free, running = list(range(len(requests))), list(places), []
#     while waiting or running:
#         while waiting and free:
#             request, place = waiting.pop(0), free.pop(0)
#             place.truncate(0)
#             running.append((request, place, requests[request]))
#         _, used, new = zip(*running)
#         following = engine.forward(list(used), list(new))
#         turns, running = zip(running, following), []
#         for (request, place, _), token in turns:
#             answers[request].append(token)
#             if token == check.END:
#                 free.append(place)
#             else:
#                 running.append((request, place, [token]))
#     return answers
# ```
#
# The place is emptied when somebody joins, not when somebody leaves. So it does not matter in which state it was left, by a
# text that ended or by one that failed.
#
# </details>

# %% [markdown]
# ### Exercise 12.4 · A bubble
#
# *predict · 5 minutes · difficulty 2 of 5*
#
# A pipeline of 2 stages and 4 micro-batches; every stage takes one turn for a micro-batch. Count the turns of *both* stages,
# from the first to the last in which anything is done. In which share of them does a stage have nothing to do?

# %% tags=["exercise"]
idle_share = ...

# %% tags=["checker"]
check.bubble(idle_share)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Draw it, as in the picture of three micro-batches.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# idle_share = 2 / (2 * 5)
# ```
#
# Two stages, five turns each, and of these ten two are idle: stage 1 in the first turn, stage 0 in the last.
#
# </details>

# %% [markdown]
# ## Recap
#
# A token reads every weight and uses it for two operations; a batch uses it for two operations more with each text, at no cost
# until arithmetic becomes the limit. What belongs to a text alone is little, its position and its cache, so texts can join and
# leave between any two calls; if every sum has one order, each gets the same bits as alone, and a test can say so. Pipelines
# divide the weights among machines, and pay with bubbles and with smaller batches; on one machine one bus feeds all stages.
#
# The engine is complete. It has a dozen places where a small mistake gives fluent nonsense, and you have planted some of them.
# The next lesson makes finding them a method: **13 · It talks nonsense. Now what?**
#
# **Further reading.**
#
# - Kazushige Goto and Robert van de Geijn, *Anatomy of High-Performance Matrix Multiplication*, 2008: tiles for every level of
#   memory.
# - Field Van Zee and Robert van de Geijn, *BLIS: A Framework for Rapidly Instantiating BLAS Functionality*, 2015: the same as
#   one small kernel.
# - Gyeong-In Yu and others, *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022: join and
#   leave.
# - Amey Agrawal and others, *SARATHI: Efficient LLM Inference by Piggybacking Decodes with Chunked Prefills*, 2023: prompts in
#   parts.
# - Yanping Huang and others, *GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism*, 2019:
#   micro-batches and bubbles.
# - Reiner Pope and others, *Efficiently Scaling Transformer Inference*, 2022: how to divide a model among many chips.
