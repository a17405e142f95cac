"""One command in this process, and what a failure of one looks like."""

import contextlib
import io
import re
from typing import NamedTuple

from llambda import cli


class Result(NamedTuple):
    """What a command leaves: its exit status, and what it wrote to stdout and stderr."""

    status: int
    out: str
    err: str


def run(*argv: object) -> Result:
    """`llambda ...` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main([str(each) for each in argv])
        except SystemExit as exit:
            status = exit.code
    return Result(status, out.getvalue(), err.getvalue())


def assert_one_clear_line(result: Result, *words: str) -> None:
    """Exit status 1, nothing on stdout, and one line on stderr that is not about us."""
    assert (result.status, result.out) == (1, ""), result
    assert re.fullmatch(r"llambda: [^\n]+\n", result.err), result
    assert "Traceback" not in result.err, result
    assert "internal error" not in result.err, result
    for each in words:
        assert each in result.err, result
