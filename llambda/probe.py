"""Two declared black boxes: how fast this machine reads memory, and how fast it multiplies.

Every speed in the course is set against one of two limits. `read_bandwidth` measures how many
bytes a second the cores can read, `fma_peak` how many float32 operations a second they can do.
Why such loops look as they do is the matter of later lessons. Here they are given: as text in the
language of LLVM (the compiler behind Numba), compiled for this machine's own CPU, whatever Numba
is told to compile for.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
from llvmlite import binding as llvm
from numpy.typing import NDArray

from .errors import InputError, ResourceError
from .machine import asked, available_memory, llvm_features

MIB = 1 << 20
STEP = 256  # bytes that the read loop takes from each stream in one turn: 4 cache lines
AHEAD = 512  # bytes from a load to the line that is asked for in advance
ACCUMULATORS = 12  # independent sums in the multiply loop
TURNS = 100_000  # of the multiply loop in one call
ENGINES: list[object] = []  # they own the machine code


def ceiling_tokens_per_s(bandwidth_bytes_per_s: float, bytes_per_token: float) -> float:
    """The most tokens a second for a model that reads `bytes_per_token` to make one.

    Every weight takes part in every token, and all of them together fit in no cache, so a token
    takes at least the time to read them: 25e9 B/s over 96.4e6 B is at most 259 tokens a second.
    """
    return bandwidth_bytes_per_s / bytes_per_token


def read_ir(lanes: int, streams: int) -> str:
    """The loop that adds up an array of int32, in vectors of `lanes`.

    The array is `streams` equal parts, `apart` bytes each; a turn takes STEP bytes of every part,
    and after `turns` of them the loop starts over. With more than one stream it also asks for the
    lines that it will need soon: the hardware guesses them by itself, but not always in time.
    Integer sums are exact in any order; returning one keeps the loads from being optimized away.
    """
    vector = f"<{lanes} x i32>"
    sums = range(STEP // (4 * lanes))
    zero, body, total = "", "", ""
    for k in sums:
        zero += f"  %s0.{k} = phi {vector} [zeroinitializer, %entry], [%s{streams}.{k}, %turn]\n"
        total += f"  %t{k + 1} = add {vector} %t{k}, %s{streams}.{k}\n"
    for part in range(streams):
        for line in range(0, STEP, 64) if streams > 1 else ():
            body += f"""
  %a{part}.{line} = getelementptr i8, ptr %p{part}, i64 {AHEAD + line}
  call void @llvm.prefetch.p0(ptr %a{part}.{line}, i32 0, i32 3, i32 1)"""
        for k in sums:
            body += f"""
  %q{part}.{k} = getelementptr {vector}, ptr %p{part}, i64 {k}
  %x{part}.{k} = load {vector}, ptr %q{part}.{k}, align 64
  %s{part + 1}.{k} = add {vector} %s{part}.{k}, %x{part}.{k}"""
        body += f"\n  %p{part + 1} = getelementptr i8, ptr %p{part}, i64 %apart"
    return f"""
declare i32 @llvm.vector.reduce.add.v{lanes}i32({vector})
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define i32 @read(ptr %start, i64 %apart, i64 %turns, i64 %all_turns) {{
entry:
  br label %turn
turn:
  %done = phi i64 [0, %entry], [%done1, %turn]
  %i = phi i64 [0, %entry], [%i1, %turn]
{zero}
  %offset = mul i64 %i, {STEP}
  %p0 = getelementptr i8, ptr %start, i64 %offset
{body}
  %after = add i64 %i, 1
  %at_end = icmp eq i64 %after, %turns
  %i1 = select i1 %at_end, i64 0, i64 %after
  %done1 = add i64 %done, 1
  %more = icmp ult i64 %done1, %all_turns
  br i1 %more, label %turn, label %exit
exit:
  %t0 = add {vector} zeroinitializer, zeroinitializer
{total}
  %sum = call i32 @llvm.vector.reduce.add.v{lanes}i32({vector} %t{len(sums)})
  ret i32 %sum
}}"""


def fma_ir(lanes: int) -> str:
    """The loop that does x = a * x + b for ACCUMULATORS vectors x, and returns the sum of all.

    A core starts two fused multiply-adds a cycle and each takes about four, so eight or more that
    do not wait for each other keep it busy. Accumulator k starts at k, so that no two are alike.
    `fmuladd` is one instruction where the CPU has it, a multiplication and an addition elsewhere.
    """
    vector = f"<{lanes} x float>"
    start, body, total = "", "", ""
    for k in range(ACCUMULATORS):
        start += f"  %x{k} = phi {vector} [splat (float {k}.0), %entry], [%y{k}, %turn]\n"
        body += f"  %y{k} = call {vector} @llvm.fmuladd.v{lanes}f32({vector} %x{k}, "
        body += f"{vector} %as, {vector} %bs)\n"
        total += f"  %t{k + 1} = fadd {vector} %t{k}, %y{k}\n"
    return f"""
declare {vector} @llvm.fmuladd.v{lanes}f32({vector}, {vector}, {vector})
declare float @llvm.vector.reduce.fadd.v{lanes}f32(float, {vector})
define float @fma(float %a, float %b, i64 %turns) {{
entry:
  %a0 = insertelement {vector} poison, float %a, i64 0
  %as = shufflevector {vector} %a0, {vector} poison, <{lanes} x i32> zeroinitializer
  %b0 = insertelement {vector} poison, float %b, i64 0
  %bs = shufflevector {vector} %b0, {vector} poison, <{lanes} x i32> zeroinitializer
  br label %turn
turn:
  %i = phi i64 [0, %entry], [%i1, %turn]
{start}
{body}
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %turns
  br i1 %more, label %turn, label %exit
exit:
  %t0 = fadd {vector} zeroinitializer, zeroinitializer
{total}
  %sum = call float @llvm.vector.reduce.fadd.v{lanes}f32(float 0.0, {vector} %t{ACCUMULATORS})
  ret float %sum
}}"""


@cache
def target(cpu: str | None = None, features: str | None = None) -> llvm.TargetMachine:
    """What to compile for: this CPU with all its features, unless told otherwise."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    here = asked(lambda: llvm.get_host_cpu_features().flatten(), "")
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name() if cpu is None else cpu,
        features=here if features is None else features,
        opt=3,
        jit=True,
    )


def compiled(ir: str, name: str, machine: llvm.TargetMachine) -> int:
    """The address of function `name`, compiled. The text is in final form: no passes are run."""
    module = llvm.parse_assembly(ir)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    ENGINES.append(engine)
    return int(engine.get_function_address(name))


@cache
def read_kernel(lanes: int, streams: int) -> Callable[[int, int, int, int], int]:
    """read(address, bytes apart, turns, all turns). A call through ctypes lets go of the GIL."""
    integer = ctypes.c_int64
    kind = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, integer, integer, integer)
    return kind(compiled(read_ir(lanes, streams), "read", target()))


@cache
def fma_kernel(lanes: int) -> Callable[[float, float, int], float]:
    """fma(a, b, turns), likewise."""
    kind = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, ctypes.c_float, ctypes.c_int64)
    return kind(compiled(fma_ir(lanes), "fma", target()))


def widest_lanes() -> int:
    """Float32 lanes of this CPU's widest vectors: 16 with AVX-512, 8 with AVX2, else 4."""
    features = llvm_features()
    return 16 if "avx512f" in features else 8 if "avx2" in features else 4


def read(
    part: NDArray[np.uint8], passes: int = 1, streams: int = 1, lanes: int | None = None
) -> int:
    """The sum of an array's bytes taken as int32, modulo 2^32, times `passes`.

    part : contiguous, 64-byte aligned, STEP * streams bytes long or a multiple of that;
        InputError if it is not, for the loop trusts what it is told
    """
    aligned = part.flags.c_contiguous and part.ctypes.data % 64 == 0
    if not aligned or part.nbytes == 0 or part.nbytes % (STEP * streams) or passes < 1:
        raise InputError(f"cannot read {part.nbytes} bytes {passes} times in {streams} streams")
    turns = part.nbytes // (STEP * streams)
    kernel = read_kernel(lanes or widest_lanes(), streams)
    return kernel(part.ctypes.data, turns * STEP, turns, turns * passes)


def in_step(calls: Sequence[Callable[[], object]]) -> float:
    """Run the calls at once, a thread each; seconds from the first start to the last end."""
    go, times = threading.Event(), []

    def run(call: Callable[[], object]) -> None:
        go.wait()
        start = time.perf_counter()
        call()
        times.append((start, time.perf_counter()))

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    try:
        for thread in threads:
            thread.start()
    finally:
        go.set()
    for thread in threads:
        thread.join()
    return max(end for _, end in times) - min(start for start, _ in times)


def best_rate(work: Sequence[Callable[[int], object]], repeats: int, seconds: float) -> float:
    """Rounds a second at the best of several tries; `work[k](n)` does n rounds in thread k.

    First the number of rounds is doubled until a try takes `seconds`, which also warms up. The
    best try is the one that other programs disturbed least.
    """
    rounds = 1
    while in_step([partial(each, rounds) for each in work]) < seconds:
        rounds *= 2
    return rounds / min(in_step([partial(each, rounds) for each in work]) for _ in range(repeats))


def read_bandwidth(
    threads: int, nbytes: int = 256 * MIB, repeats: int = 7, seconds: float = 0.03
) -> float:
    """Bytes a second that `threads` threads read together, each its own part of one array.

    Measured is reading an array of `nbytes` over and over, as an engine reads its weights, at the
    better of two loops: one stream a thread, and four with prefetch. If the array is larger than
    the last-level cache this is the memory's speed; if not, the cache's, or a mixture where
    hundreds of MiB of cache are shared with other virtual machines. Threads are not pinned: on a
    computer with several memory nodes the figure is a lower bound.

    Raises InputError for less than one thread or 1 KiB a thread, ResourceError if memory is short.
    """
    share = nbytes // max(threads, 1) // 1024 * 1024
    if threads < 1 or share < 1024:
        raise InputError(f"{threads} threads cannot share {nbytes} bytes, 1,024 or more each")
    if nbytes > available_memory():
        raise ResourceError(
            f"{nbytes / 1e6:.0f} MB are needed to measure the memory's speed",
            fix="Free some memory, or measure a smaller array.",
        )
    room = np.empty(threads * share + 64, np.uint8)
    first = -room.ctypes.data % 64
    parts = room[first : first + threads * share].reshape(threads, share)
    in_step([partial(part.fill, 1) for part in parts])  # memory never written is not there yet
    rates = [
        best_rate([partial(read, part, streams=streams) for part in parts], repeats, seconds)
        for streams in (1, 4)
    ]
    return max(rates) * parts.nbytes


def bandwidth_curve(max_threads: int, nbytes: int = 256 * MIB) -> dict[int, float]:
    """Threads -> bytes a second, for 1, 2, 4, ... threads and for `max_threads`."""
    counts = [1 << k for k in range(max_threads.bit_length()) if 1 << k < max_threads]
    return {threads: read_bandwidth(threads, nbytes) for threads in [*counts, max_threads]}


def fma_flops(turns: int, lanes: int) -> int:
    """Floating point operations of the multiply loop: two (times, plus) per lane."""
    return 2 * turns * ACCUMULATORS * lanes


def fma_peak(
    threads: int, lanes: int | None = None, repeats: int = 7, seconds: float = 0.03
) -> float:
    """Float32 operations a second of `threads` threads that only multiply and add in registers.

    `lanes` is the vectors' width, the CPU's widest unless given: 8 is the peak of AVX2 code on a
    machine that has AVX-512. Raises InputError for less than one thread.
    """
    if threads < 1:
        raise InputError(f"{threads} threads cannot compute")
    lanes = lanes or widest_lanes()
    kernel = fma_kernel(lanes)
    work = [lambda rounds: kernel(0.5, 1.0, rounds * TURNS)] * threads
    return threads * fma_flops(TURNS, lanes) * best_rate(work, repeats, seconds)
