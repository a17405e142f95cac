"""Exercise 08.3: recorded listings, and how many numbers the arithmetic of each loop works on.

All come from one loop, the sum of products of two rows. They are cut down to the loop that does
most of the work and what stands beside it, and left rolled up where the compiler had written the
same lines several times.
"""

from collections.abc import Mapping

from .base import Answer, exercise, expect_choices

LISTINGS = {
    "A": """\
        vxorps      %xmm0, %xmm0, %xmm0
.LBB0_5:
        vmovss      (%rdx,%r9,4), %xmm1
        vmulss      (%rsi,%r9,4), %xmm1, %xmm1
        vaddss      %xmm1, %xmm0, %xmm0
        incq        %r9
        cmpq        %r9, %r8
        jne         .LBB0_5
        vmovss      %xmm0, (%rax)
""",
    "B": """\
.LBB0_7:
        vmovups     -64(%rdx,%r8), %zmm2
        vmovups     (%rdx,%r8), %zmm3
        vfmadd231ps -64(%rsi,%r8), %zmm2, %zmm1
        vfmadd231ps (%rsi,%r8), %zmm3, %zmm0
        subq        $-128, %r8
        cmpq        %r8, %rcx
        jne         .LBB0_7
        vaddps      %zmm0, %zmm1, %zmm0
""",
    "C": """\
        vxorps      %xmm0, %xmm0, %xmm0
.LBB0_7:
        vmovss      (%r15,%r13,4), %xmm1
        vfmadd231ss (%r12,%r13,4), %xmm1, %xmm0
        incq        %r13
        cmpq        %r13, %r9
        jne         .LBB0_7
        vbroadcastss %xmm0, %ymm0
        vmovups     %ymm0, (%rax)
        vmovups     %ymm0, 32(%rax)
        vzeroupper
""",
    "D": """\
.LBB0_3:
        ldp         q2, q3, [x9], #32
        ldp         q4, q5, [x10], #32
        fmla        v0.4s, v4.4s, v2.4s
        fmla        v1.4s, v5.4s, v3.4s
        subs        x11, x11, #8
        b.ne        .LBB0_3
        fadd        v0.4s, v1.4s, v0.4s
""",
    "E": """\
.LBB0_6:
        movups      (%rsi,%r9,4), %xmm2
        movups      (%rdx,%r9,4), %xmm4
        mulps       %xmm2, %xmm4
        addps       %xmm4, %xmm1
        addq        $4, %r9
        cmpq        %r9, %r8
        jne         .LBB0_6
.LBB0_8:
        movss       (%rsi,%r8,4), %xmm2
        mulss       (%rdx,%r8,4), %xmm2
        addss       %xmm2, %xmm0
""",
}

RIGHT_LANES = {"A": 1, "B": 16, "C": 1, "D": 4, "E": 4}

SINGLE = "`ss` is scalar single: one number, in the lowest lane of a register that has room for"
WRONG_LANES: Mapping[tuple[str, int], str] = {
    ("A", 4): f"{SINGLE} four. `vaddss` adds one.",
    ("A", 8): (
        "the v in front says that the instruction came with AVX, and not that it is a vector one. "
        f"{SINGLE} more."
    ),
    ("B", 8): "that would be %ymm. %zmm is a register of 512 bits, AVX-512's.",
    ("B", 32): (
        "two instructions a turn, so the turn does that many. Asked for is one instruction."
    ),
    ("B", 4): "that would be %xmm. %zmm is a register of 512 bits.",
    ("B", 1): "`ps` is packed single: all lanes of the register.",
    ("C", 8): (
        "%ymm occurs, but behind the jump: there the finished sum is copied to eight places, once. "
        "The loop ends at `jne`, and in it stands `vfmadd231ss`."
    ),
    ("C", 4): f"{SINGLE} four.",
    ("D", 1): (
        "this is NEON, the vector instructions of ARM. There the width stands behind the "
        "register: v0.4s is four singles. A scalar sum would be written s0."
    ),
    ("D", 8): "two `fmla` a turn, so the turn does eight. One instruction does what .4s says.",
    ("E", 1): (
        "no v and no %ymm, but `ps`: SSE, 128 bits, is on every 64-bit processor of Intel and AMD. "
        "The `addss` at the end is the rest, a few numbers once."
    ),
    ("E", 8): "a register of 128 bits, %xmm, has room for four singles.",
}


@exercise("08.3", "Five listings", kind="diagnose", minutes=8, difficulty=3)
def listings(answer: Answer) -> str:
    expect_choices(answer, RIGHT_LANES, WRONG_LANES)
    return (
        "Look for the loop first, then at the arithmetic in it, then at the letters: ss or ps, "
        "and the register's. What is in front of the loop and behind it runs once."
    )
