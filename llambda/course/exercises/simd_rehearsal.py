"""Exercise 08.1: a kernel rehearsed in Python, on registers that take notes.

The answer is ordinary Python, which Numba has not compiled yet. So it can be run as it stands, with
forms of the vector functions that do the same in NumPy and write down what they were asked. What
they note does not depend on the machine, and nothing is read that is not there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from ...simd import arithmetic, memory
from .base import Wrong

Floats = npt.NDArray[np.float32]

LANES = 8


@dataclass
class Register:
    """Eight float32, and the number of the addition that they came out of; 0 for none."""

    lanes: Floats
    sum: int = 0

    def __float__(self) -> float:
        raise Wrong(
            "a register stands where one number belongs. `total(v)` is the sum of its lanes."
        )

    def no_operator(self, other: object) -> Any:
        raise Wrong("+ and * are for numbers. Registers have `add` and `fma`.")

    __add__ = __radd__ = __mul__ = __rmul__ = no_operator


@dataclass
class Notes:
    """What was asked of the registers in one call.

    fmas, muls : multiply-adds in one piece, and multiplications alone
    waits : of the multiply-adds, those that need the result of the one just before
    totals : sums across the lanes
    """

    fmas: int = 0
    muls: int = 0
    waits: int = 0
    totals: int = 0
    latest: int = 0
    names: dict[int, str] = field(default_factory=dict)  # of arrays, by identity

    # ------------------------------------------------------------ memory

    def place(self, array: Floats, at: int, count: int) -> slice:
        """Where `count` numbers are. Raises Wrong if they are not all inside."""
        if count == 0:  # nothing is touched, wherever that is
            return slice(0, 0)
        if not 0 <= at <= len(array) - count:
            name = self.names.get(id(array), "an array")
            if name == "y":
                advice = "A row has one sum: `total(v)` adds the lanes of a register."
            elif name == "w" and at >= len(array):
                advice = "That is behind the last row: there may be any number of rows, len(y)."
            else:
                advice = "What lies beyond belongs to somebody else. Take the first few lanes only."
            raise Wrong(
                f"{name}[{at}:{at + count}] is asked for, and {name} has {len(array)} elements. "
                f"{advice}"
            )
        return slice(at, at + count)

    def load_f32x8(self, array: Floats, at: int) -> Register:
        return Register(array[self.place(array, at, LANES)].copy())

    def load_first_f32x8(self, array: Floats, at: int, n: int) -> Register:
        count = min(max(int(n), 0), LANES)
        lanes = np.zeros(LANES, np.float32)
        lanes[:count] = array[self.place(array, at, count)]
        return Register(lanes)

    def store(self, array: Floats, at: int, v: Register) -> None:
        array[self.place(array, at, LANES)] = v.lanes

    def store_first(self, array: Floats, at: int, n: int, v: Register) -> None:
        count = min(max(int(n), 0), LANES)
        array[self.place(array, at, count)] = v.lanes[:count]

    # ------------------------------------------------------------ arithmetic

    def splat_f32x8(self, x: float) -> Register:
        return Register(np.full(LANES, x, np.float32))

    def fma(self, a: Register, b: Register, c: Register) -> Register:
        if not all(isinstance(v, Register) for v in (a, b, c)):
            raise Wrong(
                "`fma` takes three registers. A sum begins as splat_f32x8(0), and not as 0."
            )
        self.fmas += 1
        self.waits += c.sum == self.latest != 0
        exact = a.lanes.astype(np.float64) * b.lanes + c.lanes
        return self.summed(exact.astype(np.float32))

    def add(self, a: Register, b: Register) -> Register:
        return self.summed(a.lanes + b.lanes)

    def sub(self, a: Register, b: Register) -> Register:
        return self.summed(a.lanes - b.lanes)

    def mul(self, a: Register, b: Register) -> Register:
        self.muls += 1
        return Register(a.lanes * b.lanes)

    def summed(self, lanes: Floats) -> Register:
        self.latest += 1
        return Register(lanes, self.latest)

    def total(self, v: Register) -> np.float32:
        self.totals += 1
        lanes = v.lanes
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        return np.float32(lanes[0])


PLAYED = {  # the function of llambda.simd -> the method of Notes that plays it
    id(getattr(module, name)): name
    for module, names in (
        (arithmetic, ("splat_f32x8", "fma", "add", "sub", "mul", "total")),
        (memory, ("load_f32x8", "load_first_f32x8", "store", "store_first")),
    )
    for name in names
}


def rehearsed(function: Any, notes: Notes) -> Callable[..., Any]:
    """The Python function that was to be compiled, with the vector functions played by `notes`.

    So are those in functions that it calls, compiled or not.
    """
    seen: dict[int, FunctionType] = {}

    def stand_in(value: Any) -> Any:
        if name := PLAYED.get(id(value)):
            return getattr(notes, name)
        plain = getattr(value, "py_func", value)
        if value is plain and not isinstance(value, FunctionType):
            return value
        return again(plain) if uses_registers(plain) else value

    def again(plain: FunctionType) -> FunctionType:
        if id(plain) not in seen:
            names: dict[str, Any] = {}
            copy = FunctionType(
                plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__
            )
            copy.__kwdefaults__ = plain.__kwdefaults__
            seen[id(plain)] = copy
            names.update(plain.__globals__)
            names |= {n: stand_in(names[n]) for n in plain.__code__.co_names if n in names}
        return seen[id(plain)]

    return again(getattr(function, "py_func", function))


def uses_registers(plain: Any, depth: int = 4) -> bool:
    """Whether a function, or one that it calls, names a vector function."""
    names = getattr(getattr(plain, "__code__", None), "co_names", ())
    used = [plain.__globals__[name] for name in names if name in plain.__globals__]
    if any(id(value) in PLAYED for value in used):
        return True
    inner = [getattr(value, "py_func", value) for value in used]
    return depth > 0 and any(uses_registers(each, depth - 1) for each in inner)


def rehearse(function: Any, w: Floats, x: Floats, y: Floats) -> Notes:
    """Run function(w, x, y) in Python; y gets its results."""
    notes = Notes(names={id(w): "w", id(x): "x", id(y): "y"})
    with np.errstate(all="ignore"):
        rehearsed(function, notes)(w, x, y)
    return notes
