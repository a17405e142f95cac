"""What one compiled call of the fused engine is told: plain numbers in one array. Lesson 11.

Because a plan is data and not types, one compiled function serves every model and every mixture of
weight formats. A step is an int64 array with the fields below; what is called an address is that
of float32 numbers unless it says otherwise. The weights of each layer are a row of a table.
"""

# ---------------------------------------------------------------- the phases of a layer

# Threads wait for one another after each. A step runs those from FIRST to LAST, which count on from
# layer to layer; behind the last layer stands one more, the logits.
QKV, ATTENTION, ATTN_OUT, GATE_UP, FFN_OUT, PHASES = range(6)

# ---------------------------------------------------------------- a row of the table of weights

# Of each matrix: the address of its product (kernels/products.py), of its packed bytes, of its bias
# (or 0), and whether it takes activations as FLOATS or CODED.
PRODUCT, WEIGHTS, BIAS, TAKES, MATRIX = range(5)
Q, K, V, OUT, GATE, UP, DOWN = range(0, 7 * MATRIX, MATRIX)
ATTN_NORM, FFN_NORM = range(7 * MATRIX, 7 * MATRIX + 2)
# What the matrices of a phase, which share their input, take: FLOATS, CODED or the sum of both.
FOR_QKV, FOR_OUT, FOR_GATE_UP, FOR_DOWN, LAYER = range(7 * MATRIX + 2, 7 * MATRIX + 7)
FLOATS, CODED = 1, 2
# Behind the last layer stands one more row, with the head and its norm in these places:
HEAD, FINAL_NORM, FOR_HEAD = Q, ATTN_NORM, FOR_QKV

# ---------------------------------------------------------------- the fields of a step

(
    # The model: counts, and numbers from one token to the next in the buffers below.
    N_LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, FFN_DIM,
    EPS,  # the bits of a float64
    HEAD_ROWS,  # rows of a head when strips are filled up
    VOCAB_ROWS,  # likewise of the whole head matrix
    DIM_STRIDE, QKV_STRIDE, Q_STRIDE, KV_STRIDE, FFN_STRIDE,
    TABLE,  # address of the weights' table, int64
    # Threads.
    CONTROL,  # address of the barrier's counters
    OWN, OWN_BYTES,  # address of what belongs to the first thread alone, bytes to the next thread's
    OWN_NORMED, OWN_TILES, OWN_CODES, OWN_SCALES, OWN_ATTENTION,  # bytes from there
    CLOCK,  # address of CLOCKS int64 for each thread, or 0
    # Buffers, [token][...].
    X, QKV_OUT, Q_TURNED, K_TURNED, MIXED, O_OUT, GATE_OUT, UP_OUT, INNER, DOWN_OUT, LOGITS,
    NORMED,  # x after a norm
    TILES, CODES, SCALES,  # activations as products take them (kernels/activations.py)
    # Attention (kernels/cached_attention.py).
    SCORE, MIX, PREFILL,  # addresses of functions
    SCORES, ROW,
    HALVES,  # whether caches hold float16
    # This call.
    FIRST, LAST,  # phases
    N,  # tokens
    TOKENS,  # address of two int64 for each: the number of its sequence, and its position there
    COS, SIN, TURNS,  # addresses of the table of rotations, numbers from position to position
    N_SEQUENCES, SEQUENCES,  # as attention takes them
    PREFILLS,  # whether a sequence has more than one new token
    WANTED, N_WANTED,  # address of the numbers (int64) of tokens whose logits are asked for
    STEP,
) = range(58)  # fmt: skip

# ---------------------------------------------------------------- the clock

# What a thread's ticks are spent on, where a step has a clock.
PREPARE, MULTIPLY, TURN, ATTEND, SWIGLU, ADD, WAIT, CLOCKS = range(8)
