"""What Numba compiles for, asked of the compiler itself.

NUMBA_CPU_NAME and NUMBA_CPU_FEATURES may narrow the target, and then an instruction that this
machine has is one that LLVM cannot select: it would end the process. So a few lines are compiled
for the target, and what instructions come out tells what it has.
"""

import re
from functools import cache

from llvmlite import binding as llvm
from numba.core.registry import cpu_target

SAMPLES = """
define <8 x i32> @avx2(<8 x i32> %a) {
  %r = mul <8 x i32> %a, %a
  ret <8 x i32> %r
}
define <16 x i32> @avx512(<16 x i32> %a) {
  %r = mul <16 x i32> %a, %a
  ret <16 x i32> %r
}
define <32 x i16> @avx512bw(<32 x i16> %a) {
  %r = mul <32 x i16> %a, %a
  ret <32 x i16> %r
}
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
define <8 x float> @fma(<8 x float> %a) {
  %r = call <8 x float> @llvm.fma.v8f32(<8 x float> %a, <8 x float> %a, <8 x float> %a)
  ret <8 x float> %r
}
define <8 x float> @f16c(<8 x half> %a) {
  %r = fpext <8 x half> %a to <8 x float>
  ret <8 x float> %r
}
"""
# With VNNI, LLVM makes one instruction of a multiply-add and a sum. Only where there is AVX2 (or
# AVX-512, for the wide one) may it be asked.
VNNI_SAMPLE = """
declare <{half} x i32> @llvm.x86.{name}(<{lanes} x i16>, <{lanes} x i16>)
define <{half} x i32> @vnni(<{lanes} x i16> %a, <{half} x i32> %sum) {{
  %p = call <{half} x i32> @llvm.x86.{name}(<{lanes} x i16> %a, <{lanes} x i16> %a)
  %r = add <{half} x i32> %p, %sum
  ret <{half} x i32> %r
}}
"""
EVIDENCE = {
    "avx2": r"vpmulld\s.*%ymm",
    "avx512": r"vpmulld\s.*%zmm",
    "avx512bw": r"vpmullw\s.*%zmm",
    "fma": r"vfmadd\w+ps\s.*%ymm",
    "f16c": r"vcvtph2psx?\s.*%ymm",
    "vnni": r"vpdpwssd\s.*%ymm",
    "vnni512": r"vpdpwssd\s.*%zmm",
}


def assembly(source: str) -> str:
    """The instructions that Numba's target gets for a text in LLVM's language."""
    module = llvm.parse_assembly(source)
    module.triple = llvm.get_process_triple()
    return str(cpu_target.target_context.codegen()._tm.emit_assembly(module))


@cache
def target_features() -> frozenset[str]:
    """Those of EVIDENCE that compiled code may use; "avx512" only together with "avx512bw"."""
    found = evident(assembly(SAMPLES))
    if "avx512bw" not in found:
        found -= {"avx512"}
    if "avx2" in found:
        found |= evident(assembly(VNNI_SAMPLE.format(half=8, lanes=16, name="avx2.pmadd.wd")))
    if "avx512" in found:
        text = VNNI_SAMPLE.format(half=16, lanes=32, name="avx512.pmaddw.d.512")
        found |= evident(assembly(text))
    return found


def evident(text: str) -> frozenset[str]:
    return frozenset(name for name, sign in EVIDENCE.items() if re.search(sign, text))


def target_has(*features: str) -> bool:
    """Whether compiled code may use all of these."""
    return target_features().issuperset(features)


def target_is_x86() -> bool:
    """Whether instructions of that family have a meaning at all."""
    return llvm.get_process_triple().split("-")[0] in ("x86_64", "amd64")
