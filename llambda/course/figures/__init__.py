"""The drawings that would not fit into a cell: one module a lesson, named like its notebook."""
