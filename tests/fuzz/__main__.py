"""Coverage-guided fuzzing of one parser with atheris, in a process whose memory is limited:

    cd tests && python -m fuzz TARGET [options of libFuzzer, as -max_total_time=600, or an input to repeat]

An exception that a target does not expect, a crash, or more memory or seconds than an input may cost end the
run with the input in a file.
"""

import re
import resource
import sys
import tempfile
from pathlib import Path

import atheris

SOURCES = Path(__file__).parents[2] / "src"
# Numba compiles functions of these from their bytecode, which has to be their own.
COMPILED = [
    ".".join(file.relative_to(SOURCES).with_suffix("").parts)
    for file in SOURCES.rglob("*.py")
    if re.search(r"\bnumba\b|import .*\bkernel\b", file.read_text(encoding="utf-8"))
]
MEMORY = 2 << 30  # bytes, beyond what the process has mapped before the first input
DEFAULTS = [
    "-timeout=60",
    "-rss_limit_mb=4096",
    "-malloc_limit_mb=2048",
    "-print_final_stats=1",
    "-max_len=16384",
]


def main(name: str, *options: str) -> None:
    with atheris.instrument_imports(
        include=["rekindle", "PIL", "csv"], exclude=COMPILED, enable_loader_override=False
    ):
        from fuzz.targets import TARGETS
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(target.seeds()):
            (Path(folder) / str(number)).write_bytes(seed)
        target.check(target.seeds()[0])  # What is imported when it is first needed is no input's memory.
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
        inputs = [] if any(not option.startswith("-") for option in options) else [folder]
        atheris.Setup([sys.argv[0], *DEFAULTS, *options, *inputs], target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
