"""What everybody needs: random numbers, counters, shared memory, files written whole."""
