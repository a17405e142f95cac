"""`python -m llambda ...` is `llambda ...`."""

import sys

from .cli import main

sys.exit(main())
