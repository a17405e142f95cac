"""Vector registers as Numba values, and how a function that works on them is written.

A vector register holds several numbers, its lanes. Numba has no type for it, so `Vector` makes
one; LLVM keeps its values in registers. `instruction` turns a Python function that *writes* LLVM
code into one that compiled code can call:

    @instruction(takes(f32x8, f32x8, gives=f32x8))
    def add(code, a, b):
        \"\"\"a + b\"\"\"
        return code.builder.fadd(a, b)

The writer gets a Code, and the arguments of the call as LLVM values.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

BYTE, SHORT, INT = ir.IntType(8), ir.IntType(16), ir.IntType(32)
HALF, FLOAT = ir.HalfType(), ir.FloatType()

Typing = Callable[..., Any]  # the types of a call's arguments -> its result's type, None for no


class Vector(types.Type):
    """The Numba type of a register of `lanes` numbers."""

    def __init__(self, element: Any, lanes: int):
        self.element = element
        self.lanes = lanes
        letter = "f" if self.real else "i" if element.signed else "u"
        super().__init__(f"{letter}{element.bitwidth}x{lanes}")

    @property
    def real(self) -> bool:
        return isinstance(self.element, types.Float)

    def of(self, element: Any) -> "Vector":
        """A register of as many other numbers."""
        return Vector(element, self.lanes)


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector):
        lane = FLOAT if vector.real else ir.IntType(vector.element.bitwidth)
        super().__init__(  # type: ignore[no-untyped-call]
            manager, vector, ir.VectorType(lane, vector.lanes)
        )


f32x8, f32x16 = Vector(types.float32, 8), Vector(types.float32, 16)
i32x8, i32x16 = Vector(types.int32, 8), Vector(types.int32, 16)
i16x16, i16x32 = Vector(types.int16, 16), Vector(types.int16, 32)
i8x32, i8x64 = Vector(types.int8, 32), Vector(types.int8, 64)
u8x32, u8x64 = Vector(types.uint8, 32), Vector(types.uint8, 64)


class Code:
    """The place in a compiled function where the instructions of one call are written."""

    def __init__(self, context: Any, builder: Any, signature: Any):
        self.context = context
        self.builder = builder
        self.signature = signature

    def call(self, name: str, result: ir.Type, *args: Any) -> Any:
        """Call an LLVM intrinsic, or a C function of this process, by its full name."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        insert: Any = cgutils.get_or_insert_function
        function = insert(self.builder.module, kind, name)
        return self.builder.call(function, args)

    def lanes(self, v: Any, numbers: Iterable[int]) -> Any:
        """A vector of the lanes of v with these numbers."""
        chosen = list(numbers)
        mask = ir.Constant(ir.VectorType(INT, len(chosen)), chosen)
        return self.builder.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), mask)

    def splat(self, value: Any, count: int) -> Any:
        """A vector with one value in all its lanes."""
        none = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
        return self.lanes(self.builder.insert_element(none, value, INT(0)), [0] * count)

    def argument(self, number: int, value: Any, to: Any) -> Any:
        """The value of the call's argument `number`, converted."""
        return self.context.cast(self.builder, value, self.signature.args[number], to)

    def element(self, number: int, array: Any, at: Any) -> Any:
        """The address of array[at], where the array is the call's argument `number`."""
        kind = self.context.make_array(self.signature.args[number])
        return self.builder.gep(kind(self.context, self.builder, array).data, [at])

    def place(self, array: Any, at: Any, kind: ir.Type) -> Any:
        """The address of array[at], for the first two arguments, as that of a `kind`."""
        return self.builder.bitcast(self.element(0, array, at), kind.as_pointer())

    @property
    def align(self) -> int:
        """Bytes that the elements of the first argument, an array, are surely aligned to."""
        return int(self.signature.args[0].dtype.bitwidth) // 8


def instruction(typing: Typing, name: str = "") -> Callable[[Callable[..., Any]], Any]:
    """Make a function for compiled code of one that writes code.

    `typing` gets the types of the arguments, and gives the result's type or None, which makes
    Numba say that there is no such function for these types. What writes the code remains at
    hand as `.write`, for functions that are made of others.

    `name`, where one function writes several, must be each one's own: it becomes part of the names
    of the compiled functions that it is an argument of. Of two with one name, compiled by two
    processes and kept, a third process would take the first for both.
    """

    def make(write: Callable[..., Any]) -> Any:
        def typed(typingctx: Any, *args: Any) -> Any:
            result = typing(*args)

            def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                done = write(Code(context, builder, signature), *values)
                return context.get_dummy_value() if result is types.none else done

            return None if result is None else (result(*args), emit)

        names = ["typingctx", *list(inspect.signature(write).parameters)[1:]]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        typed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind) for name in names]
        )
        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(typed, attribute, getattr(write, attribute))
        if name:
            typed.__name__ = name
        made: Any = intrinsic(typed)
        made.write = write
        return made

    return make


# ---------------------------------------------------------------- typings


def takes(*wanted: Vector, gives: types.Type) -> Typing:
    """Exactly these arguments."""
    return lambda *args: gives if args == wanted else None


def any_of(*typings: Typing) -> Typing:
    """What the first of them says that fits."""
    return lambda *args: next(filter(None, (typing(*args) for typing in typings)), None)


def alike(real: bool, whole: bool) -> Typing:
    """Vectors of one type, real or whole numbers, give another of that type."""

    def typing(first: types.Type, *others: types.Type) -> types.Type | None:
        fits = isinstance(first, Vector) and (real if first.real else whole)
        return first if fits and all(other == first for other in others) else None

    return typing


def is_place(array: Any, at: Any) -> bool:
    """Whether (array, at) names an element of a contiguous array of one axis."""
    flat = isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"
    return flat and isinstance(at, types.Integer)
