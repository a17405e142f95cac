"""What learners answer in lesson 00, and a phrase that the explanation must hold."""

import os


def counts_the_computer(cpu_max_text, affinity):
    return os.cpu_count()


def rounds_up(cpu_max_text, affinity):
    quota, period = cpu_max_text.split()
    cores = len(affinity) if quota == "max" else -(-int(quota) // int(period))
    return min(cores, len(affinity))


def rounds_to_the_nearest(cpu_max_text, affinity):
    quota, period = cpu_max_text.split()
    if quota == "max":
        return len(affinity)
    return min(max(round(int(quota) / int(period)), 1), len(affinity))


def knows_no_max(cpu_max_text, affinity):
    quota, period = map(int, cpu_max_text.split())
    return min(max(quota // period, 1), len(affinity))


def may_be_nothing(cpu_max_text, affinity):
    quota, period = cpu_max_text.split()
    return len(affinity) if quota == "max" else min(int(quota) // int(period), len(affinity))


def knows_no_affinity(cpu_max_text, affinity):
    quota, period = cpu_max_text.split()
    return len(affinity) if quota == "max" else max(1, int(quota) // int(period))


def knows_no_quota(cpu_max_text, affinity):
    return len(affinity)


RIGHT_PATHS = {"rack server": "portable", "laptop": "avx2", "cloud instance": "portable"}

WRONG = {
    "00.1": [
        ("bits for bytes", 8 * 25e9 / 96.4e6, "bits taken for bytes"),
        ("the tied head counted twice", 25e9 / (96.4e6 + 30.1e6), "counted twice"),
        ("the FLOP peak used", 120e9 / (2 * 134.5e6), "what arithmetic alone would allow"),
        ("the FLOP peak, one operation a weight", 892, "one operation per weight"),
        ("weights for bytes", 185.9, "a weight is not a byte"),
    ],
    "00.2": [
        ("cpu_count", counts_the_computer, "os.cpu_count()"),
        ("1.5 -> 2, up", rounds_up, "rounded up"),
        ("1.5 -> 2, nearest", rounds_to_the_nearest, "rounded to 2"),
        ("max crashes", knows_no_max, "the word max"),
        ("0", may_be_nothing, "half a core becomes 0"),
        ("no affinity", knows_no_affinity, "the affinity is forgotten"),
        ("no quota", knows_no_quota, "the quota is forgotten"),
    ],
    "00.3": [
        ("avx for avx2", RIGHT_PATHS | {"rack server": "avx2"}, "avx, which is not avx2"),
        ("ARM refused", RIGHT_PATHS | {"cloud instance": "refuse"}, "ARM is not refused"),
        ("ARM has avx2", RIGHT_PATHS | {"cloud instance": "avx2"}, "this is an ARM processor"),
        ("order of flags", RIGHT_PATHS | {"laptop": "portable"}, "in another order"),
    ],
}
