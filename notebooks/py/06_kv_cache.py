# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 · The KV cache
#
# **Why can it stop slowing down?**
#
# - **You will build** the memory of a language model: a cache for keys and values, in one piece, and on it an engine that
#   evaluates every token once.
# - **You will be able to** say why a new token cannot change the past, how many bytes a position takes, and which mistakes
#   you only find by cutting a prompt in all possible ways.
# - **You need** a matrix product, and the idea that a model is a stack of *layers* through which every token passes. Lesson 04
#   builds the layers; here they are imported, and what you need to know of them is explained.
#
# *60 minutes · difficulty 3 of 5*
#
# In the picture a new box is lit. It stands under attention, because attention is the only part that will use it.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("06")

# %% [markdown]
# ## Build: a loop that redoes everything
#
# A language model reads **tokens**: pieces of text, each with a number, its **id**. A token's place in the text is its
# **position**, counted from 0. Here are the nine tokens of our prompt. The first has no text: it marks the start.

# %% tags=["core"]
import numpy as np

import llambda

model = llambda.load("tiny", engine="naive")
config, tokenizer, naive = model.config, model.tokenizer, model.engine
ids = tokenizer.encode("The for statement is used to iterate")
tokens = ["(start)", *(tokenizer.decode([token]).strip() for token in ids[1:])]
tokens

# %% [markdown]
# An **engine** is a model ready to run; a **state** is one text in it, with room for a number of positions. `forward(state, ids)`
# puts ids at the end of that text and returns the **logits**: one score for every token the model knows, high if it is likely
# to come next.
#
# The simplest way to write is **greedy**: take the token with the highest score, put it at the end, ask again. The first call
# gets the prompt, every other one the newest token alone. We need this loop for several engines, so it takes the `forward` to
# use.


# %% tags=["core"]
def greedy(forward, ids, count):
    """`count` ids, each the likeliest after all that stand before it."""
    made = []
    for _ in range(count):
        logits = forward(made[-1:] or ids)
        made.append(int(logits.argmax()))
    return made


# %% tags=["core"]
from functools import partial

wanted = greedy(partial(naive.forward, naive.new_state(64)), ids, 14)
tokenizer.decode(wanted)

# %% [markdown]
# It writes. Now look at how this engine, which is lesson 04's, goes about it: at the line that begins with `every_id`, and the
# one below.

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.engines import NaiveEngine

show(NaiveEngine.forward)

# %% [markdown]
# Each call evaluates *every* id of the text, from the first one on. We asked 14 times: with the prompt, and with each new
# token but the last.

# %% tags=["core"]
evaluated = [len(ids) + new for new in range(14)]
print(f"{sum(evaluated)} positions evaluated for a text of {evaluated[-1]}")

# %% [markdown]
# Positions 0 to 8 went through the whole model 14 times. Did they come out any different the second time? That is the
# question of this lesson.
#
# ## Build: what one position wants from another
#
# In every layer each position makes three short vectors from what it knows so far:
#
# - a **query** q: what it is looking for,
# - a **key** k: what others can find it by,
# - a **value** v: what it hands to those who find it.
#
# **Attention** takes the dot product of a query with each key: a **score**. A softmax turns the scores of one query into shares
# that add up to 1, and the values are added up in these shares. The **causal mask** allows a position to look at itself and
# at those before it, and at none after it.
#
# A layer does this in several **heads**, each with vectors of its own. In our models two or three query heads share one
# key/value head (*grouped-query attention*, GQA). Here are random vectors of six positions, and lesson 04's function:

# %%
from llambda.kernels.attention import attention

rng = np.random.default_rng(6)
q = rng.normal(size=(6, 4, 8)).astype(np.float32)  # [n, n_heads, head_dim]
keys, values = rng.normal(size=(2, 2, 6, 8)).astype(np.float32)  # [n_kv_heads, n, head_dim] each
rows = attention(q, keys, values, start=0)  # [n, n_heads, head_dim]
rows.shape

# %% [markdown]
# `start` is the position of the first query. So we can also ask for the last row alone: one query, at position 5, and all
# the keys and values.

# %%
last = attention(q[5:], keys, values, start=5)  # [1, n_heads, head_dim]
bool(np.abs(last - rows[5:]).max() < 1e-6)

# %% [markdown]
# The same row, for a sixth of the queries. Look at what that means for our nine tokens, in one head. A square is a score: the
# token on the left looks at the token above. Blue is what this call needs.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.kv_cache import triangle

triangle(tokens)

# %% [markdown]
# The next token is chosen from the last row of the last layer. What are the other rows for? The next layer makes its keys and
# values from them, and that is all. So whoever has the old keys and values of *every* layer never asks an old query again. Can
# we keep those of the last call? Only if they are still right.
#
# ## Build: does the past change?
#
# In the last of this model's three layers, a key is made from all that two layers of attention have mixed together. Now one
# token is added at the end, and everything is computed again. Of the eight positions that were there before, how many have
# changed their keys in the last layer? Guess a number.

# %% tags=["core"]
from llambda.course.predictions import outcome, predict

guess = ...
predict("06.frozen", "of 8 positions, those whose keys change", guess)

# %% [markdown]
# `forward` fills a dict with every intermediate result, if it is given one as `trace`. We take out the keys of all layers,
# once for eight tokens and once for nine. They are called `k_rope`; the second half of the name is explained further down.


# %% tags=["core"]
def in_all_layers(name, ids):
    """What the naive engine computes under this name: an array a layer."""
    trace = {}
    naive.forward(naive.new_state(len(ids)), ids, trace=trace)
    return [trace[f"blk.{i}.{name}"] for i in range(config.n_layers)]  # [n, n_kv_heads, head_dim]


eight, nine = in_all_layers("k_rope", ids[:8]), in_all_layers("k_rope", ids)

# %% [markdown]
# Two results count as different if they are further apart than 0.0001. The keys are numbers up to 12, and rounding
# moves those by 0.00001 or so.


# %% tags=["core"]
def changed(before, after):
    """Whether a position's vectors differ, layer by layer: bool [n_layers, n]."""
    return np.array([np.abs(a - b).max((1, 2)) > 1e-4 for a, b in zip(before, after, strict=True)])


frozen = changed(eight, [keys[:8] for keys in nine])
outcome("06.frozen", "of 8 positions, those whose keys change", int(frozen[-1].sum()))

# %% [markdown]
# None. Now let us change a token in the middle: position 3, *statement*, becomes *function*. Where will keys change? A `#` is
# a position whose keys have changed, a dot one whose keys have not.


# %% tags=["core"]
def draw(changes):
    for layer, row in enumerate(changes):
        print(f"layer {layer}  " + "".join("#" if each else "." for each in row))


other = [*ids[:3], *tokenizer.encode(" function")[1:], *ids[4:]]
draw(changed(nine, in_all_layers("k_rope", other)))

# %% [markdown]
# Look at the shape. In layer 0 a key is made from its own token alone. Above it, what is new at position 3 reaches positions
# 3, 4, 5 and on, and **never one on the left**. It cannot: attention is the only place where positions meet, and the mask lets
# nobody look to the right.
#
# Is it really the mask? Take it away. `patch` replaces a function while the block runs; a start far to the right hides
# nothing.

# %%
from unittest.mock import patch


def sees_everything(q, keys, values, start):
    return attention(q, keys, values, start=keys.shape[1])  # to the right of all keys


with patch("llambda.engines.naive.attention", sees_everything):
    before, after = in_all_layers("k_rope", ids[:8]), in_all_layers("k_rope", ids)
draw(changed(before, [keys[:8] for keys in after]))

# %% [markdown]
# Without the mask one token at the end changes everything from layer 1 on. Models that read in both directions, as BERT
# does, are built like that, and there such a cache would be wrong.
#
# **The mask freezes the past, so keys and values never change again.** What the loop computes anew for every token are
# constants. Without them at hand, token *n* costs *n* passes through the model; with them it costs one. Later lessons do the
# same work faster: that is optimization. This is a decision about what to store, and no fast kernel can stand in for it.
#
# ## Build: keep them, naively
#
# The first idea: arrays that grow. Each new position is put at their end. Here with the random vectors from above:

# %%
kept_keys, kept_values = keys[:, :0], values[:, :0]
for p in range(6):
    kept_keys = np.concatenate([kept_keys, keys[:, p : p + 1]], axis=1)
    kept_values = np.concatenate([kept_values, values[:, p : p + 1]], axis=1)
    row = attention(q[p : p + 1], kept_keys, kept_values, start=p)
    assert np.abs(row - rows[p]).max() < 1e-6
print("six steps, six equal rows")

# %% [markdown]
# It is right. But `np.concatenate` makes a new array and copies the old one into it. Our model was made for 512 positions, its
# **context**. Until they are full, 0 + 1 + 2 + ... + 511 = 130,816 positions have been copied to keep 512. We have saved the
# arithmetic, and now the copies grow with the length. (Growing in larger steps makes them rare. But either way nobody knows
# whether the memory will be enough until it is not, in the middle of an answer.)
#
# ## Build: one allocation
#
# What a cache takes is known before the first token:
#
# $$\text{bytes} = \text{layers} \times 2 \times \text{key/value heads} \times \text{positions} \times \text{head\_dim} \times \text{bytes of a number}$$
#
# The 2 stands for keys and values. Query heads do not occur: nobody asks for an old query. Our model has 4 of them, and 2
# key/value heads; a number is a float32 of 4 bytes.

# %%
position_bytes = config.n_layers * 2 * config.n_kv_heads * config.head_dim * 4
print(f"{config.n_layers} x 2 x {config.n_kv_heads} x {config.head_dim} x 4 = {position_bytes:,}")

# %% [markdown]
# So we ask for all of it at once, and fill it position by position. Read `extend` slowly: it stores what is new, and returns
# everything up to it.


# %% tags=["core"]
class Cache:
    def __init__(self, config, context):
        shape = (config.n_layers, 2, config.n_kv_heads, context, config.head_dim)
        self.data = np.zeros(shape, np.float32)
        self.length = 0  # positions that are filled

    def extend(self, layer, k, v):  # [n, n_kv_heads, head_dim] each
        end = self.length + len(k)
        keys, values = self.data[layer]  # [n_kv_heads, context, head_dim] each
        keys[:, self.length : end] = k.swapaxes(0, 1)
        values[:, self.length : end] = v.swapaxes(0, 1)
        return keys[:, :end], values[:, :end]


# %% [markdown]
# Two decisions are hidden in it.
#
# *The order of the axes.* The position comes after the head, so one head's keys lie side by side in memory, in the order in
# which attention reads them.
#
# *Who counts.* `extend` does not touch `length`. Each of the three layers comes by with the keys of the *same* positions; if
# the first one moved the length on, the second would store its keys in the wrong place.
#
# ## Build: prefill, then steps
#
# Now the whole model. Below is one layer as lesson 04 wrote it. Look for the line with `store`: keys and values have just
# been made, and attention is about to read them. The naive engine's `store` is `remember_nothing`: it hands back what came in.

# %% tags=["nbval-ignore-output"]
from llambda.engines.naive import remember_nothing

show(NaiveEngine.block, remember_nothing)

# %% [markdown]
# That is the place for our cache. `naive.evaluate` sends ids through all layers; it takes the position of the first of them
# (`start`) and the `store`. The other arguments say that we want the logits of the last id only.


# %% tags=["core"]
def run(cache, ids, trace=None):
    """Evaluate ids behind what the cache holds. Returns the last one's logits."""
    logits = naive.evaluate(
        ids,
        start=cache.length,
        store=cache.extend,
        n_new=len(ids),
        all_logits=False,
        trace=trace,
    )
    cache.length += len(ids)
    return logits


# %% [markdown]
# Three things hang on that one number, `cache.length`:
#
# - the **place** where keys and values are stored;
# - the **mask**: query *i* of this call stands at position `length + i`, and sees the keys up to there;
# - the **angle**: before queries and keys meet, they are *rotated* by angles that grow with the position (**RoPE**, rotary
#   position embedding). In their dot product only the difference of the angles is left, and so the *distance* of the two
#   positions. Keys are stored rotated, for their position does not change any more.
#
# After the last layer, and not before, the length moves on. Now write:

# %% tags=["core"]
cache = Cache(config, 64)
made = greedy(partial(run, cache), ids, 14)
print(tokenizer.decode(made))
print("the same ids as without a cache:", made == wanted)

# %% [markdown]
# The same text, and every position went through the model once: 22 of them instead of 217.
#
# The first call, with the whole prompt, is called **prefill**; the following ones, with a token each, are **steps**. For our
# function they are the same thing: a number of ids at some start. So a prompt may be cut anywhere. In the picture, a frame is a
# call.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.kv_cache import calls

calls([[9], [4, 3, 2], [5, 1, 1, 1, 1]])

# %% [markdown]
# The blank corner of a frame is what the mask hides. (NumPy computes it too, and throws it away.) A step has none: its one query
# sees all the keys there are. The second call of the middle picture has a small one, for its first query sees the four old
# positions and itself. To mask it as if it stood at position 0 is a common mistake, and part of your first exercise.

# %%
cache = Cache(config, 64)
for chunk in (ids[:4], ids[4:7], ids[7:]):
    logits = run(cache, chunk)
print("after calls of 4, 3, 2:", repr(tokenizer.decode([int(logits.argmax())])))

# %% [markdown]
# ## Build: forget, and use again
#
# In a chat, the second question is sent together with all that was said before, and that part is in the cache already. This is
# **prefix reuse**: keep what the old text and the new one have in common, cut the rest off, evaluate what is new. Nothing has to
# be erased for it. The length says what counts, and what lies behind it is scrap that nobody reads. A length of 0 begins a new
# text.

# %%
new = [*ids[:6], *tokenizer.encode(" in a list")[1:]]  # (start) The for statement is used in a list
fresh = run(Cache(config, 64), new)
for kept in (6, 0):
    cache.length = kept
    same = np.abs(run(cache, new[kept:]) - fresh).max() < 1e-3
    print(f"{kept} kept, {len(new) - kept} evaluated, the same logits:", bool(same))

# %% [markdown]
# One trap is left in there. What if the new text is wholly in the cache, being a beginning of the old one? That is your third
# exercise.
#
# ## Build: the finished form
#
# In the package the cache stands in a module of its own, and the engine is what you have just seen: the naive one with another
# `store`. What is added are checks: too many ids, ids that do not exist, a state of another engine. A `State` keeps the ids
# themselves, and their number is the length; `truncate(length)` cuts it. A `CachedState` is a `State` that has a `KVCache`.

# %% tags=["nbval-ignore-output"]
from llambda.cache import KVCache
from llambda.engines import CachedEngine
from llambda.engines.base import State

show(KVCache, CachedEngine, State)

# %% [markdown]
# Does it write the same text as our form, hold the same numbers, and take what the formula says?

# %% tags=["core"]
fast = llambda.load("tiny", engine="cached")
cached = fast.engine
state, ours = cached.new_state(64), Cache(config, 64)
print("the same ids:", greedy(partial(cached.forward, state), ids, 14) == wanted)
greedy(partial(run, ours), ids, 14)
print("the same numbers:", bool(np.abs(ours.data - state.cache.data).max() < 1e-4))
print("the same bytes:", ours.data.nbytes == state.cache.data.nbytes == 64 * 1536)

# %% [markdown]
# What is small for `tiny` is not small for others. Llama 3.1 8B has 32 layers and 8 key/value heads of 128 numbers, which
# programs mostly keep in 2 bytes each, and room for 131,072 positions:

# %%
position = 32 * 2 * 8 * 128 * 2  # bytes
print(f"{position / 1024:.0f} KiB a position, {131_072 * position / 1e9:.1f} GB when it is full")

# %% [markdown]
# Its weights take 16 GB in the same format. A full cache is larger than the model.
#
# <details><summary>In Lisp</summary>
#
# ```lisp
# (defstruct (kv-cache (:constructor make-kv-cache (data)))
#   (data nil :type (simple-array single-float (* * * * *)))  ; layer, k or v, head, position, i
#   (length 0 :type fixnum))
#
# (defun new-cache (layers heads context width)
#   (make-kv-cache (make-array (list layers 2 heads context width)
#                              :element-type 'single-float :initial-element 0f0)))
# ```
#
# One typed array, allocated once: 4 bytes a number. In a list every number takes a cell of two words, 16 bytes on a 64-bit
# machine, and the next one may lie anywhere. The layout decides, not the language.
#
# </details>

# %% [markdown]
# ## Check: equal, but not to the last bit
#
# The cached engine does the same multiplications and additions as the naive one. Are its logits the same bits? Look at one
# matrix and nine rows, multiplied all at once and one by one:

# %% tags=["nbval-ignore-output"]
rng = np.random.default_rng(0)
matrix = rng.normal(size=(320, 128)).astype(np.float32)
nine_rows = rng.normal(size=(9, 128)).astype(np.float32)
together = nine_rows @ matrix.T
alone = np.stack([row @ matrix.T for row in nine_rows])
furthest = np.abs(together - alone).max()
print(f"{(together != alone).mean():.0%} of the elements differ, by up to {furthest:.0e}")

# %% [markdown]
# Matrix times matrix (**GEMM**) and matrix times vector (**GEMV**) are two programs in NumPy's library. Each adds the 128
# products of an element in an order of its own, and the sum of rounded numbers depends on the order: in float32
# 10⁸ + 1 - 10⁸ is 0, and 10⁸ - 10⁸ + 1 is 1.
#
# So prefill and steps agree except for rounding. How much may that be? Let *u* = 2⁻²⁴ be the largest error of one float32
# operation, as a share of its result. Roundings go up as often as down; after *N* additions in a row their errors have walked
# about √*N* · *u* away. *N* is what stands in a row from the first token to a logit, each sum being an input of the next.
# `llambda.check` counts it. It allows 64 times that walk, since some operations enlarge the errors they are given, and adds
# 8 *u* a position for the angles (lesson 04 derives both):

# %%
from llambda.check import additions, tolerances

n = int(additions(config, 9)["logits"][-1])
share = tolerances(config, 9)["logits"][-1]
print(f"{n} additions in a row; off by a share of {share:.1e} at most")

# %% [markdown]
# First against a second program: lesson 04's reference, written in PyTorch, computes the same model in float64 and without a
# cache. `compare_engine` holds every intermediate result against it, layer by layer. We cut the prompt in calls of 4, 3, 1
# and 1.

# %%
from llambda.check import compare_engine

report = compare_engine(cached, config, model.weights, ids, chunks=[4, 3, 1, 1])
print(len(report.comparisons), "results, all within the tolerance:", report.divergence is None)

# %% [markdown]
# And now all cuts. Nine tokens can be divided into calls in 256 ways: between any two neighbours there is a cut or not, and
# 2⁸ = 256.


# %%
def chunkings(n):
    """Every way to write n as a sum of counts, in order."""
    if n == 0:
        return [[]]
    return [[first, *rest] for first in range(1, n + 1) for rest in chunkings(n - first)]


# %% [markdown]
# Whatever the way, the last logits must be those of the naive engine. Both may be off the truth by the tolerance, so they may be
# twice that apart. The tolerance is a share of a logit's size. A logit near 0 was added up from larger numbers, so the root mean
# square of all logits counts as well: `np.hypot(a, b)` is √(a² + b²).


# %%
def worst(sizes):
    """The largest distance from the naive engine's logits, as a share of what is allowed."""
    state, at = cached.new_state(9), 0
    for size in sizes:
        logits = cached.forward(state, ids[at : at + size])
        at += size
    return (np.abs(logits - whole) / allowed).max()


whole = naive.forward(naive.new_state(9), ids)  # [vocab_size]
allowed = 2 * share * np.hypot(whole, np.sqrt(np.mean(whole**2)))  # [vocab_size]
print(f"allowed: {allowed.min():.4f} and more, for logits up to {np.abs(whole).max():.0f}")

# %%
off = {tuple(sizes): worst(sizes) for sizes in chunkings(9)}
print(len(off), "chunkings, all within the bound:", max(off.values()) < 1)

# %% [markdown]
# A check is worth what it rejects. Here is a mistake found in real programs: the position is moved on too early, so the angles
# are those of the *next* call's positions. `table` makes the angles for positions from `start` to `end - 1`.

# %%
from llambda.kernels.rope import table


def too_late(turning, start, end):
    return table(turning, end, end + end - start)


with patch("llambda.engines.naive.table", too_late):
    off = {tuple(sizes): worst(sizes) for sizes in chunkings(9)}
print("the planted mistake is noticed:", max(off.values()) > 1)

# %% [markdown]
# Which cuts overlook it? Guess first: how many of the 256?

# %%
guess = ...
predict("06.blind", "of 256 chunkings, those that overlook the mistake", guess)

# %%
blind = [sizes for sizes, most in off.items() if most < 1]
outcome("06.blind", "of 256 chunkings, those that overlook the mistake", len(blind))
blind

# %% [markdown]
# Look which they are: the whole prompt in one call, single steps from the start, and three times three. RoPE leaves only the
# *distance* of two positions. If all calls are of one size, all angles are late by the same amount, and every distance is right.
# So the two tests that everybody writes, everything at once and one by one, are blind to this mistake. Test all the cuts.
#
# At last the real model, if it is here. Its weights are loaded once: `slow` runs the naive engine's `forward` on the cached
# engine, so all that differs is whether keys and values are kept.

# %% tags=["real", "nbval-ignore-output"]
from llambda.fetch import KNOWN

if KNOWN["smollm2"].is_here:
    with llambda.load("smollm2", engine="cached") as real:
        engine, start = real.engine, real.tokenizer.encode("A cache is")
        slow = greedy(partial(NaiveEngine.forward, engine, State(engine, 64)), start, 12)
        quick = greedy(partial(engine.forward, engine.new_state(64)), start, 12)
        print(real.tokenizer.decode(quick))
        assert quick == slow
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: flat against rising
#
# Time at last. Both engines write 256 tokens, and we take the time of each. Guess: without a cache the last of them takes
# longer than with one. How many times as long?

# %%
guess = ...
predict("06.last", "time of token 256 without a cache over that with one", guess)


# %% tags=["core"]
import time


def seconds_a_token(engine, count):
    state, token, seconds = engine.new_state(count), ids[0], []
    for _ in range(count):
        begin = time.perf_counter()
        logits = engine.forward(state, [token])
        seconds.append(time.perf_counter() - begin)
        token = int(logits.argmax())
    return seconds


# %% tags=["nbval-ignore-output", "core"]
measured = {
    "without a cache": seconds_a_token(naive, 256),
    "with a cache": seconds_a_token(cached, 256),
}
late = [float(np.median(seconds[-16:])) for seconds in measured.values()]
outcome("06.last", "time of token 256 without a cache over that with one", late[0] / late[1])
assert late[0] > 2 * late[1]

# %% [markdown]
# Beside the clock, a count that no machine can disturb: the multiplications of the last token. Every weight of a matrix is one
# for each row that goes through it. Attention has, in each layer and query head, `head_dim` of them for a score and as many for a
# value in the mix. The naive engine sends 256 rows through the layers, and only the last one through the head, the matrix that
# makes the logits.

# %% tags=["core"]
matrices = sum(t.size for t in model.weights.unique() if len(t.shape) == 2)
head = model.weights.head.size  # one of them; it serves as the table of embeddings too
looking = config.n_layers * 2 * config.n_heads * config.head_dim  # one query, one key and value
counted = {"weights": [matrices] * 256, "attention": [looking * (p + 1) for p in range(256)]}
with_cache = matrices + looking * 256
without = 256 * (matrices - head + looking * 256) + head
print(f"{without:,} without a cache; {with_cache:,} with one")

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures.kv_cache import per_token

per_token(measured, counted)

# %% [markdown]
# Without a cache, each token pays for all before it. With one, the line on the left is flat, or nearly. On the right you see
# what is left of the slope: the last row of the triangle still grows by one score a token. Here it makes 30% more after
# 256 tokens. When does attention cost as much as all the weights? Lesson 07 asks you.
#
# The two panels raise a question. Without a cache the last token has 216 times the multiplications, and takes nowhere near 216
# times as long. So a multiplication is no unit of time. When 256 rows go through a matrix together, each weight that is fetched
# serves all of them, and so does each of Python's calls; a single row pays for both alone. What a step really waits for is the
# subject of lesson 07.
#
# **The ladder so far.** Every lesson from here on adds a rung: tokens a second while decoding, on the real model if it is here.
# The line is this machine's ceiling from lesson 00. The prompt is short, so the naive engine is shown at its best.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.progress import ladder_so_far

_ = ladder_so_far("cached")

# %% [markdown]
# ## Break it: a stale position
#
# With the memory comes a new way to go wrong: right at first, wrong later, because of what was kept. Here is lesson 04's table
# again. What is bold is new.
#
# | symptom | look first at |
# |---|---|
# | text is garbage, or one token for ever | tokenizer, sampling, how weights are parsed |
# | text is well formed, but wrong | weights, precision, shapes; **and, if it begins right, the cache** |
# | crash or fault | alignment, foreign pointers, bounds, a missing CPU feature |
# | slow | no SIMD, task size, contention, too many threads |
# | now right, now wrong | a race, a seed, order of addition; **a state used twice** |
#
# The first fault: somebody moves the position on after the prompt, and forgets it after a step.


# %%
def stale(cache, ids, trace=None):
    logits = run(cache, ids, trace)
    if len(ids) == 1:  # the planted mistake: after a step the length is as it was
        cache.length -= 1
    return logits


print("right:", tokenizer.decode(wanted))
print("stale:", tokenizer.decode(greedy(partial(stale, Cache(config, 64)), ids, 14)))

# %% [markdown]
# **Symptom:** it begins well, then it goes round in circles. Every new token is stored on top of the one before, so the model
# remembers the prompt and a single word.
#
# **How to find it:** switch the cache off. If the fault is gone, compare the two engines, result by result in the order in which
# they are computed, and name the *first* that differs. First, not largest: an error grows on its way.


# %%
def traced(forward, ids, sizes):
    """All intermediate results of ids in calls of these sizes."""
    parts, at = [], 0
    for size in sizes:
        parts.append({})
        forward(ids[at : at + size], trace=parts[-1])
        at += size
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# %%
from llambda.check import first_divergence

text = ids + wanted[:4]
right = traced(partial(naive.forward, naive.new_state(13)), text, [13])
wrong = traced(partial(stale, Cache(config, 13)), text, [9, 1, 1, 1, 1])
found = first_divergence(wrong, right, config)
print(f"layer {found.layer}, {found.operation}, position {found.position}")

# %% [markdown]
# In the first layer the query was still right before its rotation, and is wrong after it, at position 10. That is the second
# step, and a rotation uses one number: the position. There is not much left to search. And note position 9, the first step: it
# is right. A test with a single step sees nothing.
#
# ## Break it: one state, two texts
#
# A server answers two people. It has one engine, and that is fine: an engine only reads its weights. It also has one state, and
# that is not. The two texts take turns:


# %%
def take_turns(states, prompts, count):
    following = [tokenizer.encode(prompt) for prompt in prompts]
    texts = list(prompts)
    for _ in range(count):
        for i, state in enumerate(states):
            logits = cached.forward(state, following[i])
            following[i] = [int(logits.argmax())]
            texts[i] += tokenizer.decode(following[i])
    return [" ".join(text.split()) for text in texts]


# %%
prompts = ["The for statement", "The import statement"]
shared = cached.new_state(64)
for states in ([cached.new_state(64), cached.new_state(64)], [shared, shared]):
    print(*take_turns(states, prompts, 12), sep="\n", end="\n\n")

# %% [markdown]
# First with a state each, then with a shared one. **Symptom:** each request alone is fine; when there are several, the answers are
# about something else. No error, no crash. **How to find it:** send the same request alone and among others, and compare. **The
# guard:** a state keeps its ids, so a generation can refuse one that is not its own:

# %%
from llambda.errors import LlambdaError

try:
    fast.generate("The import statement", state=shared)
except LlambdaError as error:
    print(error)

# %% [markdown]
# ## Break it: a full cache
#
# Our own `Cache` with room for 12 positions, a prompt of 9 and 14 new tokens. What will happen at the thirteenth position? An
# error, surely?

# %%
tokenizer.decode(greedy(partial(run, Cache(config, 12)), ids, 14))

# %% [markdown]
# No error at all. The text begins like the right one, and loses itself. Look at what NumPy does with a slice that lies
# beyond the end:

# %%
box = np.zeros((2, 12, 4))
box[:, 12:13] = np.ones((2, 1, 4))  # one position too many: no complaint
box[:, 12:13].shape, bool(box.any())

# %% [markdown]
# The slice is cut to what is there, which is nothing; NumPy stretches one row to any length, here to 0; and nothing is stored.
# Each new token then sees the first 12 and not even itself. With *two* rows there would be an error. So a prompt that is too
# long fails aloud, and a step fails in silence.
#
# The engine asks before it begins, and a refused call leaves the state as it was:

# %%
state = cached.new_state(12)
cached.forward(state, ids)
try:
    cached.forward(state, [1, 2, 3, 4])
except LlambdaError as error:
    print(error)
print("still at position", state.length)

# %% [markdown]
# Could one not throw the oldest tokens away and go on? Let us see what the past owes to them. Drop the first three tokens, and
# compare the values that the cache would keep with those of a fresh run on the six tokens left:

# %%
kept = [values[3:] for values in in_all_layers("v", ids)]
draw(changed(kept, in_all_layers("v", ids[3:])))

# %% [markdown]
# Only layer 0 is the same. The values above it were made by looking at tokens which are gone now, and the keys are rotated
# for places that are no longer theirs. Even if they were rotated again, a shifted cache would not be what a fresh run on the
# kept tokens gives. Some programs shift all the same, because it is cheap. Ours does not: a generation that meets the end of its
# context stops there and says so. The exact way on is to evaluate the kept tokens again.
#
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and hints and a solution folded below.

# %%
from llambda.course.exercises import kv_cache as check

# %% [markdown]
# ### Exercise 06.1 · A chunk at any start
#
# *code · 12 minutes · difficulty 3 of 5*
#
# Write the attention of one layer for a chunk: some tokens whose first stands at position `start`.
#
# - `q` [n, 4, 8], `k` and `v` [n, 2, 8] belong to the n new tokens: 4 query heads, 2 key/value heads, 8 numbers each. They are not
#   rotated yet. `check.turn(x, start)` rotates `x`, whose rows stand at positions `start`, `start + 1` and so on.
# - `keys` and `values` [2, room, 8] are the cache of this layer, with room enough. Before `start` they hold what your function
#   stored there in earlier calls. From `start` on lies scrap from another text.
# - Store what is new, and return the chunk's rows [n, 4, 8]. `attention(q, keys, values, start)` is the function from above: it
#   wants rotated queries and keys, and the keys and values of all positions from 0 to the chunk's last.
#
# The checker cuts nine tokens in all 256 ways, and every row must come out the same each time.


# %% tags=["exercise"]
def attend(q, k, v, start, keys, values):
    """Store the new keys and values, and return the chunk's rows, [n, 4, 8]."""
    ...


# %% tags=["checker"]
check.attend(attend)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `k.swapaxes(0, 1)` has the cache's order of axes. Three things depend on `start`: the place, the angle and the mask. Each new
# key is rotated once in its life.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def attend(q, k, v, start, keys, values):
#     end = start + len(q)
#     keys[:, start:end] = check.turn(k, start).swapaxes(0, 1)
#     values[:, start:end] = v.swapaxes(0, 1)
#     return attention(check.turn(q, start), keys[:, :end], values[:, :end], start)
# ```
#
# Two other ways give the same rows. One hands over the whole of `keys` and `values`: the mask hides the scrap, at the price of a
# score for every place in the room. The other stores keys unrotated and rotates all of them in every call, which is the kind of
# work that a cache is there to save.
#
# </details>

# %% [markdown]
# ### Exercise 06.2 · What a position takes
#
# *predict · 4 minutes · difficulty 1 of 5*
#
# `smollm2` has 30 layers of width 576, and in each of them 9 query heads and 3 key/value heads of 64 numbers. How many bytes
# does one position take in a cache of float32 numbers?

# %% tags=["exercise"]
bytes_a_position = ...

# %% tags=["checker"]
check.position_bytes(bytes_a_position)

# %% [markdown]
# <details><summary>Hint</summary>
#
# The formula stands under "one allocation". Which of the two kinds of heads is stored?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# bytes_a_position = 30 * 2 * 3 * 64 * 4
# ```
#
# With as many key/value heads as query heads it would be three times that. Fewer heads to keep is the whole point of GQA.
#
# </details>

# %% [markdown]
# ### Exercise 06.3 · A prefix used again
#
# *code · 10 minutes · difficulty 2 of 5*
#
# A state holds the ids of some text (`state.ids`, a list). Now the logits after another text are wanted. Write `reuse`, which
# brings the state to hold exactly `ids` (a list with at least one id), with as few of them evaluated as possible, and returns the
# logits after the last. `state.truncate(length)` cuts the state, and `engine.forward(state, some_ids)` evaluates ids behind what
# it holds; it refuses an empty list.
#
# Think of a state that holds A B C D, when A B C E is asked for. Then think of A B C.


# %% tags=["exercise"]
def reuse(engine, state, ids):
    """The logits after ids; afterwards state.ids == ids."""
    ...


# %% tags=["checker"]
check.reuse(reuse)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Count how many ids the two begin with in common. What does the state know after A B C D: the keys and values of C, or the
# logits that came after C?
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def reuse(engine, state, ids):
#     common = 0
#     while common < min(len(state.ids), len(ids) - 1) and state.ids[common] == ids[common]:
#         common += 1
#     state.truncate(common)
#     return engine.forward(state, ids[common:])
# ```
#
# The `- 1` is the exercise: at least the last id is evaluated, even if it was before. Without it A B C finds all of itself in the
# cache and evaluates nothing, and the only logits at hand are those after A B C D.
#
# </details>

# %% [markdown]
# ## Recap
#
# The causal mask lets nothing flow from later positions to earlier ones, so keys and values of the past are constants: they
# are stored once, in one array whose size is known before the first token. With it a prompt, a chunk and a step are the same
# operation at another start, and they agree within rounding, whatever the cuts. From now on a text has a memory, and with it a
# new kind of fault: right at first, wrong later.
#
# The next lesson needs the two engines and their rungs on the ladder. The cached one is flat, and still far below the
# ceiling: **07 · Where does the time go?**
#
# **Further reading.**
#
# - Ashish Vaswani and others, *Attention Is All You Need*, 2017: the mask, in section 3.2.3.
# - Noam Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019: why the cache should be small.
# - Joshua Ainslie and others, *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*, 2023.
# - Reiner Pope and others, *Efficiently Scaling Transformer Inference*, 2022: what the cache costs in large models.
# - Woosuk Kwon and others, *Efficient Memory Management for Large Language Model Serving with PagedAttention*, 2023: a cache
#   for many texts at once.
