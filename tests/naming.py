"""Names of test cases."""

import re


def named(value):
    """What a value prints as, the same in every process: without the addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
