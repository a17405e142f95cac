"""The program: `llambda ...`, and `python -m llambda ...`."""

import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C during its imports, a second, ends the process as it stands."""
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    signal.signal(signal.SIGINT, interrupted)
    return run()


if __name__ == "__main__":
    sys.exit(main())
