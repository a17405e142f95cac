"""Memory and functions by their addresses: how plans that are plain numbers reach compiled code.

An address is an int64. Nothing is checked, and nobody keeps the memory alive: the caller does.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from .registers import Code, instruction

LONG = ir.IntType(64)


def are_integers(*numbers: Any) -> bool:
    return all(isinstance(number, types.Integer) for number in numbers)


def array_of(element: Any, name: str) -> Any:
    """A function (address, n) that gives n elements in memory as an array of one axis."""
    kind = types.Array(element, 1, "C")

    @instruction(lambda address, n: kind if are_integers(address, n) else None, name)
    def array_at(code: Code, address: Any, n: Any) -> Any:
        """np.frombuffer(memory, dtype, n, offset=address)"""
        b, context = code.builder, code.context
        where, count = code.argument(0, address, types.int64), code.argument(1, n, types.int64)
        array = context.make_array(kind)(context, b)
        size = LONG(element.bitwidth // 8)
        fill: Any = context.populate_array
        pack: Any = cgutils.pack_array
        fill(
            array,
            data=b.inttoptr(where, array.data.type),
            shape=pack(b, [count]),
            strides=pack(b, [size]),
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return array_at


bytes_at, halves_at = array_of(types.uint8, "bytes_at"), array_of(types.uint16, "halves_at")
floats_at, longs_at = array_of(types.float32, "floats_at"), array_of(types.int64, "longs_at")


@instruction(lambda address, a, b, c: types.none if are_integers(address, a, b, c) else None)
def call3(code: Code, address: Any, a: Any, b: Any, c: Any) -> None:
    """Call the C function (int64, int64, int64) -> void that begins at an address."""
    numbers = [code.argument(i + 1, n, types.int64) for i, n in enumerate((a, b, c))]
    kind = ir.FunctionType(ir.VoidType(), [LONG] * 3)
    where = code.builder.inttoptr(code.argument(0, address, types.int64), kind.as_pointer())
    code.builder.call(where, numbers)
