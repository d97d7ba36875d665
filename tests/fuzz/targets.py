"""What is fuzzed: for each parser a function that any bytes can be given to, and inputs to begin with.

`check` returns if the bytes were read, or refused with an error of Rekindle's own; anything else that it
raises is a finding. `python -m fuzz` runs one with atheris, `test_fuzz.py` all of them.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from fuzz import cached_values, images, index_files, inspector_answers, packed_files, states, text_files


class Target(NamedTuple):
    """A parser."""

    check: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


TARGETS = {
    "jpeg": Target(images.check_jpeg, images.jpegs),
    "image": Target(images.check_image, images.others),
    "tar": Target(packed_files.check_tar, packed_files.tars),
    "tfrecord": Target(packed_files.check_tfrecord, packed_files.tfrecords),
    "protobuf": Target(packed_files.check_protobuf, packed_files.messages),
    "lmdb": Target(packed_files.check_lmdb, packed_files.lmdbs),
    "index": Target(index_files.check_index, index_files.indexes),
    "hdf5-answer": Target(inspector_answers.check_answer, inspector_answers.answers),
    "groups": Target(text_files.check_groups, text_files.groups),
    "labels-csv": Target(text_files.check_labels_csv, text_files.labels_csv),
    "labels-json": Target(text_files.check_labels_json, text_files.labels_json),
    "cached-value": Target(cached_values.check_value, cached_values.values),
    "cache-snapshot": Target(cached_values.check_snapshot, cached_values.snapshots),
    "state": Target(states.check_state, states.seeds),
}
TARGETS = {name: Target(check, cache(seeds)) for name, (check, seeds) in TARGETS.items()}
