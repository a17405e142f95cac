"""Tiles of registers, memory and functions by their addresses, and code that is kept on disk.

As in test_simd.py, a function equals its NumPy meaning, the last line of its docstring. The same
tests hold for any target: with NUMBA_CPU_NAME=generic and NUMBA_CPU_FEATURES= (empty) they test the
portable forms.
"""

import ctypes
import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core import caching, cgutils, types
from numba.core.errors import TypingError

from llambda.simd import cpu, foreign, jit, tiles
from llambda.simd.registers import Code, Vector, f32x8, instruction, is_place
from llambda.simd.tiles import TILE
from llambda.simd.widest import LANES, floats, ints, shorts, unsigned

TOKENS = [1, 4, TILE]
AT = 3  # where the tokens' numbers begin
GUARD = -12345.0


def meaning(function: Any) -> str:
    """The last line of a docstring: an expression, or what is done to memory."""
    return [line.strip() for line in function.__doc__.splitlines() if line.strip()][-1]


def evaluate(function: Any, **names: Any) -> np.ndarray:
    return eval(meaning(function), {"np": np, "lanes": LANES, **names})


# ---------------------------------------------------------------- tiles in and out of memory


def dtype(vector: Vector) -> np.dtype:
    return np.dtype(str(vector.element))


def reader(vector: Vector, count: int) -> Any:
    """A function (array) that gives its first vectors as a tile."""
    kind = types.UniTuple(vector, count)

    @instruction(lambda array: kind if is_place(array, types.int64) else None)
    def read(code: Code, array: Any) -> Any:
        lane = code.context.get_value_type(vector)
        places = [code.element(0, array, at_number(i * vector.lanes)) for i in range(count)]
        loads = [
            code.builder.load(code.builder.bitcast(place, lane.as_pointer()), align=1)
            for place in places
        ]
        return cgutils.pack_array(code.builder, loads)

    return read


def at_number(number: int) -> Any:
    return foreign.LONG(number)


@instruction(lambda array, tile: types.none if isinstance(tile, types.UniTuple) else None)
def write(code: Code, array: Any, tile: Any) -> None:
    """The vectors of a tile, one behind the other."""
    for i in range(tile.type.count):
        v = code.builder.extract_value(tile, i)
        place = code.place(array, at_number(i * v.type.count), v.type)
        code.builder.store(v, place, align=1)


def numbers(shape: tuple[int, ...], kind: Any, low: int = 0, high: int = 0) -> np.ndarray:
    """Random ones; whole ones between low and high, and often these two."""
    rng = np.random.default_rng(len(shape) * 100 + np.prod(shape))
    if kind == np.float32:
        return rng.normal(size=shape).astype(np.float32)
    random = rng.integers(low, high, shape, endpoint=True)
    return np.where(rng.random(shape) < 0.3, rng.choice([low, high], shape), random).astype(kind)


def around(x: np.ndarray) -> np.ndarray:
    """Numbers of tokens in a row, between others that must not matter."""
    return np.concatenate([np.full(AT, 99, x.dtype), x.reshape(-1), np.full(5, 99, x.dtype)])


def tile(tokens: int, k: int, vector: Vector, limit: int = 10**6) -> np.ndarray:
    return numbers((tokens, k, vector.lanes), dtype(vector), -limit, limit)


def assert_equals(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert np.array_equal(got, wanted)


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("vector", [floats, ints, shorts], ids=str)
@pytest.mark.parametrize("count", TOKENS)
def test_a_tile_begins_with_zeros(vector: Vector, count: int):
    zeros = tiles.zeros(vector, count)

    @njit
    def filled(out):
        write(out, zeros())

    wanted = evaluate(zeros, count=count, lanes=vector.lanes, dtype=dtype(vector))
    out = np.full(wanted.shape, 7, wanted.dtype)
    filled(out.reshape(-1))
    assert_equals(out, wanted)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("tokens", TOKENS)
def test_weights_times_a_column_of_every_token(tokens: int, k: int):
    sums, weights = reader(floats, tokens * k), reader(floats, k)

    @njit
    def added(acc, w, x, out):
        write(out, tiles.fma_tile(sums(acc), weights(w), x, AT))

    acc, w, x = tile(tokens, k, floats), tile(1, k, floats)[0], numbers((tokens,), np.float32)
    out = np.zeros_like(acc)
    added(acc.reshape(-1), w.reshape(-1), around(x), out.reshape(-1))
    assert_equals(out, evaluate(tiles.fma_tile, acc=acc, w=w, x=x))


def dot(function: Any, sums: np.ndarray, w: np.ndarray, x: np.ndarray, vector: Vector) -> Any:
    read, codes = reader(vector, len(sums)), reader(unsigned, 1)

    @njit
    def added(sums, w, x, out):
        write(out, function(read(sums), codes(w)[0], x, AT))

    out = np.zeros_like(sums)
    added(sums.reshape(-1), w, around(x), out.reshape(-1))
    return out


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", ["dot_tile", "dot_signed_tile"])
def test_codes_times_four_columns_of_every_token(name: str, tokens: int):
    function, sums = getattr(tiles, name), tile(tokens, 1, ints)
    x = numbers((tokens, 4), np.int8, -127, 127)
    w = numbers((4 * LANES,), np.uint8, 0, 255)
    assert_equals(dot(function, sums, w, x, ints), evaluate(function, sums=sums, w=w, x=x))


@pytest.mark.parametrize("name", ["dot_tile", "dot_signed_tile"])
@pytest.mark.parametrize("code", [0, 1, 127, 128, 129, 255])
@pytest.mark.parametrize("column", [-127, 127])
def test_the_largest_products_are_exact(name: str, code: int, column: int):
    function, sums = getattr(tiles, name), tile(4, 1, ints)
    x, w = np.full((4, 4), column, np.int8), np.full(4 * LANES, code, np.uint8)
    assert_equals(extreme(name)(sums, w, x), evaluate(function, sums=sums, w=w, x=x))


EXTREME: dict[str, Callable[..., np.ndarray]] = {}


def extreme(name: str) -> Callable[..., np.ndarray]:
    """Compiled once."""
    if name not in EXTREME:
        function, read, codes = getattr(tiles, name), reader(ints, 4), reader(unsigned, 1)

        @njit
        def added(sums, w, x, out):
            write(out, function(read(sums), codes(w)[0], x, AT))

        def run(sums: np.ndarray, w: np.ndarray, x: np.ndarray) -> np.ndarray:
            out = np.zeros_like(sums)
            added(sums.reshape(-1), w, around(x), out.reshape(-1))
            return out

        EXTREME[name] = run
    return EXTREME[name]


@pytest.mark.parametrize("tokens", TOKENS)
def test_in_shorts_two_products_go_to_a_lane(tokens: int):
    """Eight times two nibbles, as large as they can be, are the most that fits."""
    x = numbers((tokens, 4), np.int8, -127, 127)
    w = numbers((4 * LANES,), np.uint8, 0, 15)
    sums = tile(tokens, 1, shorts, limit=7 * 2 * 15 * 127)
    got = dot(tiles.dot_tile, sums, w, x, shorts)
    assert_equals(got, evaluate(tiles.dot_tile, sums=sums, w=w, x=x))


@pytest.mark.parametrize("tokens", TOKENS)
def test_shorts_are_added_in_pairs(tokens: int):
    wide, narrow = reader(ints, tokens), reader(shorts, tokens)

    @njit
    def added(sums, small, out):
        write(out, tiles.widen_tile(wide(sums), narrow(small)))

    sums, small = tile(tokens, 1, ints), tile(tokens, 1, shorts, limit=32767)
    small[0, 0, :4] = -32768, -32768, 32767, 32767
    out = np.zeros_like(sums)
    added(sums.reshape(-1), small.reshape(-1), out.reshape(-1))
    assert_equals(out, evaluate(tiles.widen_tile, sums=sums, small=small))


@pytest.mark.parametrize("tokens", TOKENS)
def test_a_whole_number_of_every_token_is_added(tokens: int):
    read = reader(ints, tokens)

    @njit
    def added(sums, x, n, out):
        write(out, tiles.offset_tile(read(sums), x, AT, n))

    sums, x = tile(tokens, 1, ints), numbers((tokens,), np.int32, -4064, 4064)
    for n in (0, 3, 7):
        out = np.zeros_like(sums)
        added(sums.reshape(-1), around(x).view(np.float32), n, out.reshape(-1))
        assert_equals(out, evaluate(tiles.offset_tile, sums=sums, x=x.view(np.float32), n=n))


@pytest.mark.parametrize("tokens", TOKENS)
def test_whole_sums_are_scaled(tokens: int):
    read, whole, row = reader(floats, tokens), reader(ints, tokens), reader(floats, 1)

    @njit
    def added(acc, sums, d, x, out):
        write(out, tiles.scale_tile(read(acc), whole(sums), row(d)[0], x, AT))

    acc, sums = tile(tokens, 1, floats), tile(tokens, 1, ints, limit=2**24)
    d, x = numbers((LANES,), np.float32), numbers((tokens,), np.float32)
    out = np.zeros_like(acc)
    added(acc.reshape(-1), sums.reshape(-1), d, around(x), out.reshape(-1))
    assert_equals(out, evaluate(tiles.scale_tile, acc=acc, sums=sums, d=d, x=x))


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(("k", "store"), [(1, tiles.store_tile1), (2, tiles.store_tile2)])
@pytest.mark.parametrize("tokens", TOKENS)
def test_rows_of_tokens_are_stored_apart(tokens: int, k: int, store: Any):
    read = reader(floats, tokens * k)

    @njit
    def stored(acc, out, at, stride):
        store(out, at, stride, read(acc))

    acc = tile(tokens, k, floats)
    for at, stride in ((0, k * LANES), (AT, k * LANES + 5)):
        out = np.full(at + tokens * stride + 9, GUARD, np.float32)
        wanted = out.copy()
        stored(acc.reshape(-1), out, at, stride)
        names = {"acc": acc, "out": wanted, "at": at, "stride": stride, "k": k, "lanes": LANES}
        exec(meaning(store), {"np": np, **names})
        assert (wanted != GUARD).sum() == acc.size
        assert_equals(out, wanted)


@pytest.mark.parametrize("tokens", TOKENS)
def test_rows_of_tokens_are_read_again(tokens: int):
    zeros = tiles.zeros(floats, 2 * tokens)

    @njit
    def read(memory, at, stride, out):
        write(out, tiles.load_tile2(memory, at, stride, zeros()))

    stride = 2 * LANES + 5
    memory = numbers((AT + tokens * stride,), np.float32)
    out = np.zeros((tokens, 2, LANES), np.float32)
    read(memory, AT, stride, out.reshape(-1))
    names = {"out": memory, "at": AT, "stride": stride, "k": 2, "acc": out}
    assert_equals(out, evaluate(tiles.load_tile2, **names))


def test_tiles_of_other_kinds_are_refused():
    sums, weights = reader(floats, 4), reader(floats, 3)

    @njit
    def three_for_four(array):
        write(array, tiles.fma_tile(sums(array), weights(array), array, 0))

    @njit
    def not_whole(array):
        write(array, tiles.widen_tile(sums(array), sums(array)))

    for function in (three_for_four, not_whole):
        with pytest.raises(TypingError):
            function(np.zeros(64, np.float32))


def test_meanings_are_evaluated_in_numpy():
    """A function that is not what it says is noticed."""

    @instruction(lambda acc: acc)
    def same(code: Code, acc: Any) -> Any:
        """acc + 1"""
        return acc

    read = reader(f32x8, 1)

    @njit
    def run(array, out):
        write(out, same(read(array)))

    acc, out = np.zeros((1, 1, 8), np.float32), np.zeros((1, 1, 8), np.float32)
    run(acc.reshape(-1), out.reshape(-1))
    with pytest.raises(AssertionError):
        assert_equals(out, evaluate(same, acc=acc))


# ---------------------------------------------------------------- by address

ARRAYS = {
    "uint8": foreign.bytes_at,
    "uint16": foreign.halves_at,
    "float32": foreign.floats_at,
    "int64": foreign.longs_at,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_memory_as_an_array(name: str):
    array_at, kind = ARRAYS[name], np.dtype(name)

    @njit
    def doubled(address, n):
        array = array_at(address, n)
        for i in range(len(array)):
            array[i] *= 2
        return array.size, array.itemsize, array.strides[0]

    owner = np.arange(1, 9).astype(kind)
    memory: Any = (ctypes.c_char * 2**47).from_address(0)  # all of it
    address, n = owner.ctypes.data + 2 * owner.itemsize, 5
    seen = evaluate(array_at, memory=memory, dtype=kind, n=n, address=address)
    assert seen.tolist() == [3, 4, 5, 6, 7]
    assert doubled(address, n) == (n, kind.itemsize, kind.itemsize)
    assert seen.tolist() == [6, 8, 10, 12, 14]
    assert owner[[0, 1, 7]].tolist() == [1, 2, 8]


def test_memory_is_found_by_whole_numbers():
    @njit
    def read(address):
        return foreign.floats_at(address, 1)[0]

    with pytest.raises(TypingError):
        read(0.5)


@pytest.fixture
def not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests compile does not go to the disk."""
    monkeypatch.setattr(jit, "KEEP", False)


@pytest.fixture
def note(not_kept: None) -> jit.Foreign:
    """Write b and c to the two int64 at address a."""

    @jit.foreign
    def noted(a: int, b: int, c: int) -> None:
        """Take notes."""
        place = foreign.longs_at(a, 2)
        place[0], place[1] = b, c

    return noted


LARGE = 2**62 + 1  # nothing is lost on the way


def test_a_foreign_function_called_from_python(note: jit.Foreign):
    place = np.zeros(3, np.int64)
    note(place.ctypes.data, -LARGE, 5)
    assert place.tolist() == [-LARGE, 5, 0]
    assert note.__doc__ == "Take notes."


def test_a_foreign_function_is_a_c_function(note: jit.Foreign):
    place = np.zeros(3, np.int64)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(note.address)
    function(place.ctypes.data, LARGE, -6)
    assert place.tolist() == [LARGE, -6, 0]


def test_a_foreign_function_called_from_compiled_code(note: jit.Foreign):
    @njit
    def call(address, a, b, c):
        foreign.call3(address, a, b, c)

    place = np.zeros(3, np.int64)
    call(note.address, place.ctypes.data, LARGE, -7)
    assert place.tolist() == [LARGE, -7, 0]
    call(note.address, place.ctypes.data, np.int32(8), np.uint8(9))
    assert place.tolist() == [8, 9, 0]


def test_a_foreign_function_is_compiled_once_and_only_when_asked(not_kept: None):
    made = jit.foreign(lambda a, b, c: None)
    assert "compiled" not in vars(made)
    assert made.address == made.address
    assert made.compiled is made.compiled


def test_a_foreign_function_lets_other_threads_run(not_kept: None):
    """It waits, and would wait in vain, for what another thread of Python does."""

    @jit.foreign
    def wait(address: int, turns: int, unused: int) -> None:
        place = foreign.longs_at(address, 2)
        for _ in range(turns):
            if cpu.atomic_load(place, 0) == 1:
                place[1] = 1
                return
            cpu.yield_core()

    place = np.zeros(2, np.int64)
    wait(place.ctypes.data, 1, 0)
    assert place.tolist() == [0, 0]
    other = threading.Timer(0.05, place.__setitem__, (0, 1))
    other.start()
    wait(place.ctypes.data, 2**40, 0)
    other.join()
    assert place.tolist() == [1, 1]


# ---------------------------------------------------------------- kept on disk

SCRIPT = """
import numpy as np
from llambda.simd import foreign, jit

@jit.entry
def doubled(n):
    return 2 * n

@jit.foreign
def noted(address, n, unused):
    foreign.longs_at(address, 1)[0] = n

place = np.zeros(1, np.int64)
noted(place.ctypes.data, doubled(21), 0)
hits = sum(doubled.stats.cache_hits.values()) + noted.compiled.cache_hits
print(jit.KEEP, hits, place[0])
"""


def run_script(folder: Path, home: Path) -> str:
    """What a new process prints; it has to come without a word on stderr."""
    script = folder / "script.py"
    if not script.exists():  # with another date it would be compiled again
        script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "LLAMBDA_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_compiled_code_is_kept(tmp_path: Path):
    home = tmp_path / "home"
    assert run_script(tmp_path, home) == "True 0 42"
    kept = files(tmp_path) - {"script.py"}
    assert all(Path(name).parts[:2] == ("home", "numba") for name in kept)
    assert {Path(name).suffix for name in kept} == {".nbi", ".nbc"}
    assert run_script(tmp_path, home) == "True 2 42"
    assert files(tmp_path) - {"script.py"} == kept


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for compiled code on a disk on which empty files can be made, and no others."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(jit, "KEEP", True)
    monkeypatch.setattr(jit.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(caching.IndexDataCacheFile, "save", fail)
    return tmp_path


def double(x: int) -> int:
    return 2 * x


def store(address: int, b: int, c: int) -> None:
    foreign.longs_at(address, 1)[0] = b + c


def test_a_full_disk_keeps_no_code_and_hinders_nobody(full: Path):
    place = np.zeros(1, np.int64)
    assert jit.entry(double)(21) == 42
    jit.foreign(store)(place.ctypes.data, 40, 2)
    assert place[0] == 42
    assert {path.suffix for path in files(full)} <= {""}


def test_code_is_kept_in_our_folder_or_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Numba would take the folder of the source next, where it finds code that is out of date."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(jit, "KEEP", True)
    monkeypatch.setattr(jit.config, "CACHE_DIR", str(tmp_path / "file"))
    made = jit.entry(double)
    assert made(21) == 42
    assert made._cache.cache_path is None


def test_where_nothing_can_be_written_all_is_compiled_anew(tmp_path: Path):
    """Below a file there is no folder, whoever asks."""
    (tmp_path / "file").write_text("")
    assert run_script(tmp_path, tmp_path / "file" / "home") == "False 0 42"
    assert files(tmp_path) == {"script.py", "file"}


def test_a_folder_in_which_no_file_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(dir: Path) -> None:
        raise PermissionError(dir)

    monkeypatch.setenv("LLAMBDA_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(jit.config, "CACHE_DIR", "unchanged")
    assert not jit.keep_compiled_code()
    assert jit.config.CACHE_DIR == "unchanged"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root"
)
def test_a_folder_that_is_read_only_is_left_alone(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    assert run_script(tmp_path, home) == "False 0 42"
    assert files(tmp_path) == {"script.py"}


def test_the_first_time_is_over_when_compiled_code_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jit.config, "CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setattr(jit, "KEEP", True)
    assert jit.first_time()
    (tmp_path / "numba" / "engines_1234").mkdir(parents=True)
    (tmp_path / "numba" / "engines_1234" / "phases.forward-1.py311.nbi").touch()
    assert not jit.first_time()
    monkeypatch.setattr(jit, "KEEP", False)
    assert jit.first_time()
