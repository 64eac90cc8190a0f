"""Python's search for cycles, out of the way: with its defaults it walks over all rooms and notices again and again."""

import gc


def spare_the_living() -> None:
    """Called once, when the service stands. All that comes and goes is freed by reference counts; what the search is
    left for is what libraries leave behind in cycles, now and then.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
