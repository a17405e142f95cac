"""Vector registers as Numba values. Lesson 08.

An ordinary compiled function can hold eight or sixteen numbers in one variable, and every function
here becomes about one instruction that works on all of them:

    @njit
    def dot8(weights, x, n):
        acc = splat_f32x8(0)
        for i in range(0, n, 8):
            acc = fma(load_f32x8(weights, i), load_f32x8(x, i), acc)
        return total(acc)

`registers` says what a vector is and how such functions are made; `memory`, `arithmetic`,
`integers` and `cpu` are the functions; `target` knows which instructions the compiler may use, and
`listing` shows those that it used. Where an instruction is missing, plain vector arithmetic with
the same result takes its place.
"""
