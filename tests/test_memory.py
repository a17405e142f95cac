"""No answer leaves anything behind: memory after thousands of them is what it was after a few.

Each program runs in a process of its own and prints its resident memory, in MB, twice: when what is
needed once is there (compiled code, buffers, threads), and at the end.
"""

import subprocess
import sys

import pytest

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
