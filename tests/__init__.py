"""A package, so that no other distribution's `tests` can take its name; its folders need no such file."""
