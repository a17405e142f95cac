"""A lesson made up to keep to the contract, to be spoiled in one place at a time."""

import nbformat
from lesson_contract import TWIN_HEADER, Lesson
from nbformat import NotebookNode

from build import METADATA, cell_ids, read_twin
from llambda.course.exercises.base import Exercise, Wrong

MADE_UP = (
    TWIN_HEADER
    + '''\
# # 00 · Your machine
#
# **What can this computer do?**
#
# - **You will build** a description.
# - **You will be able to** read it.
# - **You need** nothing.
#
# *45 minutes · difficulty 1 of 5*

# %% tags=["nbval-ignore-output"]
from llambda.course.picture import engine_picture

engine_picture("00")

# %% [markdown]
# ## Build: a guess

# %%
from llambda.course.predictions import outcome, predict

guess = ...
predict("00.ceiling", "tokens/s", guess)

# %% tags=["core"]
def double(x):
    """Twice x."""
    y = x + x
    return y


double(2)

# %% tags=["nbval-ignore-output"]
import llambda.course
from llambda import machine

llambda.course.show(machine.this_machine)

# %% [markdown]
# ## Check: with the real model

# %% tags=["nbval-ignore-output", "real"]
from llambda.fetch import KNOWN

if KNOWN["smollm2"].is_here:
    model = llambda.load("smollm2")
    assert model
    print(model)
else:
    print("smollm2 is not here; get it with: llambda fetch smollm2")

# %% [markdown]
# ## Profile: your roof
#
# ```
# ## no heading
# ```

# %%
outcome("00.ceiling", "tokens/s", double(1))

# %% [markdown]
# ## Break it: a fault
#
# ## Exercises

# %%
from llambda.course.exercises import your_machine as check

# %% [markdown]
# ### Exercise 00.1 · The ceiling
#
# *predict · 5 minutes · difficulty 1 of 5*
#
# How many?

# %% tags=["exercise"]
answer = ...

# %% tags=["checker"]
check.ceiling(answer)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Think.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# answer = 2
# ```
#
# It is two.
#
# </details>

# %% [markdown]
# ## Recap
#
# One. Two. Three.
#
# **Further reading.** A Book, 1999.
'''
)


def judge(answer: object) -> str:
    if answer == 2:
        return "Yes."
    raise Wrong({1: "too few", 3: "too many"}.get(answer, "neither here nor there"))


ceiling = Exercise("00.1", "The ceiling", "predict", 5, 1, judge)


def stream(text: str, name: str = "stdout") -> NotebookNode:
    return nbformat.v4.new_output("stream", name=name, text=text)


def shown(kind: str, data: str) -> NotebookNode:
    return nbformat.v4.new_output("display_data", {kind: data})


def made(text: str = MADE_UP, name: str = "00_your_machine") -> Lesson:
    """The lesson of a twin with this text, as if it had been recorded."""
    notebook = read_twin(text)
    notebook.metadata = nbformat.from_dict(METADATA)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, new in zip(notebook.cells, cell_ids([], notebook.cells), strict=True):
        cell.id = new
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
        tags = cell.metadata.get("tags", [])
        if "engine_picture(" in cell.source:
            cell.outputs = [shown("image/png", "iVBORw0KGgo=")]
        elif "checker" in tags:
            cell.outputs = [stream("00.1 not attempted yet\n")]
        elif "nbval-ignore-output" in tags:
            cell.outputs = [stream("what it showed\n")]
    return Lesson(name, notebook, read_twin(text), text, [ceiling])
