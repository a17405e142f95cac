"""The operations of a decoder: each module holds one, beginning with its meaning in NumPy."""
