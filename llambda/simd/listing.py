"""The instructions of a kernel's loops, as evidence for tests and lessons. Lesson 08."""

import re
from collections.abc import Iterator
from typing import Any

from .jit import Foreign

WRAPPER = "\n_ZN7cpython"  # the label of the function that Python calls
LABEL = re.compile(r"^(\.?\w+):")
JUMP = re.compile(r"^\s+j\w+\s+(\.?\w+)$|^\s+b(?:\.\w+)?\s+(\.?\w+)$")
RETURN = re.compile(r"^\s+ret")


def asm(kernel: Any) -> list[str]:
    """The instructions of the innermost loops of a compiled function, in order.

    Of its last compiled signature. A loop is what lies between a label and a jump back to it,
    unless the function ends in between. What Numba puts around for Python's calls is left out.
    """
    return [line for loop in loops(text_of(kernel)) for line in loop]


def text_of(kernel: Any) -> str:
    """The whole listing. Machine code from the disk has none, so a Foreign is compiled again."""
    if isinstance(kernel, Foreign):
        made = kernel.compile(cache=False) if kernel.compiled.cache_hits else kernel.compiled
        return str(made._library.get_asm_str())
    return list(kernel.inspect_asm().values())[-1].partition(WRAPPER)[0]


def loops(text: str, holding: str = "") -> Iterator[list[str]]:
    """The innermost loops of a listing, each as its instructions without labels and directives.

    Among those with an instruction that begins with the pattern `holding`: a loop may hold smaller
    ones without it.
    """
    lines = text.replace("{vex}\t", "").splitlines()  # a word on how VNNI is encoded
    labels = {m[1]: i for i, line in enumerate(lines) if (m := LABEL.match(line))}
    spans = []
    for i, line in enumerate(lines):
        if match := JUMP.match(line):
            start = labels.get(match[1] or match[2], i)
            if start < i:
                spans.append((start, i + 1))
    spans = [(s, e) for s, e in spans if not any(RETURN.match(line) for line in lines[s:e])]
    wanted = re.compile(rf"\s+(?:{holding})")
    spans = [(s, e) for s, e in spans if any(wanted.match(line) for line in lines[s:e])]
    for start, end in spans:
        if not any(start <= s and e <= end and (s, e) != (start, end) for s, e in spans):
            yield [
                line.strip()
                for line in lines[start:end]
                if line.startswith("\t") and line[1] != "."
            ]
