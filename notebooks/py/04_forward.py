# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · The forward pass
#
# **What is a transformer, line by line?**
#
# - **You will build** one attention head in plain Python loops, and then a whole transformer in about fifty lines of
#   NumPy. It will run a real, trained model without a change.
# - **You will be able to** say what each of those lines does, which of them may look at other words, and, when an engine
#   is wrong, name the first operation at which it goes wrong.
# - **You need** Python and the matrix product. From the lessons before, two facts: a model file holds named arrays of
#   numbers, the weights (02); a text is a list of token ids (03).
#
# *120 minutes · difficulty 4 of 5*
#
# This is the heart of the course, and its longest lesson. Half way through there is a marked stop: by then you have built
# the only part that is hard to believe. If you have an hour, go as far as that.

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("04")

# %% [markdown]
# ## Build: a riddle first
#
# The tiny model that ships with the course, with the engine that this lesson builds (its name is `naive`), continues two
# texts. They differ in one word.

# %% tags=["core"]
import llambda

model = llambda.load("tiny", engine="naive")
for word in ("for", "with"):
    text = f"The {word} statement is used to"
    print(f"{text} ...{model.generate(text, max_tokens=6, temperature=0).text}")

# %% [markdown]
# Both answers are right: in Python, `for` iterates over elements, and `with` wraps the execution of a block. Now look at
# the *end* of the two texts. A model has a row of numbers for every token, and computes what comes next from the row of the
# last one. The last token is ` to` both times, and yet the model knew which word to use. So something carried the news from
# the second word to the last.
#
# **What carried it?** That is the riddle of this lesson. Here is the machine that it happens in. Do not try to understand
# the picture yet; every box in it will be a line of code that you wrote.

# %% tags=["nbval-ignore-output", "core"]
from llambda.course.figures import forward as figures

figures.front(model, "The for statement is used to iterate over the elements of a sequence", 1, 3)

# %% [markdown]
# *Left:* one **block** of the model, from the top down. Each bar is as wide as the row of numbers that it stands for; the
# model has three such blocks, one behind the other. *Right:* what one small part of it, a *head*, does with a text: each
# row is a word, and the dark squares in its row are the words that it looks at. Many words here look at `statement`.
# (Read *word* as *token* from here on: `iter` and `ate` count as two.)
#
# Count the steps of the block: a norm, three projections (q, k, v; a *projection* is a product with a matrix), two rotations,
# attention, a projection, an addition; then a norm, two projections, a gate, a projection, an addition. That makes 15, and every
# word passes through all of them. At how many of the 15 does a word take in anything from *another* word? Guess: replace
# the dots by a number.

# %% tags=["core"]
from llambda.course.predictions import outcome, predict

guess = ...
predict("04.lookers", "steps of a block, of 15, that look at other positions", guess)

# %% [markdown]
# ## Build: the model is a few arrays
#
# Lesson 02 turned a file into arrays. Here they are, as 32-bit floating point numbers (*float32*), together with the
# handful of sizes that says how they fit together:

# %% tags=["core"]
W, config = model.engine.weights, model.config
for name in ("n_layers", "dim", "n_heads", "n_kv_heads", "head_dim", "ffn_dim", "vocab_size"):
    print(f"{name:<11}{getattr(config, name):>5}")

# %% [markdown]
# `dim`, 128, is the most important one: between the blocks, a word is a row of 128 numbers. A **layer** is a block with its
# own weights: nine arrays. (It has places for biases too, numbers that are added to a product; this model has none.) There
# are three such layers, and two more arrays: `embed`, with a row for each token, and `final_norm`. That is all:

# %% tags=["core"]
layer = W.layers[0]
for name, array in [*vars(layer).items(), ("embed", W.embed), ("final_norm", W.final_norm)]:
    if array is not None:
        print(f"{name:<11}{list(array.shape)}")
print(f"numbers in all: {sum(array.size for array in W.unique()):,}")

# %% [markdown]
# ## Build: from tokens to rows
#
# The text of the riddle, as lesson 03 leaves it: a list of ids. This tokenizer puts a special token in front of every text,
# which we write `(start)`.

# %% tags=["core"]
ids = model.tokenizer.encode("The for statement is used to")
pieces = [model.tokenizer.decode([token]) or "(start)" for token in ids]
print(ids)
print(pieces)

# %% [markdown]
# The place of a token in the text, 0 to 6, is its **position**. The first step of the model, the **embedding**, is no
# arithmetic at all. Token 323 becomes row 323 of a table:

# %% tags=["core"]
x = W.embed[ids]  # [7, 128]
x.shape

# %% [markdown]
# One row of 128 numbers for each position. Like all weights they were found in *training*: adjusted a little, again and
# again, so that the right next token became more probable at millions of places in texts. Words that are used alike end up
# with rows that point in similar directions; nobody ever said what element 17 means.
#
# These seven rows are the **stream**. Keep the picture of the block in mind: a line goes past the boxes on the left and
# comes back at a plus sign. Twice a block reads the stream, and twice it *adds* something to it. Nothing is ever
# overwritten. The first half of this lesson goes down the upper half of the first block, as far as the blue bar.
#
# In this half we use plain Python: a row is a list of numbers, and every addition is visible. The names of these functions
# end in `_one`, because they treat one position at a time.
#
# ## Build: a norm
#
# A row may be long or short, as a vector. Before anything is computed from it, it is brought to a standard size. Take the
# mean of the squares of its elements; the root of that is their typical size, the **root mean square** (RMS). Divide by
# it. Then multiply each element by a weight of its own, found in training. That is **RMSNorm**:


# %% tags=["core"]
import math

import numpy as np


def dot(a, b):
    total = 0.0
    for p, q in zip(a, b, strict=True):
        total += p * q
    return total


def norm_one(row, weight, eps):
    mean_square = dot(row, row) / len(row)
    scale = 1 / math.sqrt(mean_square + eps)
    return [value * scale * w for value, w in zip(row, weight, strict=True)]


# %% [markdown]
# By hand: [3, 4] has the mean square (9 + 16) / 2 = 12.5, so we expect 3 and 4 over the root of 12.5, which is 3.5355. And
# a row a hundred times as long must give the same.
#
# What is `eps` for? A row of zeros would be divided by zero; the small number under the root prevents that. It belongs to
# the model (`norm_eps`), because small rows feel it. The last two lines norm a row whose mean square is 1e-6, no larger than
# eps itself:

# %% tags=["core"]
for row, eps in (([3, 4], 0), ([300, 400], 0), ([1e-3, 1e-3], 1e-5), ([1e-3, 1e-3], 1e-6)):
    print(row, "eps", eps, [round(value, 4) for value in norm_one(row, [1, 1], eps)])

# %% [markdown]
# Older models use **LayerNorm** instead. It first takes the mean *off* the row, and then divides by the typical distance from
# the mean. So it forgets two things, size and offset, where RMSNorm forgets only the size:


# %% tags=["nbval-ignore-output", "core"]
def layer_norm_one(row, eps):
    mean = sum(row) / len(row)
    return norm_one([value - mean for value in row], [1] * len(row), eps)


example = np.array([-1, 0.5, 2, 0, 1, -0.5])
both = np.stack([example, example + 3])  # [2, 6]
rms = np.array([norm_one(row, [1] * 6, 1e-5) for row in both.tolist()])
centred = np.array([layer_norm_one(row, 1e-5) for row in both.tolist()])
figures.norms(both, 3, rms, centred)

# %% [markdown]
# Look at the right panel: shifted or not, LayerNorm gives the same. RMSNorm does not, and models turned out not to need it.
# It saves the mean, and the bias, a second array of weights that LayerNorm usually has. (Lesson 15 builds a model that has
# LayerNorm.) Are the two right? We ask PyTorch, a library that others wrote and many use every day, for thirteen equal
# digits:

# %% tags=["core"]
import torch
from torch.nn import functional

torch.set_num_threads(1)
numbers = torch.from_numpy(both)  # float64, as Python's own numbers are
torch_rms = functional.rms_norm(numbers, (6,), eps=1e-5)
torch_centred = functional.layer_norm(numbers, (6,), eps=1e-5)
print("RMSNorm:  ", np.allclose(rms, torch_rms, rtol=1e-13))
print("LayerNorm:", np.allclose(centred, torch_centred, rtol=1e-13))

# %% [markdown]
# ## Build: query, key and value
#
# The block begins by norming all seven rows, each for itself. Then each is multiplied by weight matrices. Such a matrix holds
# rows of weights, and the product is a dot product with each of them: large where the word has what that row of weights
# looks for.


# %% tags=["core"]
def matvec(matrix, row):
    return [dot(weights, row) for weights in matrix]


rows = x.tolist()  # 7 lists of 128 numbers
normed = [norm_one(row, layer.attn_norm.tolist(), config.norm_eps) for row in rows]
matvec([[1, 0], [0, 1], [1, 1]], [5, 7])

# %% [markdown]
# **Attention** starts with three such products. Out of each word's row it makes three shorter ones:
#
# - the **query** q: what is this word looking for?
# - the **key** k: what does this word offer to those who look?
# - the **value** v: what does it hand over to those who find it?
#
# The matrices `q`, `k` and `v` do that for several **heads** at once. Each head looks for itself, with 32 numbers
# (`head_dim`). Rows 0 to 31 of each matrix belong to head 0. In this half we build that one head.

# %% tags=["core"]
wq, wk, wv = (weights[: config.head_dim].tolist() for weights in (layer.q, layer.k, layer.v))
q = [matvec(wq, row) for row in normed]  # 7 lists of 32 numbers
k = [matvec(wk, row) for row in normed]
v = [matvec(wv, row) for row in normed]
len(q), len(q[0])

# %% [markdown]
# ## Build: looking
#
# Position 6, ` to`, now looks around. How well does its query fit the key of another position? Again a dot product, called
# the **score**. There is one thing to settle first. A dot product adds up 32 terms; how large does it get if the numbers
# are typical ones, about 1 in size, and random in sign?

# %% tags=["core"]
random = np.random.default_rng(0)
for d in (4, 16, 64, 256):
    a, b = random.normal(size=(2, 10_000, d))
    print(f"{d:>4} terms: typical size {np.sum(a * b, axis=1).std():.0f}")

# %% [markdown]
# The typical size is the *root* of the number of terms: terms of both signs cancel in part. So we divide every score by
# sqrt(32), and scores are of ordinary size whatever the length of a head is.
#
# Why does size matter? Because of what comes next. Scores become **shares**: positive, adding up to 1. **Softmax** takes
# exp of every score and divides by the sum:


# %% tags=["core"]
def softmax_one(scores):
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


for scores in ([0, 1, 2], [0, 10, 20], [1000, 1000]):
    print(scores, [round(share, 3) for share in softmax_one(scores)])

# %% [markdown]
# Scores of ordinary size give shares of many sizes. Ten times the scores, and the winner takes everything: nothing is mixed
# any more, and training cannot tell in which direction to improve. That is the reason for the division.
#
# The last line shows why the largest score is taken off first: exp(1000) is too large for a float (`math.exp` raises an
# OverflowError), and exp(score - top) is never above 1. The shares are the same, since a common factor cancels.
#
# Together: the shares of one query among some keys. Then each position hands over its value, as much of it as its share
# says. `mix` is a weighted average:


# %% tags=["core"]
def shares_one(query, keys):
    return softmax_one([dot(query, key) / math.sqrt(len(query)) for key in keys])


def mix(shares, values):
    return [dot(shares, column) for column in zip(*values, strict=True)]


mix([0.25, 0.75], [[0, 100], [8, 200]])

# %% [markdown]
# ## Build: what may be looked at
#
# The model is trained to predict, at *every* position, the token that comes next. Whoever may look at the next token
# need not learn to predict it. So a position sees itself and what stands before it, and nothing after it. This is
# the **causal mask**, and in loops it is the simplest thing in the world: position p gets the keys up to its own.

# %% tags=["core"]
p = 3  # " statement"
for piece, share in zip(pieces, shares_one(q[p], k[: p + 1]), strict=False):
    print(f"{share:6.3f}  {piece}")

# %% [markdown]
# Four shares, for positions 0 to 3. The mask is the slice `k[: p + 1]`.
#
# (It has a consequence that is worth a lesson of its own, number 06: what is computed at a position can never change
# when more text is added behind it.)
#
# ## Build: the order of the words
#
# Something is missing. Let the last position look, then let two earlier words change places, and let it look again:

# %% tags=["core"]
swapped = [0, 2, 1, 3, 4, 5, 6]  # "for The statement is used to"
before = mix(shares_one(q[6], k), v)
after = mix(shares_one(q[6], [k[i] for i in swapped]), [v[i] for i in swapped])
print("the same:", np.allclose(before, after, rtol=1e-12))

# %% [markdown]
# The same numbers, so for this query *the for* and *for the* are one and the same. It sees a bag of words. Shares depend on
# what a key says, and no key says where it stands.
#
# The remedy is to let position into the keys and queries. **Rotary position embedding** (RoPE) does it by turning them.
# Take the 32 numbers of a key as 16 points in the plane: element i and element i + 16 are the two coordinates of point i.
# At position p, turn point i by the angle p · base ** (-i / 16), in radians: each point has its own speed. `base` belongs to
# the model; here it is 10,000. A point (a, b), turned by an angle t, is (a cos t - b sin t, b cos t + a sin t).


# %% tags=["core"]
def rotate_one(row, position, base):
    half, turned = len(row) // 2, list(row)
    for i in range(half):
        angle = position * base ** (-i / half)
        a, b = row[i], row[i + half]
        turned[i] = a * math.cos(angle) - b * math.sin(angle)
        turned[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return turned


[round(value, 4) for value in rotate_one([1, 1, 0, 0], position=1, base=10_000)]

# %% [markdown]
# By hand: [1, 1, 0, 0] is two points, (1, 0) in elements 0 and 2, and (1, 0) in elements 1 and 3. Point 0 turns by 1 radian, to
# (cos 1, sin 1) = (0.5403, 0.8415). Point 1 turns by 10,000 ** (-1/2) = 0.01 radians and hardly moves. Five of the 16 points
# of our head, at positions 0 to 6:

# %% tags=["nbval-ignore-output", "core"]
figures.clocks(config, pairs=[0, 2, 4, 8, 15], positions=7)

# %% [markdown]
# Each point is the tip of a clock hand. The fast hands tell neighbours apart, but come round again after six words; the slow
# ones need hundreds or thousands of words for a round, and tell *far* from *near*. Why turn at all, instead of adding a
# number? Look at what happens to a score:

# %% tags=["core"]
base = config.rope.base


def score_at(p_query, p_key):
    return dot(rotate_one(q[6], p_query, base), rotate_one(k[2], p_key, base))


print("6 looks at 2 as 106 looks at 102:", math.isclose(score_at(6, 2), score_at(106, 102)))
print("6 looks at 2 as 6 looks at 3:    ", math.isclose(score_at(6, 2), score_at(6, 3)))

# %% [markdown]
# If both hands are turned further by the same angle, the angle *between* them stays. So of two positions a score feels only
# the distance, never where they stand: a phrase can be read in the same way at the beginning of a text and at its end. Only q
# and k are turned; v is what is handed over, and stays as it is. Now the swap once more:

# %% tags=["core"]
turned_k = [rotate_one(key, p, base) for p, key in enumerate(k)]
moved_k = [rotate_one(k[i], p, base) for p, i in enumerate(swapped)]
query = rotate_one(q[6], 6, base)
before, after = mix(shares_one(query, turned_k), v), mix(shares_one(query, moved_k), v)
print("the same:", np.allclose(before, after, rtol=1e-12))

# %% [markdown]
# *The for* and *for the* are different now. That completes the head:


# %% tags=["core"]
def head_one(normed, wq, wk, wv, base):
    q = [rotate_one(matvec(wq, row), p, base) for p, row in enumerate(normed)]
    k = [rotate_one(matvec(wk, row), p, base) for p, row in enumerate(normed)]
    v = [matvec(wv, row) for row in normed]
    return [mix(shares_one(q[p], k[: p + 1]), v[: p + 1]) for p in range(len(normed))]


ours = head_one(normed, wq, wk, wv, base)  # 7 lists of 32 numbers
len(ours), len(ours[0])

# %% [markdown]
# ## Check: one head equals PyTorch
#
# The same head once more, by functions that are not ours: PyTorch's norm, PyTorch's attention, and complex numbers for the
# turning. A complex number is a point in the plane, and to multiply it by one of length 1 is to turn it.


# %% tags=["core"]
def torch_head(x, wq, wk, wv):
    h = functional.rms_norm(x, (128,), torch.from_numpy(layer.attn_norm).double(), config.norm_eps)
    frequency = base ** (-torch.arange(16, dtype=torch.float64) / 16)
    angle = torch.outer(torch.arange(7), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)  # [7, 16], complex, all of length 1
    q, k = (torch.complex(*(h @ w.T).chunk(2, dim=1)) * turn for w in (wq, wk))  # chunk: halve
    q, k = (torch.cat([z.real, z.imag], dim=1) for z in (q, k))  # two of [7, 32]
    q, k, v = q[None], k[None], (h @ wv.T)[None]  # one head: [1, 7, 32]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0]


theirs = torch_head(*(torch.tensor(a, dtype=torch.float64) for a in (rows, wq, wk, wv))).numpy()
theirs.shape

# %% [markdown]
# How close must two right programs be? They do not add in the same order, so the last digits may differ. Here is how far,
# in three steps; the second half gives the reasons.
#
# 1. One operation is off by at most u, as a share of its result. Python's numbers and these of PyTorch have 64 bits and are
#    exact to 53 binary digits, and so u = 2 ** -53.
# 2. On its way to the result a number goes through N additions: 128 for the mean square, 128 in the product with `wq`, 32
#    for the score and 7 for the mix, together 295. Roundings go up as often as down, so they do not pile up to N u, but to
#    about sqrt(N) u.
# 3. A factor of 64 leaves room for what enlarges an error on the way: a softmax, a division by something small.


# %% tags=["core"]
def agree(actual, expected, additions, dtype="float32"):
    """Whether two arrays differ by no more than rounding explains."""
    u = np.finfo(dtype).eps / 2
    allowed = 64 * u * math.sqrt(additions) * np.abs(expected).max()
    return bool(np.abs(np.asarray(actual) - expected).max() <= allowed)


print(f"may differ by {64 * 2**-53 * math.sqrt(295):.1e} of the largest number")
print("one head in loops equals PyTorch:", agree(ours, theirs, 295, "float64"))

# %% [markdown]
# A check is worth what it rejects. Four planted mistakes: the mask one position too far, no division by sqrt(32), the
# mask *after* softmax, and, far smaller than these, values that were rounded to 32 bits on their way:


# %% tags=["core"]
rq, rk = ([rotate_one(row, p, base) for p, row in enumerate(part)] for part in (q, k))  # rotated
v32 = np.float32(v).tolist()
wrong = {
    "mask one too far": [mix(shares_one(rq[p], rk[: p + 2]), v[: p + 2]) for p in range(7)],
    "scores not divided": [
        mix(softmax_one([dot(rq[p], key) for key in rk[: p + 1]]), v[: p + 1]) for p in range(7)
    ],
    "mask after softmax": [mix(shares_one(rq[p], rk)[: p + 1], v[: p + 1]) for p in range(7)],
    "values in 32 bits": [mix(shares_one(rq[p], rk[: p + 1]), v32[: p + 1]) for p in range(7)],
}
for name, result in wrong.items():
    print(f"{name:<19} is noticed: {not agree(result, theirs, 295, 'float64')}")

# %% [markdown]
# ---
#
# ### The halfway stop
#
# You have built the part of a transformer that gave it its fame, and a library that much of the field relies on computes
# the same numbers, to about thirteen digits. What is left is more of the same (three more heads, two more layers) and
# two easy parts: what a word does on its own, and the way out, to a score for each token. If you have an hour, stop here.
#
# What to take with you: a query looks for keys, softmax makes shares of the scores, the values are mixed by the shares; the
# mask is where the list ends; a rotation makes scores depend on distance.
#
# ---

# %% [markdown]
# ## Build: all positions at once
#
# Loops show everything and are slow. The second half says the same in NumPy, for all positions at once. The names lose
# their `_one`. A norm for seven rows is the same formula along the last axis:


# %%
def rms_norm(x, weight, eps):
    mean_square = np.mean(x * x, axis=-1, keepdims=True)  # [7, 1]
    return x / np.sqrt(mean_square + eps) * weight  # [7, 128]


h = rms_norm(x, layer.attn_norm, config.norm_eps)
agree(h, normed, 128)

# %% [markdown]
# (`agree` with 128 additions, in float32 now, where u = 2 ** -24: NumPy keeps the type of the weights.) The products of a
# matrix with all seven rows are one product of two matrices (`@` in NumPy). The weights have a row for each *output*, so
# they are transposed first (`.T`). And the 128 outputs of `q` are cut into 4 heads of 32:

# %%
q = (h @ layer.q.T).reshape(7, 4, 32)  # [n, n_heads, head_dim]
k = (h @ layer.k.T).reshape(7, 2, 32)  # [n, n_kv_heads, head_dim]
v = (h @ layer.v.T).reshape(7, 2, 32)
agree(q[:, 0], [matvec(wq, row) for row in normed], 128 + 128)

# %% [markdown]
# Four query heads, but only two for keys and values: more of that in a moment. The rotation needs cosines and sines
# of all positions, in a table that every layer shares. The angles are float32, because the model was trained with such:


# %%
def turns(config, n):
    half = config.head_dim // 2
    frequency = config.rope.base ** (-np.arange(half, dtype=np.float32) / half)
    angles = np.arange(n, dtype=np.float32)[:, None, None] * frequency
    return np.cos(angles), np.sin(angles)  # two of [n, 1, half]


def rotate(x, cos, sin):
    a, b = np.split(x, 2, axis=-1)  # two of [n, heads, half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


rotated = rotate(q, *turns(config, 7))
agree(rotated[:, 0], rq, 128 + 128 + 2)

# %% [markdown]
# ## Build: the mask as a table
#
# With all positions at once there is no list to end early. All scores are computed, also those of the future, as a table of
# 7 x 7. Then the future is struck out, and only then comes softmax. To strike a score out, set it to minus infinity: exp of
# it is 0. In the picture below high scores are purple and low ones orange.


# %%
def causal(n):
    return np.triu(np.ones((n, n), bool), k=1)  # True: to be hidden


def softmax(scores):
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True)


causal(4).astype(int)

# %% tags=["nbval-ignore-output"]
keys = rotate(k, *turns(config, 7))
scores = rotated[:, 0] @ keys[:, 0].T / math.sqrt(32)  # [7, 7]
shares = softmax(np.where(causal(7), -np.inf, scores))
figures.mask_steps(scores, causal(7), shares, pieces)

# %% [markdown]
# Read the last row of the third table: what ` to` looks at, in head 0 of layer 0. Each row adds up to 1, but for rounding.
# The order of the steps matters, as the planted mistake above showed: strike out *after* softmax, and the hidden words have
# already taken their shares.
#
# ## Build: four heads that share
#
# Each head has a query of its own, so four heads can look for four different things. To save memory (lesson 06) the model has
# fewer heads for keys and values, and neighbours share one. This is **grouped-query attention** (GQA). Head h reads the
# key/value head h // 2: heads 0 and 1 share the first, 2 and 3 the second.
#
# The results of the four heads are laid side by side, 4 x 32 = 128 numbers for each position. One more matrix, `o`, mixes
# them, and the result is *added* to the stream:


# %%
def attention(q, k, v, hidden):
    group = q.shape[1] // k.shape[1]  # query heads that share one key/value head
    out = np.empty_like(q)  # [n, n_heads, head_dim]
    for head in range(q.shape[1]):
        keys, values = k[:, head // group], v[:, head // group]
        scores = q[:, head] @ keys.T / math.sqrt(q.shape[2])
        scores[hidden] = -np.inf
        out[:, head] = softmax(scores) @ values
    return out


heads = attention(rotated, keys, v, causal(7))
after_attention = x + heads.reshape(7, 128) @ layer.o.T  # [7, 128]
print("head 0 equals the loops:", agree(heads[:, 0], ours, 295))

# %% [markdown]
# Why add, instead of replacing? What stood in the row, the word itself, is still there. A block only has to compute what
# it wants to change. Such a bypass is called a **residual connection**; without it, deep stacks of blocks are very hard to
# train.
#
# ## Build: the feed-forward part
#
# The second half of the block is for each position alone. Look at its bars in the first picture: it makes *two* rows of 320
# numbers out of one of 128, and comes back to 128. Of the two wide rows one is a gate for the other: they are multiplied,
# element by element. The gate closes softly; its curve is called **silu**, x times a share 1 / (1 + exp(-x)) that rises from
# 0 to 1:


# %% tags=["nbval-ignore-output"]
from llambda.course.plots import OURS, QUIET, figure, finish, label


def silu(x):
    e = np.exp(-np.abs(x))  # never above 1, so it cannot overflow
    return x * np.where(x >= 0, 1, e) / (1 + e)


fig, ax = figure(2.6)
at = np.linspace(-6, 6, 121)
ax.plot(at, np.maximum(at, 0), color=QUIET, linestyle="--", label="max(x, 0), an older gate")
ax.plot(at, silu(at), color=OURS, label="silu(x)")
ax.legend()
label(ax, "A gate that closes softly", "x", "what it lets through")
finish(fig)

# %% [markdown]
# Norm, two products, the gate, one product, add. That is **SwiGLU**:

# %%
h = rms_norm(after_attention, layer.ffn_norm, config.norm_eps)
gate, up = h @ layer.gate.T, h @ layer.up.T  # two of [7, 320]
after_block = after_attention + (silu(gate) * up) @ layer.down.T  # [7, 128]
after_block.shape

# %% [markdown]
# What does it do? A fair picture: each of the 320 rows of `gate` looks for some pattern in a word's row, and where it
# finds it, the matching column of `down` adds what the model knows about it. Most of the weights of a layer are here.
#
# ## Build: the whole model
#
# You have now seen every line. Here they are in one piece, for any model of this kind, with `config` in place of our numbers.
# (At the end of a block about a thousand additions lie behind each number.)


# %%
def block(x, layer, config, cos, sin, hidden):
    def heads(y):
        return y.reshape(len(y), -1, config.head_dim)

    h = rms_norm(x, layer.attn_norm, config.norm_eps)
    q = rotate(heads(h @ layer.q.T), cos, sin)
    k = rotate(heads(h @ layer.k.T), cos, sin)
    v = heads(h @ layer.v.T)
    x = x + attention(q, k, v, hidden).reshape(len(x), -1) @ layer.o.T

    h = rms_norm(x, layer.ffn_norm, config.norm_eps)
    return x + (silu(h @ layer.gate.T) * (h @ layer.up.T)) @ layer.down.T


first = block(x, layer, config, *turns(config, 7), causal(7))
agree(first, after_block, 1000)

# %% [markdown]
# And the model is its blocks, with a table at the entrance and the **head** at the exit (of the model; the word is used
# twice): a norm, and then a score for every token of the vocabulary, again by dot products. These scores are the **logits**.
# (`hidden` is there for an experiment below.)


# %%
def forward(weights, config, ids, hidden=None):
    if hidden is None:
        hidden = causal(len(ids))
    cos, sin = turns(config, len(ids))
    x = weights.embed[ids]  # [n, dim]
    for layer in weights.layers:
        x = block(x, layer, config, cos, sin, hidden)
    x = rms_norm(x, weights.final_norm, config.norm_eps)
    return x @ weights.head.T  # [n, vocab_size]


logits = forward(W, config, ids)
logits.shape

# %% [markdown]
# In this model `W.head` is the very same array as `W.embed`, which is called *tied*: the row that stands for a token at the
# entrance is also what is looked for at the exit. The four highest scores at the last position:

# %%
print("tied:", W.head is W.embed)
for token in np.argsort(logits[-1])[::-1][:4].tolist():
    print(f"{logits[-1, token]:6.1f}  {model.tokenizer.decode([token])}")

# %% [markdown]
# The highest belongs to ` iter`, the beginning of *iterate*. To write on, append the best token and run again. (Lesson 05
# makes a proper loop of this, with chance in it.)


# %%
def write(logits_of, ids, count):
    """Append the most probable token `count` times; the new text."""
    known = list(ids)
    for _ in range(count):
        known.append(int(np.argmax(logits_of(known)[-1])))
    return model.tokenizer.decode(known[len(ids) :])


write(lambda known: forward(W, config, known), ids, 8)

# %% [markdown]
# ## Build: the riddle, solved
#
# Back to *for* and *with*. Which step carries the news? We run both texts and compare them, step by step and position by
# position. For that the finished engine can be asked for a **trace**: every intermediate result under its name.

# %%
from llambda.check import trace_engine

other_ids = model.tokenizer.encode("The with statement is used to")
one, other = trace_engine(model.engine, ids), trace_engine(model.engine, other_ids)
print(len(one), "activations:", *list(one)[:8], "...")

# %% [markdown]
# Such an intermediate result is called an **activation**. `blk.0.q_rope` is the rotated q of layer 0. At which positions
# does each activation of layer 0 differ between the two texts?

# %% tags=["nbval-ignore-output"]
changed = {}
for name in list(one)[:16]:
    difference = np.abs(one[name] - other[name]).reshape(7, -1).max(axis=1)
    changed[name.removeprefix("blk.0.")] = difference > 1e-4  # [7]
figures.influence(changed, pieces)

# %% [markdown]
# Take a moment for this picture. Row after row, only the column of the changed word is dark. Then comes **one** step,
# `attn_heads`, and everything behind the word has heard of it. After that each column goes its own way again.

# %%
from itertools import pairwise

reach = [int(dark.sum()) for dark in changed.values()]  # positions that are dark, step by step
spreads = sum(after > before for before, after in pairwise(reach))
outcome("04.lookers", "steps of a block, of 15, that look at other positions", spreads)

# %% [markdown]
# **Only attention looks at other positions.** All the rest, and in a short text that is nearly all of the arithmetic, treats
# every position as if it were alone in the world. If that is so, then hiding the third token from all that follow must make
# the two texts the same for the last one:

# %%
blind = causal(7)
blind[3:, 2] = True  # no later position may look at position 2
for_logits, with_logits = (forward(W, config, text, blind)[-1] for text in (ids, other_ids))
print("told apart without that look:", not agree(for_logits, with_logits, 3260))

# %% [markdown]
# Not told apart. The whole difference between *iterate* and *wrap* went through the look. (3,260 additions lie one behind the
# other on the way to the logits; the next section counts them.)
#
# ## Build: the finished form
#
# The package holds what you wrote, operation by operation, in `llambda/kernels/`, and `llambda/engines/naive.py` puts the
# operations together. Compare with yours. Attention differs in two ways: it knows a `start`, the position of the first query,
# which lesson 06 needs; and it computes all query heads that share a key/value head in one product. In the block, `store`
# gives back the keys and values so far (lesson 06 again), and `keep` notes every activation for the trace:

# %% tags=["nbval-ignore-output"]
from llambda.course import show
from llambda.engines.naive import NaiveEngine
from llambda.kernels.attention import attention as finished_attention

show(finished_attention, NaiveEngine.block)

# %%
state = model.engine.new_state(context=len(ids))
finished = model.engine.forward(state, ids, all_logits=True)
print("the same logits:", agree(logits, finished, 3260))

# %% [markdown]
# <details><summary>In Lisp</summary>
#
# ```lisp
# (defun attend (query keys values)   ; lists of rows up to the own position: the mask
#   (let* ((scores (mapcar (lambda (k) (/ (dot query k) (sqrt (length query)))) keys))
#          (top (reduce #'max scores))
#          (weights (mapcar (lambda (s) (exp (- s top))) scores))
#          (total (reduce #'+ weights)))
#     (reduce (lambda (a b) (mapcar #'+ a b))
#             (mapcar (lambda (w row) (mapcar (lambda (x) (* (/ w total) x)) row)) weights values))))
# ```
#
# A query, its shares, the mix: `shares_one` and `mix` in one.
#
# </details>
#
# ## Check: every step against PyTorch
#
# It writes sensible text. Does that prove that it is right? Keep your answer until the section *Break it*.
#
# The proof is a second program, by another way of thinking: `llambda/oracle.py` is the same model in PyTorch. It uses complex
# numbers to rotate, `einsum` for attention and float64 throughout, and shares no operation with ours. A mistake would have to
# be made twice, in two ways of writing.

# %%
from llambda.oracle import Oracle

exact = Oracle(config, model.weights, "float64").forward(ids)
print("the same names:", exact.keys() == one.keys())

# %% [markdown]
# 48 activations to compare, and for each we must know how far off it *may* be. This is the place to do it properly, because
# the engines of the next lessons are held to it too.
#
# > **Box: the derived tolerance**
# >
# > A float32 number has 24 significant bits. So one operation is off by at most **u** = 2 ** -24 of its result, the
# > *unit roundoff*. After N additions there have been N roundings. At the worst they all pull one way: N u. But they go up as
# > often as down. Toss a coin before each of N steps, forward or back, and you end about sqrt(N) steps from where you began.
# > So we expect sqrt(N) u. Here are 200 sums of random numbers, each computed in float32 and in float64:

# %% tags=["nbval-ignore-output"]
terms = np.random.default_rng(0).normal(size=(200, 4096)).astype(np.float32)
in_float32 = np.cumsum(terms, axis=1)  # [200, 4096], sums of the first 1, 2, 3, ... terms
in_float64 = np.cumsum(terms.astype(np.float64), axis=1)
error, size = (np.sqrt(np.mean(a**2, axis=0)) for a in (in_float32 - in_float64, in_float64))
lengths = 2 ** np.arange(1, 13)
measured = (error / size / 2**-24)[lengths - 1]
figures.rounding(lengths, measured)
assert np.all(measured < np.sqrt(lengths)) and np.all(measured > np.sqrt(lengths) / 5)

# %% [markdown]
# > The dots follow the root over three orders of magnitude, and lie between a fifth of it and the whole. The straight bound N
# > is almost two hundred times too generous at the right edge: real faults would hide below it.
# >
# > Three more things, then the formula is complete.
# >
# > - *A share of what?* Of the size of the numbers that were added. Their sum may be much smaller, where they cancel. The
# >   root mean square of the row tells the size; for an outlier, take the element itself. So: hypot(element, RMS of its row),
# >   hypot(a, b) being the root of a² + b².
# > - *What enlarges an error on its way?* A softmax turns a score's error into a share of a weight, a gate multiplies, a norm
# >   divides. We allow a factor of 64. In its place right engines need 2 or less for most activations, and the worst single
# >   element that we measured needed 26.
# > - *Angles* are position times frequency. If the frequency is off by its last bit, the angle at position p is off by p times
# >   that, always to the same side: hence a term with p, and no root.
# >
# > **Element x at position p may be off by u · (64 · sqrt(N) + 8 · p) · hypot(x, RMS of its row)**, with N counted along the
# > whole chain from the embedding to that activation.

# %%
from llambda.check import additions, tolerances

for name in ("blk.0.attn_norm", "blk.0.q", "blk.0.ffn_out", "blk.2.ffn_out", "logits"):
    count, share = additions(config, 7)[name][6], tolerances(config, 7)[name][6]
    print(f"{name:<16}{count:6.0f} additions, may be off by {share:.1e} of its size")

# %% [markdown]
# Nearly four digits must agree at the very end, behind more than three thousand additions. Now the comparison: every element of
# every activation. `compare` finds in each the worst ratio of *off* to *allowed*. `first_divergence` walks through them in the
# order of computation, and returns the first element that is off by more than it may be, or None:

# %%
from llambda.check import compare, first_divergence

comparisons = compare(one, exact, config)
worst = max(comparison.ratio for comparison in comparisons)
print(f"{sum(c.ok for c in comparisons)} of {len(comparisons)} activations are right")
print("the worst is below a third of its tolerance:", worst < 1 / 3)
print("first divergence:", first_divergence(one, exact, config))
print("your own logits:", agree(logits, exact["logits"], 3260))

# %% [markdown]
# Now the planted mistake. The smallest that we can think of is an eps of 1e-6 where the model has 1e-5. Many models do have
# 1e-6, so a careless loader might take that. Beside our check stands one of a kind that real projects have, "all logits
# equal to within 0.1":

# %%
from dataclasses import replace

careless = NaiveEngine(replace(config, norm_eps=1e-6), model.weights)
trace = trace_engine(careless, ids)
found = first_divergence(trace, exact, config)
print("within 0.1:", np.allclose(trace["logits"], exact["logits"], rtol=0, atol=0.1))
print("the planted mistake is noticed:", found is not None)
print("it is in layer", found.layer, "in", found.operation)

# %% [markdown]
# The wide tolerance is content. The derived one names the operation: `attn_norm`, in the first layer, where eps is used for
# the first time. (From a terminal, `llambda compare` does the same for any model and engine.)
#
# The same check for the real model, all 30 layers of it. (If `smollm2` is not here, the cell says how to get it, and the lesson
# goes on.)

# %% tags=["nbval-ignore-output", "real"]
from llambda.check import compare_engine
from llambda.fetch import KNOWN

if KNOWN["smollm2"].is_here:
    real = llambda.load("smollm2", engine="naive")
    real_ids = real.tokenizer.encode("The cat drank the milk because it was thirsty")
    report = compare_engine(real.engine, real.config, real.weights, real_ids)
    print(f"{sum(c.ok for c in report.comparisons)} of {len(report.comparisons)} activations right")
    assert report.divergence is None
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: loops against NumPy
#
# How much faster is NumPy than our loops? Nearly all of the work is in products of a matrix with a row: seven
# for each layer, and the head. Both do exactly the same multiplications. Guess a factor:

# %%
names = ("q", "k", "v", "o", "gate", "up", "down")
matrices = [getattr(layer, name) for layer in W.layers for name in names] + [W.head]
print(f"multiplications for one token: {sum(matrix.size for matrix in matrices):,}")

guess = ...
predict("04.loops", "times that NumPy is faster than loops", guess)

# %% [markdown]
# `seconds` takes the best of several runs, since whatever disturbs a run only ever makes it slower. NumPy gets one thread:

# %% tags=["nbval-ignore-output"]
from threadpoolctl import threadpool_limits

from llambda.course.timing import seconds

pairs = [(matrix, np.ones(matrix.shape[1], np.float32)) for matrix in matrices]
lists = [(matrix.tolist(), row.tolist()) for matrix, row in pairs]
in_loops = seconds(lambda: [matvec(matrix, row) for matrix, row in lists], repeats=3)
with threadpool_limits(1):
    in_numpy = seconds(lambda: [matrix @ row for matrix, row in pairs], repeats=20)

# %% tags=["nbval-ignore-output"]
outcome("04.loops", "times that NumPy is faster than loops", in_loops / in_numpy)
larger = 135e6 / sum(matrix.size for matrix in matrices)
figures.speeds({
    "tiny, loops": in_loops,
    "tiny, NumPy": in_numpy,
    "smollm2, loops (scaled)": in_loops * larger,
    "smollm2, NumPy (scaled)": in_numpy * larger,
})  # fmt: skip

# %% [markdown]
# The lower bars are the upper ones times 209, the ratio of the two models' weights. Loops would take seconds for each token
# of `smollm2`. The scaled bar for NumPy is too good to be true: the weights of `tiny` stay in the caches, those of `smollm2`
# must come from memory for each token (lesson 00's ceiling). Lesson 07 measures what that costs.
#
# ## Profile: who looks at whom
#
# The other thing to see in a running transformer is its shares. All 12 heads of `tiny`, on the sentence of the first
# picture; rows look, columns are looked at:

# %% tags=["nbval-ignore-output"]
sentence = "The for statement is used to iterate over the elements of a sequence"
sentence_ids = model.tokenizer.encode(sentence)
shares = figures.shares_of(model, sentence_ids)  # [n_layers, n_heads, n, n]
figures.all_maps(shares)
assert np.allclose(shares.sum(axis=-1), 1, atol=1e-5)  # every row adds up to 1
assert np.triu(shares, k=1).max() == 0  # nobody looks ahead

# %% [markdown]
# No two are alike, and nobody told them what to look for. Some look at the word before; many rest on the first
# position, as heads do that find nothing (shares must add up to 1, so they have to go somewhere). In layer 1, head 3 goes
# back to `statement`.
#
# In a model that has read more than Python's documentation, some heads can be read like grammar. Who was thirsty?

# %% tags=["nbval-ignore-output", "real"]
if KNOWN["smollm2"].is_here:
    cat = real.tokenizer.encode("The cat drank the milk because it was thirsty")
    tom = real.tokenizer.encode("Anna gave the book to Tom because he asked for it")
    of_cat, of_tom = figures.shares_of(real, cat), figures.shares_of(real, tom)
    of_cat_pieces, of_tom_pieces = figures.pieces_of(real, cat), figures.pieces_of(real, tom)
    figures.maps([
        ("layer 13, head 8", of_cat[13, 8], of_cat_pieces),
        ("layer 13, head 8", of_tom[13, 8], of_tom_pieces),
        ("layer 16, head 0", of_tom[16, 0], of_tom_pieces),
    ])  # fmt: skip
    assert of_cat[13, 8][6].argmax() == 1  # it -> cat
    assert of_tom[13, 8][7].argmax() == 5  # he -> Tom
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# In head 8 of layer 13, *it* looks at *cat*; in the other sentence *he* looks at *Tom*, and *it* at *book*. Head 0 of
# layer 16 does something simpler: it looks at the word before. (A map shows where a head looks, not what it makes
# of it. It is a hint, not an explanation.)
#
# ## Break it: five faults
#
# Engines go wrong in a few typical ways. From here on this table goes with you through the course; print it if you like.
#
# | symptom | look first at |
# |---|---|
# | text is garbage, or one token for ever | tokenizer, sampling, how weights are parsed |
# | text is well formed, but wrong | weights, precision, shapes |
# | crash or fault | alignment, foreign pointers, bounds, a missing CPU feature |
# | slow | no SIMD, task size, contention, too many threads |
# | now right, now wrong | a race, a seed, order of addition |
#
# The method that goes with it: **one thread, and everything off that can be off. If it is stable then, suspect what runs at
# once; if not, parsing or an operator.** Then do not guess. Halve: compare with something right, and find the first
# step that differs. `naive` starts no threads and has nothing to switch off, so for us only the last sentence is left, and
# `first_divergence` does it. We plant five faults and let the first divergence find them. To each engine we put three
# questions:

# %%
from unittest.mock import patch

from llambda.engines import naive


def says(engine, ids):
    fresh = engine.new_state
    return write(lambda known: engine.forward(fresh(64), known, all_logits=True), ids, 8)


def examine(engine):
    """Eight tokens of text, the comparison with the reference, and the first divergence."""
    trace = trace_engine(engine, ids)
    return says(engine, ids), compare(trace, exact, config), first_divergence(trace, exact, config)


findings = {"right": examine(model.engine)}
findings["right"][0]

# %% [markdown]
# **Fault 1.** Somebody wrote an attention in which query head h reads the key/value head h % 2, in place of h // 2:
# tiled, in place of repeated. The shapes fit, nothing crashes. (`patch.object` puts our function in the place of the engine's
# own as long as the `with` block lasts.)


# %%
def attention_of(head_of, hide):
    """The engine's attention, with its own idea of who shares and of what is hidden."""

    def attend(q, keys, values, start):
        k, v = keys.swapaxes(0, 1), values.swapaxes(0, 1)  # [n, n_kv_heads, head_dim]
        order = [head_of(head) for head in range(config.n_heads)]  # each query head gets its own
        return attention(q, k[:, order], v[:, order], hide(len(q)))

    return attend


with patch.object(naive, "attention", attention_of(lambda head: head % 2, causal)):
    findings["GQA tiled"] = examine(model.engine)
findings["GQA tiled"][0]

# %% [markdown]
# Symptom: garbage. By the table one would suspect the tokenizer or the weight file, and lose an evening there. Ask for
# the first divergence instead:

# %% tags=["nbval-ignore-output"]
print(findings["GQA tiled"][2])

# %% [markdown]
# Read it like a detective. The norm is right, q, k and v are right, and so are the rotations: all of them come earlier. So the
# fault is *inside* attention. It shows at position 0, where a word sees only itself: whatever the score, its only share
# is 1, and the result is just v. So the scores cannot be it. If the mask were missing, position 0 would see more; but then
# head 0 would be wrong too, and the first wrong one is head 1. What is left? Head 1 has been given the v of another head. Only
# one line in the whole engine decides that.
#
# **Your case.** Here is another broken engine, and nobody tells you what is wrong with it. (Its file,
# `llambda/course/mystery.py`, would.) First what a user would see, and then a clue: the positions at which its logits are right.

# %%
from llambda.course.mystery import MysteryEngine

mystery = MysteryEngine(config, model.weights)
trace = trace_engine(mystery, ids)
print(repr(says(mystery, ids)))
print([p for p in range(7) if agree(trace["logits"][p], exact["logits"][p], 3260)])

# %% [markdown]
# Words, but the wrong ones; and in a text of one token nobody would notice. Which steps of a block may go wrong without harm to
# position 0? Name your suspect (`"attn_norm"`, `"q"`, `"k_rope"`, `"attn_heads"`, `"gate"`, ...) in place of the dots. Then ask:

# %% tags=["nbval-ignore-output"]
suspect = ...
found = first_divergence(trace, exact, config)
print("as you suspected:", suspect == found.operation)
print(found)

# %% [markdown]
# Read it like a detective, and name the line of the block that is wrong, before you unfold the answer.
#
# <details><summary>What was wrong</summary>
#
# The clue left five suspects: q, k, their rotations and attention. All but attention come earlier, and are right. But this time
# position 0 is right too, so it got the v of the right head and saw nothing of the future. What can it not feel? A *score*, since
# its only share is 1; or a mask that hides too much of the past. A score is made of q and k, which are right, and of a division
# by sqrt(32). Suspect that one: **this engine does not divide.**
#
# To be sure, make the fault on purpose, and look for the same wrong number. You have done so, in the first half:
# `wrong["scores not divided"][1][0]` is 0.234695 too.
#
# </details>
#
# **Fault 2.** RoPE turns neighbours, elements 2i and 2i + 1, in place of i and i + 16. **Fault 3** is the eps that we know.
# **Fault 4**: no mask, so that everybody sees the future.


# %%
def rotate_neighbours(x, cos, sin):
    a, b, out = x[..., ::2], x[..., 1::2], np.empty_like(x)
    cos, sin = cos[:, None], sin[:, None]
    out[..., ::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
    return out


with patch.object(naive, "rotate", rotate_neighbours):
    findings["RoPE neighbours"] = examine(model.engine)
findings["eps"] = examine(careless)
nothing_hidden = attention_of(lambda head: head // 2, lambda n: np.zeros((n, n), bool))
with patch.object(naive, "attention", nothing_hidden):
    findings["no mask"] = examine(model.engine)
    unmasked = says(model.engine, other_ids)  # kept for later

# %% [markdown]
# **Fault 5** lies in the weights. GGUF files of llama models store the rows of q and k in another order than Hugging Face's
# files: the two rows that turn together stand side by side. Loaders must put them back (ours does, in `llambda/weights.py`).
# This one forgot it:


# %%
def as_in_the_file(rows):
    """Rows i and i + 16 of each head as neighbours: [n_heads * 32, 128], the same shape."""
    return rows.reshape(-1, 2, 16, config.dim).swapaxes(1, 2).reshape(rows.shape)


forgetful = NaiveEngine(config, model.weights)
layers = [replace(it, q=as_in_the_file(it.q), k=as_in_the_file(it.k)) for it in W.layers]
forgetful.weights = replace(W, layers=tuple(layers))
findings["rows permuted"] = examine(forgetful)

# %% [markdown]
# First what a user would see, eight tokens of text. How many of the five faulty engines write exactly the right ones?

# %%
guess = ...
predict("04.silent", "faults, of five, that leave all eight tokens right", guess)

# %%
for name, (text, _, _) in findings.items():
    print(f"{name:<16} {'same' if text == findings['right'][0] else 'other':<6} {text!r}")
silent = sum(text == findings["right"][0] for text, _, _ in findings.values()) - 1  # the right one
outcome("04.silent", "faults, of five, that leave all eight tokens right", silent)

# %% [markdown]
# There is the answer to the question whether sensible text is a proof. Without a mask, the *last* position still sees what it
# should, because nothing stands behind it; the damage is in the rows of the earlier words. Here it is not large enough to
# change a word. After `The with statement is used to` it is:

# %%
print(repr(unmasked), "in place of", repr(says(model.engine, other_ids)))

# %% [markdown]
# Now what the comparison says. On the left, as many a debugging session begins, the activation with the *largest* error; on
# the right the *first* one that is wrong:

# %%
for name, (_, comparisons, found) in list(findings.items())[1:]:
    largest = max(comparisons, key=lambda comparison: comparison.max_difference)
    first = f"layer {found.layer}, {found.operation}, position {found.position}, head {found.head}"
    print(f"{name:<16} largest: {largest.name:<20} first: {first}")

# %% [markdown]
# The largest error is in the same place for all five: the end of the last block, where numbers are large and everything has
# added up. It says nothing about where the error was made. The first one says nearly everything:
#
# - *GQA tiled*: as read above, the choice of the key/value head.
# - *RoPE neighbours*: q is right and q_rope is not, so it is the rotation. Not at position 0, where nothing turns: test
#   rotations at position 1 and beyond.
# - *eps*: the very first norm. (Not at position 0: the row of `(start)` is a little longer, and eps matters less to a long
#   row. And head None, because a norm has no heads.)
# - *no mask*: in attention, and already head 0 at position 0, which should see only itself, and sees the whole text.
# - *rows permuted*: q itself, before any rotation, and at position 0. The *result* at position 0 would be right, as in your
#   case: whoever compares only results must look at position 1.
#
# All five in one picture. Each line is one engine, from its first step to its last:

# %% tags=["nbval-ignore-output"]
figures.chain(config, {name: comparisons for name, (_, comparisons, _) in findings.items()})

# %% [markdown]
# Below the black line a difference is rounding; above it, a fault. Two things to see. Behind the dots the lines of four faults
# run together, and at the end nobody could tell them apart: look for the first. And between the grey line and that of eps,
# the smallest fault of all, lies a factor of about a hundred. In that room a tolerance must stand, and so it has to be
# derived.
#
# ## Exercises
#
# Each exercise has a cell for your answer, a cell that checks it at once, and a hint and a solution folded below.

# %%
from llambda.course.exercises import forward as check

# %% [markdown]
# ### Exercise 04.1 · One head, with a window
#
# *code · 15 minutes · difficulty 3 of 5*
#
# Some models let a head look only at the last few positions: with a window of 3, position p sees p - 2, p - 1 and p
# (as many of them as exist). Write a causal head with such a window, in loops. `q`, `k` and `v` are lists of n rows. The rows
# of q and k have d numbers, and are already rotated; those of v may have another length. `window` is 1 or more, and may be
# larger than n. Return a list of n rows: for each position the mix of the values that it sees, with shares by softmax of the
# scores over sqrt(d). You learn most if you write it whole, without the functions from above.


# %% tags=["exercise"]
def head(q, k, v, window):
    """One causal head that sees `window` positions, its own included: a list of n rows."""
    ...


# %% tags=["checker"]
check.one_head(head)

# %% [markdown]
# <details><summary>Hint</summary>
#
# For position p, which is the first position that it sees, and which is the last? Everything that you do not want to see can
# simply be left out of the loop. For p = 1 and a window of 3 the first is 0, not -1.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def head(q, k, v, window):
#     out = []
#     for p in range(len(q)):
#         seen = range(max(0, p - window + 1), p + 1)
#         scores = [sum(a * b for a, b in zip(q[p], k[j])) / math.sqrt(len(q[p])) for j in seen]
#         weights = [math.exp(score - max(scores)) for score in scores]
#         shares = [weight / sum(weights) for weight in weights]
#         row = [0.0] * len(v[p])
#         for share, j in zip(shares, seen):
#             row = [total + share * value for total, value in zip(row, v[j])]
#         out.append(row)
#     return out
# ```
#
# Mask and window are both in one line, the `range`. In the NumPy form both are in one table of what is hidden.
#
# </details>

# %% [markdown]
# ### Exercise 04.2 · Rotate neighbours
#
# *code · 15 minutes · difficulty 3 of 5*
#
# You are handed one head's rows of q, k and v at one position, as lists of d numbers, in the order of a GGUF file. There the
# two elements that turn together are neighbours: pair i is elements 2i and 2i + 1. Its angle at `position` is
# position · base ** (-2i / d) radians. Return the three rows `[q, k, v]` as attention should get them, each with its elements
# in the order in which they came. The checker tries positions 0, 1 and 500.


# %% tags=["exercise"]
def rope(q, k, v, position, base):
    """The rows of q, k and v at this position, ready for attention: a list of three lists."""
    ...


# %% tags=["checker"]
check.rotation(rope)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two of the three are turned. Which, and why not the third? Then write a function for one row, and try it by hand on
# [1, 0, 1, 0] at position 1 with base 10,000: the first pair must become (cos 1, sin 1).
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def rope(q, k, v, position, base):
#     def turned(row):
#         out = list(row)
#         for i in range(len(row) // 2):
#             angle = position * base ** (-2 * i / len(row))
#             a, b = row[2 * i], row[2 * i + 1]
#             out[2 * i] = a * math.cos(angle) - b * math.sin(angle)
#             out[2 * i + 1] = b * math.cos(angle) + a * math.sin(angle)
#         return out
#
#     return [turned(q), turned(k), list(v)]
# ```
#
# The lesson's form has the exponent -i / half, with half = d / 2: the same number. Only the places of the pairs differ. That is
# why fault 5 is so easy to make: both orders are right, each with its own weights.
#
# </details>

# %% [markdown]
# ### Exercise 04.3 · The first divergence
#
# *diagnose · 10 minutes · difficulty 2 of 5*
#
# Three colleagues send you what their debugging printed about their broken engines, A, B and C: for the embedding, each
# operation of layer 0, and what follows the last layer, how far off its worst element is, and how far off it may be. Like most
# such printouts they are sorted by the size of the error. Which operation goes wrong *first* in each engine? Answer with its
# name, such as `"q_rope"`. (The order of computation is that of the picture in *The riddle, solved*, then `final_norm` and
# `logits`.)

# %%
for engine in "ABC":
    print(check.listing(engine))

# %% tags=["exercise"]
answer = {
    "A": ...,
    "B": ...,
    "C": ...,
}

# %% tags=["checker"]
check.first(answer)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Write the names in the order of computation: embed, attn_norm, q, k, v, q_rope, k_rope, attn_heads, attn_out,
# attn_residual, ... For each, is *off by* larger than *allowed*? In B the two are close.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# answer = {"A": "attn_heads", "B": "attn_norm", "C": "attn_residual"}
# ```
#
# In A everything up to the rotated q and k is right, so it is attention itself. In C attention and its projection are right,
# and the sum is not: what it was added to must be wrong. B is the smallest error of the three, and it was made the earliest.
#
# </details>

# %% [markdown]
# ### Exercise 04.4 · Multiply-adds
#
# *predict · 10 minutes · difficulty 2 of 5*
#
# The real model, `smollm2`, has dim 576, 30 layers, 9 query heads and 3 key/value heads of 64, ffn_dim 1,536 and a
# vocabulary of 49,152. How many **multiply-adds** (a multiplication and the addition after it, together one) do its matrix products
# make for one token? Count all matrices that a token's row is multiplied with. Leave out the norms, the rotation, and the
# scores and mixes of attention, which depend on the position.

# %% tags=["exercise"]
multiply_adds = ...

# %% tags=["checker"]
check.multiply_adds(multiply_adds)

# %% [markdown]
# <details><summary>Hint</summary>
#
# A product of a matrix of m rows and n columns with a row of n numbers takes m · n multiply-adds. There are seven matrices in a
# layer, and one behind the last. Write down their shapes first; the listing of `tiny` at the beginning shows the pattern.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# dim, heads, kv, ffn = 576, 9 * 64, 3 * 64, 1536
# layer_adds = heads * dim + 2 * kv * dim + dim * heads + 3 * ffn * dim
# multiply_adds = 30 * layer_adds + 49152 * dim
# ```
#
# The embedding adds nothing, since looking up a row is no arithmetic; the head, the same table, is a fifth of the whole.
#
# </details>

# %% [markdown]
# ## Recap
#
# A transformer is a stream of rows, one for each position, to which every block adds twice: what attention found at other
# positions, and what the feed-forward part makes of each row alone. Only attention looks at other positions: a query scores
# the keys that the mask leaves it, with distances told by the rotation, and softmax makes of the scores the shares in which
# values are mixed. Text proves little; what proves an engine right is a second program, a derived tolerance, and the first
# operation where the two part.
#
# **The next lesson** needs one thing from this one: logits, a score for every token of the vocabulary. It turns them into
# text that is not always the same.
#
# **Further reading.** Ashish Vaswani et al., *Attention Is All You Need* (2017). Biao Zhang and Rico Sennrich, *Root Mean Square
# Layer Normalization* (2019), and before it Jimmy Lei Ba et al., *Layer Normalization* (2016). Jianlin Su et al., *RoFormer:
# Enhanced Transformer with Rotary Position Embedding* (2021). Noam Shazeer, *GLU Variants Improve Transformer* (2020). Joshua
# Ainslie et al., *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints* (2023). Nicholas
# Higham and Theo Mary, *A New Approach to Probabilistic Rounding Error Analysis* (2019). Nelson Elhage et al., *A Mathematical
# Framework for Transformer Circuits* (2021).
#
# ### And now, the real one
#
# The function `forward`, as you wrote it, has never met `smollm2`: 135 million weights, 30 layers, nine heads. It names no
# size, so it should not mind. Eight words, each time the most probable token, on one thread:

# %% tags=["nbval-ignore-output", "real"]
if KNOWN["smollm2"].is_here:
    known = real.tokenizer.encode("A computer is a machine that")
    with threadpool_limits(1):
        for _ in range(10):  # ten tokens, eight words
            known.append(int(forward(real.engine.weights, real.config, known)[-1].argmax()))
    print(real.tokenizer.decode(known))
    assert real.tokenizer.decode(known).endswith("It's a tool that helps")
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# You wrote a language model. Every number on the way to those words passed through lines that you can explain.
