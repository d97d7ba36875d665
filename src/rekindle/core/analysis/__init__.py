"""What code and objects of a script do, hold and depend on: found without running any of their code."""
