"""Benchmarks: programs with an answer, one question each.

    python -m benchmarks                            # all of them, as `make bench` does
    python -m benchmarks pil_pipeline memory        # some
    python -m benchmarks pil_pipeline --data images.tar

Each program's docstring holds its question, the method and how to read the result. Rekindle and its peer
alternate in one run, so a busy machine slows both; what counts is the ratio.
"""
