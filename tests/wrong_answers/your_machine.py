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


def is_not_rounded(cpu_max_text, affinity):
    quota, period = cpu_max_text.split()
    if quota == "max":
        return len(affinity)
    return max(1, min(int(quota) / int(period), len(affinity)))


def knows_one_period(cpu_max_text, affinity):
    quota = cpu_max_text.split()[0]
    return len(affinity) if quota == "max" else max(1, min(int(quota) // 100_000, len(affinity)))


def counts_the_computer_at_max(cpu_max_text, affinity):
    quota, period = cpu_max_text.split()
    if quota == "max":
        return os.cpu_count()
    return max(1, min(int(quota) // int(period), len(affinity)))


def forgets_to_return(cpu_max_text, affinity):
    print(len(affinity))


def unpacks_letters(cpu_max_text, affinity):
    quota, period = cpu_max_text
    return max(1, min(int(quota) // int(period), len(affinity)))


RIGHT_PATHS = {"rack server": "portable", "laptop": "avx2", "cloud instance": "portable"}

WRONG = {
    "00.1": [
        ("bits for bytes", 8 * 25e9 / 96.4e6, "bits taken for bytes"),
        ("the tied head counted twice", 25e9 / (96.4e6 + 30.1e6), "counted twice"),
        ("the FLOP peak used", 120e9 / (2 * 134.5e6), "what arithmetic alone would allow"),
        ("the FLOP peak, one operation a weight", 892, "one operation per weight"),
        ("weights for bytes", 185.9, "a weight is not a byte"),
        ("weights of four bytes", 46.5, "a weight is not four bytes"),
        ("the table not read", 25e9 / (96.4e6 - 30.1e6), "the table is left out"),
        ("both times added", 164, "At best they overlap"),
    ],
    "00.2": [
        ("cpu_count", counts_the_computer, "the same number for every machine"),
        ("1.5 -> 2, up", rounds_up, "rounded up"),
        ("1.5 -> 2, nearest", rounds_to_the_nearest, "rounded to 2"),
        ("max crashes", knows_no_max, "the word max"),
        ("0", may_be_nothing, "half a core becomes 0"),
        ("no affinity", knows_no_affinity, "the affinity is forgotten"),
        ("no quota", knows_no_quota, "the quota is forgotten"),
        ("1.5 -> 1.5", is_not_rounded, "whole numbers"),
        ("period", knows_one_period, "the period is taken for"),
        ("cpu_count at max", counts_the_computer_at_max, "Where there is no quota"),
        ("print for return", forgets_to_return, "returns nothing"),
        ("text not split", unpacks_letters, "too many values to unpack"),
    ],
    "00.3": [
        ("avx for avx2", RIGHT_PATHS | {"rack server": "avx2"}, "avx, which is not avx2"),
        ("ARM refused", RIGHT_PATHS | {"cloud instance": "refuse"}, "ARM is not refused"),
        ("ARM has avx2", RIGHT_PATHS | {"cloud instance": "avx2"}, "this is an ARM processor"),
        ("order of flags", RIGHT_PATHS | {"laptop": "portable"}, "in another order"),
        ("another word", RIGHT_PATHS | {"cloud instance": "asimd"}, "none of"),
    ],
}
