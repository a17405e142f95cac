"""What threads need of the processor: a pause, the clock, and memory that many write. Lesson 10-11.

Atomic functions take an int64 array and an index; they are complete before what follows begins,
on every core (sequentially consistent).
"""

import platform
import sys
import time
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


@instruction(lambda: types.int64)
def nanoseconds(code: Code) -> Any:
    """time.monotonic_ns()"""
    insert: Any = cgutils.get_or_insert_function
    time_at = pair_of(code, LONG(0), LONG(0))
    kind = ir.FunctionType(INT, [INT, LONG.as_pointer()])
    function = insert(code.builder.module, kind, "clock_gettime")
    code.builder.call(function, [INT(time.CLOCK_MONOTONIC), time_at])
    rest_at = code.builder.gep(time_at, [LONG(1)])
    seconds, rest = code.builder.load(time_at), code.builder.load(rest_at)
    return code.builder.add(code.builder.mul(seconds, SECOND), rest)


def pair_of(code: Code, first: Any, second: Any) -> Any:
    """Address of two numbers on the stack, as the system takes and gives times."""
    alloca: Any = cgutils.alloca_once
    pair = alloca(code.builder, ir.ArrayType(LONG, 2))
    at = [code.builder.gep(pair, [LONG(0), LONG(place)]) for place in (0, 1)]
    for place, number in zip(at, (first, second), strict=True):
        code.builder.store(number, place)
    return at[0]


@instruction(counters(types.none))
def sleep_while(code: Code, array: Any, at: Any, value: Any, limit: Any) -> None:
    """Sleep until another thread wakes array[at], if that is value; `limit` nanoseconds at most.

    Only the lower 32 bits are compared. May return for no reason. Who sleeps has the core at once
    when it wakes; who yields waits for the turn of all others. Source: futex(2). Where the system
    has none, this yields.
    """
    most = code.argument(3, limit, types.int64)
    limit_at = pair_of(code, code.builder.sdiv(most, SECOND), code.builder.srem(most, SECOND))
    number = code.argument(2, value, types.int64)
    futex(code, array, at, PRIVATE_WAIT, number, code.builder.ptrtoint(limit_at, LONG))


@instruction(counters(types.none))
def wake(code: Code, array: Any, at: Any) -> None:
    """Wake all threads that sleep at array[at]."""
    futex(code, array, at, PRIVATE_WAKE, LONG(2**31 - 1), LONG(0))


SECOND = LONG(1_000_000_000)  # nanoseconds
FUTEX = {"x86_64": 202, "aarch64": 98}  # number of the system call, in Linux
PRIVATE_WAIT, PRIVATE_WAKE = 128, 129


def futex(code: Code, array: Any, at: Any, operation: int, value: Any, limit_at: Any) -> None:
    number = FUTEX.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        yield_core.write(code)
        return
    kind = ir.FunctionType(LONG, [LONG], var_arg=True)
    insert: Any = cgutils.get_or_insert_function
    address = code.builder.ptrtoint(code.place(array, at, LONG), LONG)
    arguments = [LONG(number), address, LONG(operation), value, limit_at]
    code.builder.call(insert(code.builder.module, kind, "syscall"), arguments)


@instruction(lambda: types.none)
def yield_core(code: Code) -> None:
    """Let another thread have this core, if one is waiting for it (POSIX sched_yield)."""
    code.call("sched_yield", INT)
