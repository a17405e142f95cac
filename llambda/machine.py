"""What this computer can do: CPU features, cores and memory that may be used, caches.

Linux describes itself in text files under /proc and /sys. The functions here take such a text,
or the folder that stands for `/` (`root`), so that a machine which is not at hand can be described
from a recording of its files. What the files do not tell (macOS, Windows) is asked of the running
system. Nothing here raises: what is missing, unreadable or malformed counts as absent.
"""

import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import psutil
from llvmlite import binding as llvm

Answer = TypeVar("Answer")
ROOT = Path("/")
CPUS = "sys/devices/system/cpu"
X86 = ("avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni")
ARM = ("asimd", "asimddp", "i8mm", "sve")


def read(path: Path) -> str | None:
    """The text of a file, None if it cannot be read. Its size is not asked: /proc would say 0."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return None


def fields(text: str | None, name: str) -> list[str]:
    """The values of all lines `name : value` of a text, in order."""
    return re.findall(rf"^{name}[ \t]*:[ \t]*(.*?)[ \t]*$", text or "", re.M)


def number(text: str | None) -> int | None:
    """A decimal number of up to 20 digits (64 bits), else None, as for "max", "-1" and ""."""
    return int(text) if text and re.fullmatch("[0-9]{1,20}", text) else None


def cpu_list(text: str | None) -> frozenset[int]:
    """The CPU numbers in a list such as "0,2-3". Source: Linux, admin-guide/cputopology.rst."""
    if not text or not re.fullmatch("([0-9]{1,5}(-[0-9]{1,5})?,)+", text.strip() + ","):
        return frozenset()
    ends = [part.split("-") for part in text.split(",")]
    return frozenset(cpu for end in ends for cpu in range(int(end[0]), int(end[-1]) + 1))


def asked(question: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What the running system answers, `otherwise` where it cannot tell."""
    try:
        return question()
    except (AttributeError, OSError, RuntimeError, psutil.Error):
        return otherwise


def cpu_features(cpuinfo_text: str) -> frozenset[str]:
    """The instruction set extensions that all processors share: `flags` on x86, `Features` on ARM.

    Big and little cores may differ, and the system may move a thread to any of them.
    """
    lists = [frozenset(line.split()) for line in fields(cpuinfo_text, "(?:flags|Features)")]
    return frozenset.intersection(*lists) if lists else frozenset()


def llvm_features() -> frozenset[str]:
    """Those of x86 that matter here, asked of LLVM: it needs no /proc/cpuinfo."""
    found: Mapping[str, bool] = asked(llvm.get_host_cpu_features, {})
    return frozenset(name for name in X86 if found.get(name.replace("_", "")))


def cpu_model(cpuinfo_text: str) -> str:
    """The processor's name; ARM gives two code numbers instead; "" if there is neither."""
    arm = [*fields(cpuinfo_text, "CPU implementer")[:1], *fields(cpuinfo_text, "CPU part")[:1]]
    names = fields(cpuinfo_text, "model name")
    return names[0] if names else " ".join(["ARM", *arm]) if arm else ""


def kernel_path(features: Collection[str], architecture: str) -> str:
    """The SIMD path for such a processor: "avx512-vnni", "avx-vnni", "avx2" or "portable".

    AVX2 is taken only together with FMA and F16C. AVX alone has no 256-bit integers: it is
    portable, and so is all that is not x86-64. LLVM's spelling (avx512vnni) is understood too.
    This describes a machine. The kernels ask what Numba compiles for, which may be narrower:
    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES choose it.
    """
    has = {feature.replace("_", "") for feature in features}.issuperset
    if architecture.lower() not in ("x86_64", "amd64") or not has({"avx2", "fma", "f16c"}):
        return "portable"
    if has({"avx512f", "avx512bw", "avx512vl", "avx512vnni"}):
        return "avx512-vnni"
    return "avx-vnni" if has({"avxvnni"}) else "avx2"


@dataclass(frozen=True)
class Cache:
    """One kind of cache: `instances` of `nbytes` each, `shared_by` logical CPUs using each."""

    level: int
    kind: str  # "Data", "Instruction", "Unified"
    nbytes: int
    shared_by: int
    instances: int


def caches(root: Path = ROOT) -> tuple[Cache, ...]:
    """The caches, by level. Source: Linux, ABI/testing/sysfs-devices-system-cpu."""
    found = set()  # of instances: each CPU lists all that it uses, so a shared one comes repeatedly
    for folder in (root / CPUS).glob("cpu[0-9]*/cache/index[0-9]*"):
        level, kind = number(read(folder / "level")), read(folder / "type") or ""
        kib = number((read(folder / "size") or "").removesuffix("K"))
        users = cpu_list(read(folder / "shared_cpu_list")) or cpu_list(folder.parts[-3][3:])
        if level and kib:
            found.add((level, kind, kib * 1024, users))
    kinds = Counter((level, kind, nbytes, len(users)) for level, kind, nbytes, users in found)
    return tuple(Cache(*kind, instances) for kind, instances in sorted(kinds.items()))


def quota(cpu_max_text: str | None) -> Fraction | None:
    """The cap in cores that a `cpu.max` text sets, None for no cap.

    "QUOTA PERIOD" in microseconds: all threads together may run for QUOTA in each period; "max" is
    no cap. cgroup v1 has the numbers in two files, and -1 for no cap. Source: Linux,
    admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst.
    """
    match [number(word) for word in (cpu_max_text or "").split()]:
        case [int(microseconds), int(period)] if microseconds and period:
            return Fraction(microseconds, period)
    return None


def capped(cores: int, cap: Fraction | None) -> int:
    """`cores`, but no more than the cap rounded down, and at least 1."""
    return max(1, cores if cap is None else min(cores, cap.numerator // cap.denominator))


def usable_cores(cpu_max_text: str | None, affinity: int | Set[int]) -> int:
    """How many threads can really run at once, given the text of `cpu.max` (None: no such file).

    The affinity is the set of CPUs that a thread may run on (or their number); the quota is the
    time that all threads get. A quota of 1.5 cores counts as 1: two threads would spend it in
    three quarters of each period, then both stand still. Never 0, never above the affinity.
    """
    return capped(affinity if isinstance(affinity, int) else len(affinity), quota(cpu_max_text))


def physical_cores(siblings: Mapping[int, str | None], affinity: Set[int]) -> int:
    """How many different cores the CPUs of the affinity belong to, at least 1.

    siblings : CPU -> its `thread_siblings_list`, "0,6" for a core with two hardware threads; a
    CPU without a well-formed list counts as a core of its own
    """
    return max(1, len({cpu_list(siblings.get(cpu)) or frozenset([cpu]) for cpu in affinity}))


def allowed_cpus(root: Path = ROOT) -> frozenset[int]:
    """The affinity of this process; the list may name CPUs that could be plugged in but are not."""
    status = fields(read(root / "proc/self/status"), "Cpus_allowed_list")
    allowed = cpu_list(status[0]) if status else frozenset()
    online = cpu_list(read(root / CPUS / "online"))
    known = allowed & (online or allowed)
    everywhere = range(os.cpu_count() or 1)  # macOS knows no affinity
    return known or frozenset(asked(lambda: psutil.Process().cpu_affinity(), everywhere))


def allowed_cores(root: Path = ROOT) -> int:
    """The number of physical cores among `allowed_cpus`."""
    allowed, siblings = allowed_cpus(root), {}
    for cpu in allowed:
        folder = root / CPUS / f"cpu{cpu}/topology"  # the list has a new name and an old one
        siblings[cpu] = read(folder / "core_cpus_list") or read(folder / "thread_siblings_list")
    if any(siblings.values()):
        return physical_cores(siblings, allowed)
    cores = asked(lambda: psutil.cpu_count(logical=False), None)
    return min(len(allowed), cores or len(allowed))


def default_threads(root: Path = ROOT) -> int:
    """How many threads to start unless told otherwise: the physical cores that may be used."""
    return capped(allowed_cores(root), cpu_quota(root))


def cgroup_mounts(mountinfo_text: str) -> list[tuple[str, str, set[str]]]:
    """(group, folder where it is found, controllers) of each tree; cgroup v2's controller is "".

    A line of /proc/self/mountinfo is "31 23 0:28 GROUP FOLDER rw shared:1 - cgroup cgroup rw,cpu",
    with a space in a name written as \\040. Source: man page proc_pid_mountinfo(5).
    """
    pattern = r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) \S+ (\S+)$"
    mounts = []
    for *names, kind, options in re.findall(pattern, mountinfo_text, re.M):
        group, folder = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), n) for n in names)
        mounts.append((group, folder, {""} if kind == "cgroup2" else set(options.split(","))))
    return mounts


def cgroup_folders(controller: str, root: Path = ROOT) -> list[Path]:
    """The folders whose limits bind this process; `controller` is "cpu" or "memory".

    They go from the process's group up to the mount point, since a group's limit binds all groups
    inside it. In a container, groups above its own cannot be seen. Source: man page cgroups(7).
    """
    lines = [line.split(":", 2) for line in (read(root / "proc/self/cgroup") or "").splitlines()]
    paths = {name: line[2] for line in lines if len(line) == 3 for name in line[1].split(",")}
    folders = []
    for group, folder, controllers in cgroup_mounts(read(root / "proc/self/mountinfo") or ""):
        for name in controllers & {controller, ""}:
            path, inside = PurePosixPath(paths.get(name, "/")), PurePosixPath()
            if path.is_relative_to(group) and ".." not in path.parts:
                inside = path.relative_to(group)
            folders += [root / folder.lstrip("/") / part for part in (inside, *inside.parents)]
    return folders


def cpu_quota(root: Path = ROOT) -> Fraction | None:
    """The tightest CPU quota that binds this process, in cores; None if there is none."""
    folders = cgroup_folders("cpu", root)
    v2 = [read(f / "cpu.max") for f in folders]
    v1 = [f"{read(f / 'cpu.cfs_quota_us')} {read(f / 'cpu.cfs_period_us')}" for f in folders]
    return min(filter(None, map(quota, [*v2, *v1])), default=None)


def memory(root: Path = ROOT) -> tuple[int, int]:
    """(total, available) bytes, of the machine or the control group, whichever has less.

    A group's use includes cached file pages; the system drops them when it needs room, so they
    count as available. Source: Linux, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    total, available = asked(lambda: psutil.virtual_memory()[:2], (sys.maxsize, sys.maxsize))
    lines = fields(read(root / "proc/meminfo"), "Mem(?:Total|Available)")
    if len(lines) == 2:
        total, available = (1024 * (number(line.removesuffix(" kB")) or 0) for line in lines)
    for folder in cgroup_folders("memory", root):
        limit = number(read(folder / "memory.max") or read(folder / "memory.limit_in_bytes"))
        used = number(read(folder / "memory.current") or read(folder / "memory.usage_in_bytes"))
        stat = read(folder / "memory.stat") or ""  # v1's total_ lines, below, include inner groups
        files = dict(re.findall(r"^(?:total_)?((?:in)?active_file) ([0-9]{1,20})$", stat, re.M))
        if limit is not None:
            free = limit - (used or 0) + sum(map(int, files.values()))
            total, available = min(total, limit), max(0, min(available, free))
    return total, available


def available_memory(root: Path = ROOT) -> int:
    """Bytes that this process can still take without swapping or meeting a limit."""
    return memory(root)[1]


@dataclass(frozen=True)
class Machine:
    """One computer, as one process on it sees it."""

    model: str
    architecture: str  # x86_64, aarch64, ...
    system: str  # Linux, Darwin, Windows
    features: tuple[str, ...]  # those that matter to an engine
    logical_cores: int  # of the whole machine, online
    physical_cores: int  # within the affinity
    usable_cores: int  # logical, within the affinity and the quota
    default_threads: int  # physical, within the affinity and the quota
    quota: float | None  # in cores
    caches: tuple[Cache, ...]
    memory_bytes: int
    available_bytes: int
    kernel_path: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def this_machine(root: Path = ROOT) -> Machine:
    """Describe this machine, or the one whose files lie under `root`."""
    cpuinfo, kernel = read(root / "proc/cpuinfo") or "", root / "proc/sys/kernel"
    architecture = read(kernel / "arch") or platform.machine()  # the file is there since Linux 6.1
    features = cpu_features(cpuinfo) if cpuinfo else llvm_features()
    allowed, cap, (total, available) = allowed_cpus(root), cpu_quota(root), memory(root)
    return Machine(
        model=cpu_model(cpuinfo) or platform.processor() or architecture,
        architecture=architecture,
        system=read(kernel / "ostype") or platform.system(),
        features=tuple(sorted(features.intersection(X86 + ARM))),
        logical_cores=len(cpu_list(read(root / CPUS / "online"))) or os.cpu_count() or 1,
        physical_cores=allowed_cores(root),
        usable_cores=capped(len(allowed), cap),
        default_threads=default_threads(root),
        quota=None if cap is None else float(cap),
        caches=caches(root),
        memory_bytes=total,
        available_bytes=available,
        kernel_path=kernel_path(features, architecture),
    )
