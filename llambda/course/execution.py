"""Running the code cells of a notebook in a kernel of their own, with limits.

Needs the course extra, and is imported only where a notebook is run. The kernel runs this Python,
whatever the notebook's metadata name, with a data cache of its own: a check leaves what the reader
measured as it was. However the run ends, the kernel and the processes of its group are killed. A
cell that starts a process with a session of its own (a daemon, `start_new_session`) takes it out of
the group: it lives on, as it does when Jupyter's kernel ends.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import ipykernel  # noqa: F401 - what the kernel runs: if it is missing, fail here and not there
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionComplete, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode, ValidationError, v4

from ..errors import LlambdaError, one_line
from ..paths import file_error
from .private_home import private_home

CELL_SECONDS = 300
START_SECONDS = 60
CELL_OUTPUT = 10_000_000  # characters a cell may write; a message counts as MESSAGE at least
MESSAGE = 1_000
NAME_LENGTH = 50

Progress = Callable[[int, int], None]  # cell number, number of cells


class Execution:
    """The code cells of a notebook, as far as they have run."""

    def __init__(self, sources: Sequence[str]):
        self.cells = [v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
        self.stopped: str | None = None  # why it ended early, if it did

    def errors(self) -> list[str]:
        """One line for each cell that raised."""
        return [
            f"{named(number, cell)} raised {last_line(output)}"
            for number, cell in enumerate(self.cells, 1)
            for output in cell.outputs
            if output.output_type == "error"
        ]

    def printed(self, index: int) -> str:
        """What a cell sent to stdout."""
        outputs = self.cells[index].outputs
        streams = (each for each in outputs if each.output_type == "stream")
        return "".join(each.text for each in streams if each.name == "stdout")


def named(number: int, cell: NotebookNode) -> str:
    """A cell as its reader finds it: the [number] it has after "Run All Cells", its first line."""
    first = cell.source.strip().splitlines()[0]
    return f"cell {number} ({one_line(first[:NAME_LENGTH])})"


def last_line(error: NotebookNode) -> str:
    """The last line of the traceback; of a message of many lines the first that says something."""
    message = [line.strip() for line in error.evalue.splitlines() if line.strip()]
    return one_line(": ".join([error.ename, *message[:1]]))


def execute(sources: Sequence[str], folder: Path, progress: Progress | None = None) -> Execution:
    """Run code cells, none of them empty, one after the other in `folder`.

    One that raises does not stop the run. One that takes more than CELL_SECONDS, writes without
    end or ends the kernel does. Raises LlambdaError where no kernel starts.
    """
    execution = Execution(sources)
    try:
        with private_home() as home:
            in_a_thread(run(execution, folder, home, progress))
    except OSError as error:
        raise file_error(error, Path(error.filename or tempfile.tempdir or folder)) from error
    return execution


def in_a_thread(work: Coroutine[Any, Any, None]) -> None:
    """Complete it in a thread of its own: a signal meets our waiting, and not its event loop.

    When the waiting is interrupted the work is cancelled, and cleans up before we go on.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((task.get_loop(), task))
        await work

    def thread() -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # what zmq needs
            runner.run(main())

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(thread)
        try:
            while not wait([done], timeout=1).done:  # Windows hears no Ctrl-C in an endless wait
                pass
        except BaseException:
            loop, task = started.result()
            with suppress(RuntimeError):  # it has just ended by itself
                loop.call_soon_threadsafe(task.cancel)
            raise
    done.result()


async def run(
    execution: Execution, folder: Path, home: dict[str, str], progress: Progress | None
) -> None:
    manager = AsyncKernelManager(kernel_spec_manager=ThisPython())
    client = Client(
        v4.new_notebook(cells=execution.cells),  # type: ignore[no-untyped-call]
        km=manager,
        allow_errors=True,
        timeout=CELL_SECONDS,
        startup_timeout=START_SECONDS,
    )
    try:
        await manager.start_kernel(
            cwd=str(folder), env=os.environ | home, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            await client.async_start_new_kernel_client()
        except RuntimeError as error:
            raise LlambdaError(
                f"no kernel starts: {error}", fix="Try: python -m ipykernel --version"
            ) from error
        for index in range(len(execution.cells)):
            if progress is not None:
                progress(index + 1, len(execution.cells))
            execution.stopped = await run_cell(client, execution.cells[index], index)
            if execution.stopped is not None:
                break
    finally:
        if client.kc is not None:
            client.kc.stop_channels()
        await manager.shutdown_kernel(now=True)


async def run_cell(client: "Client", cell: NotebookNode, index: int) -> str | None:
    """Run one cell, and say why the run must end here if it must."""
    name = named(index + 1, cell)
    client.written = 0
    try:
        cell.source.encode()
    except UnicodeEncodeError as error:  # a lone surrogate: no text that a kernel could be sent
        raised = v4.new_output("error", ename="UnicodeEncodeError", evalue=str(error), traceback=[])  # type: ignore[no-untyped-call]
        cell.outputs.append(raised)
        return None
    try:
        await client.async_execute_cell(cell, index)
    except CellTimeoutError:
        return f"{name} took more than {CELL_SECONDS} seconds"
    except DeadKernelError:
        if client.written > CELL_OUTPUT:
            return f"{name} writes without end"
        return f"the kernel died while {name} ran"
    return None


class Client(NotebookClient):
    """A client that stops listening to a cell that writes without end.

    While messages pour in, nbclient does not look at its clock, and it keeps them all.
    """

    written = 0

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        content = msg["content"]
        self.written += max(MESSAGE, len(content.get("text", "")), len(str(content.get("data"))))
        if self.written > CELL_OUTPUT:
            assert self.task_poll_for_reply is not None
            self.task_poll_for_reply.cancel()  # as nbclient does when the kernel has died
            raise CellExecutionComplete
        try:
            return super().process_message(msg, cell, cell_index)
        except ValidationError:  # an output that no notebook can hold; what is printed counts here
            return None


class ThisPython(KernelSpecManager):
    """Knows one kernel: IPython in the Python that runs llambda."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")
