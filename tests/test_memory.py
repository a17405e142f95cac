"""No answer leaves anything behind: memory after thousands of them is what it was after a few.

Each program runs in a process of its own and prints its resident memory, in MB, twice: when what is
needed once is there (compiled code, buffers, threads), and at the end. Below, the same of its peak,
for programs that look into a large file.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import gguf_bytes as raw
import pytest
from scripted import MERGES, SIZES, TOKENS, write_small

from llambda.machine import available_memory

LIMIT = 5.0  # MB
BEGIN = """
import llambda
from llambda.eventlog import resident_mb
from llambda.sampling import Sampling

def note(number, first):
    if number == first:
        print(resident_mb())

def keep(state):
    pass
"""
ONE_BY_ONE = """
model = llambda.load("tiny", threads=2)
for number in range(2_000):
    note(number, 50)
    prompt = "Once upon a time " * (number % 3 + 1)
    answer = model.generate(prompt, max_tokens=number % 5, seed=number)
    assert len(answer.ids) <= number % 5
    keep(model.engine.new_state(64))
"""
TOGETHER = """
model = llambda.load("tiny", threads=2)
batch = model.batch(max_running=4)
for number in range(2_000):
    note(number, 50)
    batch.submit("Once upon a time", Sampling(seed=number), number % 5)
    if number % 8 == 7:
        assert len({id(answer) for answer, _ in batch.run()}) == 8
    keep(model.engine.new_state(64))
"""
LOADED_AGAIN = """
for number in range(100):
    note(number, 20)
    with llambda.load("tiny", threads=2) as model:
        assert model.generate("Once", max_tokens=2).ids
        keep(model.engine.new_state(64))
"""
PROGRAMS = {"one by one": ONE_BY_ONE, "together": TOGETHER, "loaded again": LOADED_AGAIN}


def growth(program: str) -> float:
    code = f"{BEGIN}{program}\nprint(resident_mb())\n"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    early, late = map(float, done.stdout.split())
    return late - early


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_stays(name: str):
    assert growth(PROGRAMS[name]) < LIMIT


@pytest.mark.parametrize("name", PROGRAMS)
def test_states_that_are_left_behind_are_noticed(name: str):
    assert growth(f"\nkept = []\nkeep = kept.append\n{PROGRAMS[name]}") > LIMIT


# ---------------------------------------------------------------- files larger than memory


LOOKING = 50.0  # MB that may be taken for looking into a file, whatever its size
LARGE = {"embedding_length": 16384, "block_count": 1, "attention.head_count": 64}
LARGE |= {"attention.head_count_kv": 64, "feed_forward_length": 32}
LARGE |= {"attention.key_length": 256, "attention.value_length": 256, "rope.dimension_count": 256}
BEFORE = """
import sys
from llambda import describe, model
from llambda.errors import ResourceError
from llambda.eventlog import peak_resident_mb

small, large = sys.argv[1:]
describe.describe_file(small)
print(peak_resident_mb())
"""
INSPECTED = """
runs = describe.describe_file(large)["runs"]
assert runs["weight_memory_bytes"] > 4e9, runs
"""
REFUSED = """
model.available_memory = lambda: 4_000_000_000
try:
    model.load(large)
except ResourceError as error:
    assert "weights and cache take 4," in str(error), error
else:
    raise AssertionError
"""
READ = """
file = model.modelfile.open(model.Path(large))
layer = model.modelfile.read_weights(file, model.modelfile.read_config(file)).layers[0]
assert layer.q.nbytes == layer.k.nbytes == 1 << 30
"""


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small file, and one of 4.3 GB with 1 GB each in q and k, of which the disk holds a page."""
    folder = tmp_path_factory.mktemp("sparse")
    dim, rows = LARGE["embedding_length"], SIZES["vocab_size"]
    shapes = {"token_embd": [rows, dim], "output_norm": [dim]}
    shapes |= {f"blk.0.attn_{name}": [dim, dim] for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.{name}_norm": [dim] for name in ("attn", "ffn")}
    shapes |= {f"blk.0.ffn_{name}": [32, dim] for name in ("gate", "up")}
    shapes |= {"blk.0.ffn_down": [dim, 32]}
    infos, offset = [], 0
    for name, shape in shapes.items():
        infos.append(raw.info(f"{name}.weight", shape[::-1], raw.F32, offset))
        offset += 4 * math.prod(shape)
    keys = [raw.key(f"llama.{key}", "u32", value) for key, value in (SIZES | LARGE).items()]
    keys += [
        raw.key("general.architecture", "str", "llama"),
        raw.key("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
        raw.key("tokenizer.ggml.model", "str", "gpt2"),
        raw.key("tokenizer.ggml.pre", "str", "gpt-2"),
        raw.key("tokenizer.ggml.tokens", "[str]", TOKENS),
        raw.key("tokenizer.ggml.merges", "[str]", [" ".join(pair) for pair in MERGES]),
    ]
    header = raw.file(keys, infos)
    large = folder / "large.gguf"
    large.write_bytes(header)
    os.truncate(large, len(header) + offset)
    return write_small(folder / "small.gguf"), large


def looking(program: str, files: tuple[Path, Path]) -> float:
    """MB by which the program raises the peak of its process."""
    code = f"{BEFORE}{program}\nprint(peak_resident_mb())\n"
    command = [sys.executable, "-c", code, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    early, late = map(float, done.stdout.split())
    return late - early


@pytest.mark.parametrize("program", [INSPECTED, REFUSED], ids=["inspected", "refused"])
def test_weights_are_not_read_to_be_weighed(program: str, sparse: tuple[Path, Path]):
    assert looking(program, sparse) < LOOKING


def test_weights_that_are_read_are_noticed(sparse: tuple[Path, Path]):
    if available_memory() < 5e9:
        pytest.skip("needs 5 GB of memory")
    assert looking(READ, sparse) > 2000
