"""What only notebooks and teachers use; the engine never needs it.

Everything here is imported by name (`from llambda.course.plots import roof`), so that the command
line, which lists and copies lessons, does not load matplotlib.
"""

from .sources import show as show
