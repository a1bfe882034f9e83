"""As first_line.py, in a script that uses cuDF: the workers are usable once each has computed with it."""

import cudf
from first_line import main


def summed() -> int:
    """Add up a column on a worker's GPU."""
    return int(cudf.Series(range(1000)).sum())


if __name__ == "__main__":
    main(summed)
