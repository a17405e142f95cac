"""The widest registers of this target, under names without a width.

A kernel that uses these is written once: with AVX-512 a register holds 16 floats, with AVX2 (or
none of both) it holds 8. LANES says how many; layouts in memory are made for it.
"""

from . import arithmetic, memory, registers
from .target import target_has

LANES = 16 if target_has("avx512") else 8  # float32 numbers in a register

if LANES == 16:
    floats, ints, shorts = registers.f32x16, registers.i32x16, registers.i16x32
    signed, unsigned = registers.i8x64, registers.u8x64
    load, load_f16, load_bf16 = memory.load_f32x16, memory.load_f16x16, memory.load_bf16x16
    load_u8, load_i8 = memory.load_u8_f32x16, memory.load_i8_f32x16
    load_bytes, splat = memory.load_u8x64, arithmetic.splat_f32x16
else:
    floats, ints, shorts = registers.f32x8, registers.i32x8, registers.i16x16
    signed, unsigned = registers.i8x32, registers.u8x32
    load, load_f16, load_bf16 = memory.load_f32x8, memory.load_f16x8, memory.load_bf16x8
    load_u8, load_i8 = memory.load_u8_f32x8, memory.load_i8_f32x8
    load_bytes, splat = memory.load_u8x32, arithmetic.splat_f32x8
