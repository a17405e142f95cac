"""What threads need of the processor: a pause, the clock, and memory that many write. Lesson 10-11.

Atomic functions take an int64 array and an index; they are complete before what follows begins,
on every core (sequentially consistent).
"""

import platform
import sys
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from .registers import INT, Code, instruction, is_place
from .target import target_is_x86

LONG = ir.IntType(64)


def counters(result: Any) -> Any:
    """Typing of (array of int64, index, numbers...)."""

    def typing(array: Any, at: Any, *numbers: Any) -> Any:
        fits = is_place(array, at) and array.dtype == types.int64
        return result if fits and all(isinstance(n, types.Integer) for n in numbers) else None

    return typing


@instruction(counters(types.int64))
def atomic_load(code: Code, array: Any, at: Any) -> Any:
    """array[at], as the last writer left it."""
    return code.builder.load_atomic(code.place(array, at, LONG), "seq_cst", align=8)


@instruction(counters(types.none))
def atomic_store(code: Code, array: Any, at: Any, value: Any) -> None:
    """array[at] = value"""
    number = code.argument(2, value, types.int64)
    code.builder.store_atomic(number, code.place(array, at, LONG), "seq_cst", align=8)


@instruction(counters(types.int64))
def atomic_add(code: Code, array: Any, at: Any, value: Any) -> Any:
    """Add to array[at], and give what was there before. No other writer comes between."""
    number = code.argument(2, value, types.int64)
    return code.builder.atomic_rmw("add", code.place(array, at, LONG), number, "seq_cst")


@instruction(counters(types.int64))
def atomic_swap(code: Code, array: Any, at: Any, value: Any) -> Any:
    """Write array[at], and give what was there before. No other writer comes between."""
    number = code.argument(2, value, types.int64)
    return code.builder.atomic_rmw("xchg", code.place(array, at, LONG), number, "seq_cst")


@instruction(lambda: types.none)
def pause(code: Code) -> None:
    """Tell the core that this thread is spinning: it saves power, and helps its neighbour."""
    if target_is_x86():
        code.call("llvm.x86.sse2.pause", ir.VoidType())


@instruction(lambda: types.int64)
def cycles(code: Code) -> Any:
    """The processor's time stamp counter: it runs on at a constant rate, in ticks."""
    return code.call("llvm.readcyclecounter", LONG)


@instruction(counters(types.none))
def sleep_while(code: Code, array: Any, at: Any, value: Any, nanoseconds: Any) -> None:
    """Sleep until another thread wakes array[at], if that is value; so long at most.

    Only the lower 32 bits are compared. May return for no reason. Who sleeps has the core at once
    when it wakes; who yields waits for the turn of all others. Source: futex(2). Where the system
    has none, this yields.
    """
    alloca: Any = cgutils.alloca_once
    seconds = ir.ArrayType(LONG, 2)
    limit = alloca(code.builder, seconds)
    number = code.argument(3, nanoseconds, types.int64)
    parts = code.builder.sdiv(number, SECOND), code.builder.srem(number, SECOND)
    for place, part in enumerate(parts):
        code.builder.store(part, code.builder.gep(limit, [LONG(0), LONG(place)]))
    number = code.argument(2, value, types.int64)
    futex(code, array, at, PRIVATE_WAIT, number, code.builder.ptrtoint(limit, LONG))


@instruction(counters(types.none))
def wake(code: Code, array: Any, at: Any) -> None:
    """Wake all threads that sleep at array[at]."""
    futex(code, array, at, PRIVATE_WAKE, LONG(2**31 - 1), LONG(0))


SECOND = LONG(1_000_000_000)  # nanoseconds
FUTEX = {"x86_64": 202, "aarch64": 98}  # number of the system call, in Linux
PRIVATE_WAIT, PRIVATE_WAKE = 128, 129


def futex(code: Code, array: Any, at: Any, operation: int, value: Any, limit: Any) -> None:
    number = FUTEX.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        yield_core.write(code)
        return
    kind = ir.FunctionType(LONG, [LONG], var_arg=True)
    insert: Any = cgutils.get_or_insert_function
    address = code.builder.ptrtoint(code.place(array, at, LONG), LONG)
    arguments = [LONG(number), address, LONG(operation), value, limit]
    code.builder.call(insert(code.builder.module, kind, "syscall"), arguments)


@instruction(lambda: types.none)
def yield_core(code: Code) -> None:
    """Let another thread have this core, if one is waiting for it (POSIX sched_yield)."""
    code.call("sched_yield", INT)
