"""Lesson 00's modules: machine.py describes computers, probe.py measures this one.

The texts in tests/machines/ are in the form that `tail -n +1 FILES` prints, so a machine can be
recorded with one command; what stands before the first file is a remark. Beside the right answers
stand plausible wrong programs: the same checks must reject each of them.
"""

import ctypes
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llambda import machine, probe
from llambda.errors import InputError, ResourceError
from llambda.machine import Cache

RECORDED = Path(__file__).parent / "machines"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux tools")
x86 = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="x86 code")


def files_in(recorded: str) -> dict[str, str]:
    """Path -> text of a recording."""
    parts = re.split(r"^==> /(\S+) <==\n", recorded, flags=re.M)[1:]
    return {path: text.rstrip("\n") + "\n" for path, text in zip(*[iter(parts)] * 2, strict=True)}


def lay_out(files: dict[str, str], root: Path) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def recorded(name: str) -> dict[str, str]:
    return files_in((RECORDED / f"{name}.txt").read_text())


# ---- recorded machines

# What a person finds who reads the texts. Caches: level, kind, KiB, CPUs sharing one, how many.
MACHINES = {
    "xeon-vm": {
        "model": "Intel(R) Xeon(R) Processor",
        "architecture": "x86_64",
        "logical_cores": 2,
        "physical_cores": 2,
        "usable_cores": 2,
        "default_threads": 2,
        "quota": None,
        "memory_bytes": 24684084 * KIB,
        "kernel_path": "avx512-vnni",
        "caches": [
            (1, "Data", 48, 1, 2),
            (1, "Instruction", 64, 1, 2),
            (2, "Unified", 2048, 1, 2),
            (3, "Unified", 480 * 1024, 2, 1),
        ],
    },
    "ryzen-desktop": {
        "model": "AMD Ryzen 5 5600X 6-Core Processor",
        "features": ("avx", "avx2", "f16c", "fma"),
        "logical_cores": 12,
        "physical_cores": 6,
        "usable_cores": 12,
        "default_threads": 6,
        "quota": None,
        "memory_bytes": 32776480 * KIB,
        "available_bytes": 28400112 * KIB,
        "kernel_path": "avx2",
        "caches": [
            (1, "Data", 32, 2, 6),
            (1, "Instruction", 32, 2, 6),
            (2, "Unified", 512, 2, 6),
            (3, "Unified", 32 * 1024, 12, 1),
        ],
    },
    "xeon-avx-only": {
        "features": ("avx",),
        "logical_cores": 8,
        "physical_cores": 4,
        "default_threads": 4,
        "kernel_path": "portable",
    },
    "arm-server": {
        "model": "ARM 0x41 0xd0c",
        "architecture": "aarch64",
        "features": ("asimd", "asimddp"),
        "logical_cores": 4,
        "physical_cores": 4,
        "default_threads": 4,
        "kernel_path": "portable",
    },
    "container-1.5-cores": {
        "logical_cores": 4,
        "physical_cores": 2,
        "usable_cores": 1,
        "default_threads": 1,
        "quota": 1.5,
        "memory_bytes": 2 * GIB,
        "available_bytes": 2 * GIB - 1610612736 + 805306368 + 264241152,
        "kernel_path": "avx2",
        "caches": [],
    },
    "nested-v2": {  # the parent is tighter than the job's own group, in cores and in memory
        "logical_cores": 8,
        "usable_cores": 3,
        "default_threads": 3,
        "quota": 3.0,
        "memory_bytes": GIB,
        "available_bytes": GIB - 805306368 + 67108864,
    },
    "cgroup-v1": {
        "logical_cores": 8,
        "physical_cores": 4,
        "usable_cores": 2,
        "default_threads": 2,
        "quota": 2.5,
        "memory_bytes": GIB,
        "available_bytes": GIB - 536870912 + 134217728 + 67108864,  # the total_ lines
        "kernel_path": "avx512-vnni",
    },
    "hybrid-groups": {
        "logical_cores": 16,
        "physical_cores": 5,  # pinned to a core with two threads and four with one
        "usable_cores": 4,
        "default_threads": 4,
        "quota": 4.0,
        "memory_bytes": 8 * GIB,
        "available_bytes": 7 * GIB,
        "kernel_path": "avx-vnni",
        "caches": [
            (1, "Data", 32, 1, 4),
            (1, "Data", 48, 2, 6),
            (1, "Instruction", 32, 2, 6),
            (1, "Instruction", 64, 1, 4),
            (2, "Unified", 1280, 2, 6),
            (2, "Unified", 2048, 4, 1),
            (3, "Unified", 20 * 1024, 16, 1),
        ],
    },
}


@pytest.mark.parametrize("name", MACHINES)
def test_recorded_machines(name: str, tmp_path: Path) -> None:
    found = machine.this_machine(lay_out(recorded(name), tmp_path))
    expected = dict(MACHINES[name])
    if "caches" in expected:
        caches = expected.pop("caches")
        assert found.caches == tuple(Cache(a, b, kib * KIB, d, e) for a, b, kib, d, e in caches)
    assert {key: getattr(found, key) for key in expected} == expected
    assert found.system == "Linux"


def test_every_recording_is_checked() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == MACHINES.keys()


def test_a_machine_is_json() -> None:
    here = machine.this_machine()
    back = json.loads(json.dumps(here.as_dict()))
    assert back["caches"] == [vars(each) for each in here.caches]
    assert back["usable_cores"] == here.usable_cores and back["kernel_path"] == here.kernel_path


# ---- quota and affinity

CORES = [  # text of cpu.max, affinity, cores
    ("200000 100000", 8, 2),
    ("max 100000", 8, 8),
    ("max 100000", {0, 3}, 2),
    ("150000 100000", 8, 1),
    ("765000 100000", 8, 7),
    ("50000 100000", 8, 1),
    ("1000 1000000", 8, 1),
    (None, 8, 8),
    ("1600000 100000", 8, 8),
    ("200000 100000", {5}, 1),
    ("75000 25000", 8, 3),
    ("200000 100000\n", 8, 2),
    ("-1 100000", 8, 8),  # cgroup v1's way to say that there is no cap
    *((bad, 8, 8) for bad in ("", "max", "100000", "1e5 100000", "1 0", "0 1", "a b", "1 2 3")),
]


def wrong_round_up(text: str | None, affinity: int | set[int]) -> int:
    cores = affinity if isinstance(affinity, int) else len(affinity)
    quota = machine.quota(text)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def wrong_to_nearest(text: str | None, affinity: int | set[int]) -> int:
    cores = affinity if isinstance(affinity, int) else len(affinity)
    quota = machine.quota(text)
    return cores if quota is None else max(1, min(cores, round(quota)))


def wrong_cpu_count(text: str | None, affinity: int | set[int]) -> int:
    return os.cpu_count() or 1


def wrong_affinity_only(text: str | None, affinity: int | set[int]) -> int:
    return affinity if isinstance(affinity, int) else len(affinity)


def wrong_max_crashes(text: str | None, affinity: int | set[int]) -> int:
    cores = affinity if isinstance(affinity, int) else len(affinity)
    quota, period = (text or "800000 100000").split()
    return max(1, min(cores, int(quota) // int(period)))


def wrong_zero(text: str | None, affinity: int | set[int]) -> int:
    cores = affinity if isinstance(affinity, int) else len(affinity)
    quota = machine.quota(text)
    return cores if quota is None else min(cores, math.floor(quota))


def wrong_quota_alone(text: str | None, affinity: int | set[int]) -> int:
    quota = machine.quota(text)
    return machine.usable_cores(None, affinity) if quota is None else max(1, math.floor(quota))


def wrong_fixed_period(text: str | None, affinity: int | set[int]) -> int:
    cores = affinity if isinstance(affinity, int) else len(affinity)
    quota = machine.number((text or "").split(" ")[0])
    return cores if quota is None else max(1, min(cores, quota // 100000))


WRONG_CORES = [
    *(wrong_round_up, wrong_to_nearest, wrong_cpu_count, wrong_affinity_only),
    *(wrong_max_crashes, wrong_zero, wrong_quota_alone, wrong_fixed_period),
]


def wrong_answers(usable_cores: Callable[[str | None, int | set[int]], int]) -> list[object]:
    wrong: list[object] = []
    for text, affinity, cores in CORES:
        try:
            answer: object = usable_cores(text, affinity)
        except Exception as error:
            answer = error
        if answer != cores:
            wrong.append((text, affinity, answer))
    return wrong


def test_usable_cores() -> None:
    assert wrong_answers(machine.usable_cores) == []


@pytest.mark.parametrize("wrong", WRONG_CORES)
def test_usable_cores_check_rejects(wrong: Callable[[str | None, int | set[int]], int]) -> None:
    assert wrong_answers(wrong)


@settings(deadline=None)
@given(st.integers(1, 10**7), st.integers(1, 10**6), st.sets(st.integers(0, 255), min_size=1))
def test_usable_cores_is_the_floor_within_bounds(
    quota: int, period: int, affinity: set[int]
) -> None:
    cores = machine.usable_cores(f"{quota} {period}", affinity)
    assert 1 <= cores <= len(affinity)
    assert cores * period <= quota or cores == 1  # no more than the quota pays for
    assert (cores + 1) * period > quota or cores == len(affinity)  # and no fewer
    assert cores == machine.usable_cores(f"{quota} {period}", len(affinity))


@settings(deadline=None)
@given(st.none() | st.text(max_size=30), st.integers(0, 64))
def test_usable_cores_of_any_text(text: str | None, affinity: int) -> None:
    assert 1 <= machine.usable_cores(text, affinity) <= max(1, affinity)


@settings(deadline=None)
@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_list_reads_what_the_kernel_writes(cpus: set[int]) -> None:
    ordered = sorted(cpus)
    starts = [cpu for cpu in ordered if cpu - 1 not in cpus]
    ends = [cpu for cpu in ordered if cpu + 1 not in cpus]
    parts = [f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    assert machine.cpu_list(",".join(parts) + "\n") == cpus


@pytest.mark.parametrize("text", [None, "", "\n", "a", "1-", "-1", "1,,2", "0-1-2", "0-99999999"])
def test_cpu_list_of_nonsense_is_empty(text: str | None) -> None:
    assert machine.cpu_list(text) == frozenset()


SIBLINGS = [  # thread_siblings_list of each CPU, affinity, cores
    ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {0, 1, 2, 3}, 2),
    ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, {0, 1}, 1),
    ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, {1, 2}, 2),
    ({0: "0-3", 1: "0-3", 2: "0-3", 3: "0-3"}, {0, 1, 2, 3}, 1),  # four threads in one core
    ({0: "0-1", 1: "0-1", 2: "2"}, {0, 1, 2}, 2),  # a large core and a small one
    ({0: "0", 1: "1"}, {0, 1}, 2),
    ({}, {0, 1, 2}, 3),
    ({0: "rubbish", 1: ""}, {0, 1}, 2),
    ({}, set(), 1),
]


def test_physical_cores() -> None:
    for siblings, affinity, cores in SIBLINGS:
        assert machine.physical_cores(siblings, affinity) == cores


@pytest.mark.parametrize(
    "wrong",
    [
        lambda siblings, affinity: len(affinity),  # hardware threads
        lambda siblings, affinity: max(1, len(affinity) // 2),  # two everywhere
        lambda siblings, affinity: len(set(siblings.values())),  # the whole machine's
    ],
)
def test_physical_cores_check_rejects(wrong: Callable[[dict[int, str], set[int]], int]) -> None:
    assert any(wrong(siblings, affinity) != cores for siblings, affinity, cores in SIBLINGS)


# ---- control groups


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.none() | st.tuples(st.integers(1, 10**6), st.integers(1, 10**5)), max_size=5),
    st.booleans(),
)
def test_the_tightest_group_on_the_path_counts(
    quotas: list[tuple[int, int] | None], version_2: bool
) -> None:
    """quotas[k] is set on the k-th group from the mount point down; the last is the process's."""
    path = "".join(f"/g{k}" for k in range(len(quotas)))
    kind, names, line = ("cgroup2", "nsdelegate", "0:") if version_2 else ("cgroup", "cpu", "3:cpu")
    files = {
        "proc/self/cgroup": f"{line}:{path or '/'}\n",
        "proc/self/mountinfo": f"31 23 0:28 / /mnt/my\\040groups rw - {kind} {kind} rw,{names}\n",
        "mnt/my groups/elsewhere/cpu.max": "1 100000\n",
    }
    for k, quota in enumerate(quotas):
        folder = "mnt/my groups" + "".join(f"/g{j}" for j in range(k + 1))
        if version_2:
            files[f"{folder}/cpu.max"] = f"{quota[0]} {quota[1]}\n" if quota else "max 100000\n"
        else:
            files[f"{folder}/cpu.cfs_quota_us"] = f"{quota[0] if quota else -1}\n"
            files[f"{folder}/cpu.cfs_period_us"] = f"{quota[1] if quota else 100000}\n"
    with tempfile.TemporaryDirectory() as folder:
        found = machine.cpu_quota(lay_out(files, Path(folder)))
    assert found == min((Fraction(*quota) for quota in quotas if quota), default=None)


def wrong_own_group_only(files: dict[str, str], root: Path) -> Fraction | None:
    path = files["proc/self/cgroup"].rstrip("\n").rpartition(":")[2]
    return machine.quota(machine.read(root / f"sys/fs/cgroup{path}/cpu.max"))


def wrong_mount_point_only(files: dict[str, str], root: Path) -> Fraction | None:
    return machine.quota(machine.read(root / "sys/fs/cgroup/cpu.max"))


@pytest.mark.parametrize("wrong", [wrong_own_group_only, wrong_mount_point_only])
def test_the_nested_recording_tells_wrong_programs(
    wrong: Callable[[dict[str, str], Path], Fraction | None], tmp_path: Path
) -> None:
    files = recorded("nested-v2")
    assert wrong(files, lay_out(files, tmp_path)) != 3 == machine.cpu_quota(tmp_path)


@pytest.mark.parametrize(
    ("group", "mounted_group", "found"),
    [
        ("/a/b", "/", "100000 100000"),  # the tree's root is mounted
        ("/a/b", "/a/b", "400000 100000"),  # the process's own group is
        ("/a/b", "/a", "300000 100000"),  # its parent is: the process is in `b` below
        ("/a/bc", "/a/b", "400000 100000"),  # a name that only begins alike is not inside
        ("/../elsewhere", "/", "400000 100000"),  # outside this namespace
        ("/elsewhere", "/a", "400000 100000"),
    ],
)
def test_where_the_process_group_is_mounted(
    group: str, mounted_group: str, found: str, tmp_path: Path
) -> None:
    files = {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": f"31 23 0:28 {mounted_group} /cg rw,x shared:1 master:2 - "
        "cgroup2 cgroup2 rw\n",
        "cg/cpu.max": "400000 100000\n",
        "cg/b/cpu.max": "300000 100000\n",
        "cg/a/b/cpu.max": "100000 100000\n",
        "elsewhere/cpu.max": "100 100000\n",
    }
    assert machine.cpu_quota(lay_out(files, tmp_path)) == machine.quota(found)


def test_both_versions_at_once(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/x\n0::/y\n",
        "proc/self/mountinfo": "1 2 0:1 / /v2 rw - cgroup2 cgroup2 rw\n"
        "3 2 0:3 / /v1 rw - cgroup cgroup rw,cpu,cpuacct\n"
        "4 2 0:4 / /set rw - cgroup cgroup rw,cpuset\n",
        "v2/y/cpu.max": "500000 100000\n",
        "v1/x/cpu.cfs_quota_us": "350000\n",
        "v1/x/cpu.cfs_period_us": "100000\n",
        "set/x/cpu.cfs_quota_us": "100000\n",  # not a tree with the cpu controller
        "set/x/cpu.cfs_period_us": "100000\n",
    }
    assert machine.cpu_quota(lay_out(files, tmp_path)) == Fraction(7, 2)


@linux
def test_pseudo_files_are_read_though_they_claim_to_be_empty() -> None:
    status = Path("/proc/self/status")
    with open(status) as file:
        trusting_the_size = file.read(status.stat().st_size)
    assert trusting_the_size == ""
    assert "Cpus_allowed_list" in (machine.read(status) or "")


# ---- features and the kernel path


def test_features_are_those_of_all_processors() -> None:
    big, little = "flags\t\t: fma avx avx2 avx512f\n", "flags\t\t: fma avx avx2\n"
    text = f"processor\t: 0\n{big}vmx flags\t: ept\n\nprocessor\t: 1\n{little}"
    assert machine.cpu_features(text) == {"fma", "avx", "avx2"}
    assert machine.cpu_features("") == machine.cpu_features("processor : 0\n") == frozenset()
    assert machine.cpu_features("Features : fp asimd \n") == {"fp", "asimd"}


AVX2 = {"avx", "avx2", "fma", "f16c"}
AVX512 = {"avx512f", "avx512bw", "avx512vl"}
PATHS = [
    (AVX2, "x86_64", "avx2"),
    (AVX2, "AMD64", "avx2"),  # what Windows calls it
    ({"avx"}, "x86_64", "portable"),
    ({"avx", "f16c"}, "x86_64", "portable"),
    (AVX2 - {"fma"}, "x86_64", "portable"),
    (AVX2 - {"f16c"}, "x86_64", "portable"),
    ({"avx", "fma", "f16c", "fma4"}, "x86_64", "portable"),
    (AVX2 | AVX512, "x86_64", "avx2"),
    (AVX2 | AVX512 | {"avx512_vnni"}, "x86_64", "avx512-vnni"),
    (AVX2 | AVX512 | {"avx512vnni"}, "x86_64", "avx512-vnni"),
    (AVX2 | {"avx_vnni"}, "x86_64", "avx-vnni"),
    (AVX2 | {"avxvnni"}, "x86_64", "avx-vnni"),
    (AVX2 | AVX512 | {"avx_vnni", "avx512_vnni"}, "x86_64", "avx512-vnni"),
    ({"asimd", "asimddp", "sve"}, "aarch64", "portable"),
    (AVX2, "arm64", "portable"),
    (set(), "riscv64", "portable"),
    (set(), "", "portable"),
]


def wrong_avx_is_enough(features: set[str], architecture: str) -> str:
    return "avx2" if "avx" in features else machine.kernel_path(features, architecture)


def wrong_substring(features: set[str], architecture: str) -> str:
    text = " ".join(sorted(features))
    return "avx2" if "avx" in text and "fma" in text and "f16c" in text else "portable"


def wrong_fma_forgotten(features: set[str], architecture: str) -> str:
    return machine.kernel_path(features | {"fma"}, architecture)


def wrong_arm_refused(features: set[str], architecture: str) -> str:
    if architecture not in ("x86_64", "AMD64"):
        raise ValueError(architecture)
    return machine.kernel_path(features, architecture)


def wrong_vnni_alone(features: set[str], architecture: str) -> str:
    path = machine.kernel_path(features, architecture)
    return "avx512-vnni" if path == "avx2" and "avx512f" in features else path


def wrong_paths(kernel_path: Callable[[set[str], str], str]) -> list[object]:
    wrong: list[object] = []
    for features, architecture, path in PATHS:
        try:
            answer: object = kernel_path(features, architecture)
        except Exception as error:
            answer = error
        if answer != path:
            wrong.append((sorted(features), architecture, answer))
    return wrong


def test_kernel_path() -> None:
    assert wrong_paths(machine.kernel_path) == []


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_avx_is_enough,
        wrong_substring,
        wrong_fma_forgotten,
        wrong_arm_refused,
        wrong_vnni_alone,
    ],
)
def test_kernel_path_check_rejects(wrong: Callable[[set[str], str], str]) -> None:
    assert wrong_paths(wrong)


# ---- nothing raises

PLACES = [
    *("proc/cpuinfo", "proc/meminfo", "proc/self/status", "proc/self/cgroup"),
    *("proc/self/mountinfo", "proc/sys/kernel/arch", "sys/devices/system/cpu/online"),
    *("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "cg/cpu.max", "cg/memory.max"),
    *("sys/devices/system/cpu/cpu0/cache/index0/level", "cg/memory.current", "cg/memory.stat"),
    *("sys/devices/system/cpu/cpu0/cache/index0/size", "cg/cpu.cfs_quota_us"),
]
WORDS = st.sampled_from(
    [
        *("flags : avx2", "MemTotal: 12 kB", "MemAvailable: -3 kB", "Cpus_allowed_list: 0-9", ":"),
        *("0::/", "0::/..", "::", "31 23 0:28 / /cg rw - cgroup2 cgroup2 rw", "max", "-1", "0"),
        *(
            "99999999999999999999999",
            "0-",
            "1 0",
            "\\777 \\040",
            "4096K",
            "٣",
            "\0",
            "inactive_file 7",
        ),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(PLACES),
        st.lists(WORDS, max_size=3).map(lambda words: "\n".join(words).encode())
        | st.binary(max_size=40),
    )
)
def test_no_text_makes_it_raise(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        found = machine.this_machine(root)
        assert machine.default_threads(root) == found.default_threads
    assert 1 <= found.default_threads <= found.usable_cores
    assert found.available_bytes >= 0
    json.dumps(found.as_dict())


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    for path in PLACES:
        (tmp_path / path).mkdir(parents=True)
    assert machine.this_machine(tmp_path).default_threads >= 1


def test_without_proc_the_system_is_asked(tmp_path: Path) -> None:
    found = machine.this_machine(tmp_path)
    assert found.logical_cores == os.cpu_count()
    assert found.memory_bytes == psutil.virtual_memory().total
    assert found.architecture == platform.machine()
    assert found.caches == () and found.quota is None


def test_even_when_the_system_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object, **__: object) -> None:
        raise OSError("no /proc")

    for name in ("virtual_memory", "cpu_count", "Process"):
        monkeypatch.setattr(psutil, name, silent)
    monkeypatch.setattr(llvm, "get_host_cpu_features", silent)
    found = machine.this_machine(tmp_path)
    assert found.features == () and found.kernel_path == "portable"
    assert 1 <= found.default_threads == found.physical_cores == os.cpu_count()
    assert found.available_bytes > 1 << 60  # nobody knows: nothing is refused


# ---- this host, against other programs


def output_of(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("OMP_")}
    environment["LC_ALL"] = "C"
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


@linux
def test_affinity_is_what_the_system_says() -> None:
    assert machine.allowed_cpus() == os.sched_getaffinity(0)
    if machine.cpu_quota() is None:  # newer versions of nproc look at the quota
        assert len(machine.allowed_cpus()) == int(output_of("nproc"))


@linux
def test_affinity_follows_taskset() -> None:
    cpu = max(os.sched_getaffinity(0))
    program = "from llambda import machine as m; print(*m.allowed_cpus(), m.default_threads())"
    assert output_of("taskset", "-c", str(cpu), sys.executable, "-c", program) == f"{cpu} 1\n"


@linux
def test_physical_cores_are_psutils() -> None:
    if len(machine.allowed_cpus()) < (os.cpu_count() or 1):
        pytest.skip("this process may not use the whole machine")
    assert machine.allowed_cores() == psutil.cpu_count(logical=False)


@linux
def test_lscpu_agrees() -> None:
    fields, entries = {}, json.loads(output_of("lscpu", "-J"))["lscpu"]
    while entries:  # newer versions nest them
        entry = entries.pop()
        fields[entry["field"].rstrip(":")] = entry["data"]
        entries += entry.get("children", [])
    here = machine.this_machine()
    assert here.architecture == fields["Architecture"]
    assert here.logical_cores == len(machine.cpu_list(fields["On-line CPU(s) list"]))
    if "Flags" in fields and "model name" in Path("/proc/cpuinfo").read_text():
        assert here.model == fields["Model name"]
        assert set(here.features) == set(fields["Flags"].split()) & {*machine.X86, *machine.ARM}


@linux
def test_lscpu_agrees_on_caches() -> None:
    try:
        listed = json.loads(output_of("lscpu", "-C", "-J", "-B"))["caches"]
    except subprocess.CalledProcessError:
        pytest.skip("this lscpu lists no caches")
    theirs = {(each["level"], each["type"], int(each["one-size"])) for each in listed}
    totals = {(each["level"], each["type"]): int(each["all-size"]) for each in listed}
    ours = machine.caches()
    assert {(each.level, each.kind, each.nbytes) for each in ours} == theirs
    for each in ours:
        same = [one for one in ours if (one.level, one.kind) == (each.level, each.kind)]
        assert sum(one.nbytes * one.instances for one in same) == totals[each.level, each.kind]


@x86
@linux
def test_llvm_sees_the_features_that_the_kernel_lists() -> None:
    listed = machine.cpu_features(Path("/proc/cpuinfo").read_text())
    assert machine.llvm_features() >= listed & set(machine.X86)  # an old kernel knows fewer names


def test_memory_is_psutils_or_less() -> None:
    total, available = machine.memory()
    assert 0 < available <= total <= psutil.virtual_memory().total
    assert 0 < machine.available_memory() <= total


# ---- probe: the kernels compute what they claim


def aligned(nbytes: int, seed: int = 0) -> np.ndarray:
    room = np.random.default_rng(seed).integers(0, 256, nbytes + 64, dtype=np.uint8)
    first = -room.ctypes.data % 64
    return room[first : first + nbytes]


def numpy_sum(part: np.ndarray) -> int:
    return int(part.view(np.uint32).sum(dtype=np.uint64)) % 2**32


READ_ARGUMENTS = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def read_with(ir: str, part: np.ndarray, streams: int, target: llvm.TargetMachine) -> int:
    address = probe.compiled(ir, "read", target)
    kernel = ctypes.CFUNCTYPE(ctypes.c_uint32, *READ_ARGUMENTS)(address)
    turns = part.nbytes // (probe.STEP * streams)
    return kernel(part.ctypes.data, turns * probe.STEP, turns, turns)


def fma_with(ir: str, a: float, b: float, turns: int, target: llvm.TargetMachine) -> float:
    kind = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, ctypes.c_float, ctypes.c_int64)
    return kind(probe.compiled(ir, "fma", target))(a, b, turns)


def fma_by_hand(a: float, b: float, turns: int, lanes: int) -> float:
    """x_n = a^n x_0 + b (1 + a + ... + a^(n-1)), for x_0 = 0, 1, ..., in every lane."""
    power, series = a**turns, sum(a**k for k in range(turns))
    return lanes * sum(power * k + b * series for k in range(probe.ACCUMULATORS))


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("passes", [1, 3])
def test_read_kernel_reads_everything_once_a_pass(lanes: int, streams: int, passes: int) -> None:
    part = aligned(streams * probe.STEP * 37, seed=lanes)
    found = probe.read(part, passes=passes, streams=streams, lanes=lanes)
    assert found == numpy_sum(part) * passes % 2**32


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(("a", "b", "turns"), [(1.0, 1.0, 1000), (0.5, 1.0, 7), (2.0, 3.0, 5)])
def test_fma_kernel_against_the_closed_form(lanes: int, a: float, b: float, turns: int) -> None:
    assert probe.fma_kernel(lanes)(a, b, turns) == fma_by_hand(a, b, turns, lanes)  # all exact


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_flops_are_two_for_each_lane_and_turn(lanes: int) -> None:
    """With a = b = 1 every multiply-add adds 1, so the sum counts them."""
    start = lanes * sum(range(probe.ACCUMULATORS))
    counted = probe.fma_kernel(lanes)(1.0, 1.0, 500) - start
    assert probe.fma_flops(500, lanes) == 2 * counted
    assert counted != probe.fma_flops(500, lanes)  # one operation each would be half of it
    assert probe.fma_flops(500, 1) != 2 * counted  # so would lanes forgotten be wrong


@x86
@pytest.mark.parametrize("lanes", [4, 8])
def test_kernels_on_a_generic_cpu(lanes: int) -> None:
    generic = probe.target("x86-64", "")
    part = aligned(4 * probe.STEP * 11)
    assert read_with(probe.read_ir(lanes, 4), part, 4, generic) == numpy_sum(part)
    assert fma_with(probe.fma_ir(lanes), 0.5, 1.0, 7, generic) == fma_by_hand(0.5, 1, 7, lanes)
    code = generic.emit_assembly(llvm.parse_assembly(probe.fma_ir(lanes)))
    assert "mulps" in code and "vfmadd" not in code and "call" not in code


@x86
def test_the_widest_kernels_use_the_instructions_they_are_for() -> None:
    v4 = probe.target("x86-64-v4", "")
    code = v4.emit_assembly(llvm.parse_assembly(probe.fma_ir(16)))
    assert len(re.findall(r"vfmadd\d+ps\s.*zmm", code)) == probe.ACCUMULATORS
    v3 = probe.target("x86-64-v3", "")
    code = v3.emit_assembly(llvm.parse_assembly(probe.fma_ir(8)))
    assert len(re.findall(r"vfmadd\d+ps\s.*ymm", code)) == probe.ACCUMULATORS
    assert "rsp" not in code  # all accumulators fit in the 16 registers


def test_kernels_compile_for_arm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        arm = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no ARM")
    target = arm.create_target_machine(cpu="neoverse-n1", opt=3)
    code = target.emit_assembly(llvm.parse_assembly(probe.fma_ir(4)))
    assert len(re.findall(r"fmla\s+v\d+\.4s", code)) >= probe.ACCUMULATORS
    code = target.emit_assembly(llvm.parse_assembly(probe.read_ir(4, 4)))
    assert "prfm" in code and re.search(r"add\s+v\d+\.4s", code)


READ_FAULTS = {
    "all streams read the first part": ("i64 %apart\n", "i64 0\n"),
    "the last vector is left out": ("%t3, %s4.3", "%t3, %s0.3"),
    "every second step": ("%done1 = add i64 %done, 1", "%done1 = add i64 %done, 2"),
    "the wrong end": ("i1 %at_end, i64 0", "i1 %at_end, i64 1"),
}


@pytest.mark.parametrize("fault", READ_FAULTS)
def test_read_check_rejects(fault: str) -> None:
    right, wrong = READ_FAULTS[fault]
    ir = probe.read_ir(16, 4)
    assert right in ir
    part = aligned(4 * probe.STEP * 9)
    turns = part.nbytes // (probe.STEP * 4)
    address = probe.compiled(ir.replace(right, wrong), "read", probe.target())
    kernel = ctypes.CFUNCTYPE(ctypes.c_uint32, *READ_ARGUMENTS)(address)
    found = kernel(part.ctypes.data, turns * probe.STEP, turns, 3 * turns)
    assert found != 3 * numpy_sum(part) % 2**32


FMA_FAULTS = {
    "an accumulator is not summed": ("%t11, %y11", "%t11, %x11"),
    "one turn too few": ("icmp ult i64 %i1, %turns", "icmp ult i64 %i, %turns"),
    "two accumulators in a chain": ("(<8 x float> %x5,", "(<8 x float> %y4,"),
    "a product without a sum": ("%x7, <8 x float> %as, <8 x float> %bs", "%x7, {as}, {zero}"),
}


@pytest.mark.parametrize("fault", FMA_FAULTS)
def test_fma_check_rejects(fault: str) -> None:
    right, wrong = FMA_FAULTS[fault]
    wrong = wrong.format(**{"as": "<8 x float> %as", "zero": "<8 x float> zeroinitializer"})
    ir = probe.fma_ir(8)
    assert right in ir
    found = fma_with(ir.replace(right, wrong), 0.5, 1.0, 7, probe.target())
    assert found != fma_by_hand(0.5, 1.0, 7, 8)


# ---- probe: measuring


def test_calls_in_step_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=60)
    assert probe.in_step([lambda: meeting.wait()] * 3) > 0  # one after the other never meets


def test_other_threads_go_on_while_a_kernel_runs() -> None:
    kernel, counted = probe.fma_kernel(4), 0
    worker = threading.Thread(target=kernel, args=(0.5, 1.0, 100_000_000))
    worker.start()
    while worker.is_alive():
        counted += 1
    assert counted > 100  # a call that kept the GIL would let this loop turn only before and after


def test_best_rate_counts_rounds_and_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = iter([0.01, 0.02, 0.04, 0.05, 0.02, 0.08])  # rounds 1, 2, 4; then three tries of 4
    asked: list[int] = []

    def pretend(calls: list[Callable[[], object]]) -> float:
        for call in calls:
            call()
        return next(spans)

    monkeypatch.setattr(probe, "in_step", pretend)
    assert probe.best_rate([asked.append], repeats=3, seconds=0.03) == 4 / 0.02
    assert asked == [1, 2, 4, 4, 4, 4]


def test_figures_are_sensible() -> None:
    quick = {"repeats": 1, "seconds": 0.002}
    bandwidth = probe.read_bandwidth(2, 4 * MIB, **quick)
    assert 0 < bandwidth < 1e14
    for lanes in (None, 4):
        assert 0 < probe.fma_peak(1, lanes, **quick) < 1e12  # a core: 64 flops at 8 GHz is half
    assert 0 < probe.fma_peak(2, **quick) < 2e12


def test_curve_has_powers_of_two_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "read_bandwidth", lambda threads, nbytes: float(threads))
    assert probe.bandwidth_curve(1) == {1: 1.0}
    assert list(probe.bandwidth_curve(2)) == [1, 2]
    assert list(probe.bandwidth_curve(6)) == [1, 2, 4, 6]
    assert list(probe.bandwidth_curve(8)) == [1, 2, 4, 8]


def test_what_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="0 threads"):
        probe.read_bandwidth(0)
    with pytest.raises(InputError, match="1,024"):
        probe.read_bandwidth(4, 4000)
    with pytest.raises(InputError, match="-1 threads"):
        probe.fma_peak(-1)
    part = aligned(8 * probe.STEP)
    for bad in (part[64:], part[1 : 1 + 4 * probe.STEP], part[::2], part[:0]):
        with pytest.raises(InputError, match="cannot read"):
            probe.read(bad, streams=4)
    with pytest.raises(InputError, match="0 times"):
        probe.read(part, passes=0)
    with pytest.raises(ResourceError, match="memory"):
        probe.read_bandwidth(1, 1 << 60)


def test_ceiling() -> None:
    assert probe.ceiling_tokens_per_s(25e9, 96.4e6) == pytest.approx(259.3, abs=0.1)
    assert probe.ceiling_tokens_per_s(25e9 / 8, 96.4e6) < 33  # bits taken for bytes
