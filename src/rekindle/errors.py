"""Every error that Rekindle raises on purpose.

RekindleError
├── ArgumentError (ValueError)      an argument that cannot work, found at construction
│   └── MissingPackageError (ImportError)  it needs a package that is not installed
├── StateError (ValueError)         a saved state that belongs to another loader
├── FeedbackError (RuntimeError)    `importance=` without the feedback that it learns from
├── WorkerError (RuntimeError)      workers die and replacing them does not help
├── LoaderTimeout (RuntimeError)    no batch within the `timeout` that was asked for
├── BadSamplesError (RuntimeError)  more bad samples than the budget allows
├── RankError (RuntimeError)        ranks of a distributed run that differ in what they load, or do not come
├── RemoteError (OSError)           an object behind a URL that cannot be read, however often it is tried
│   └── RemoteNotFoundError (FileNotFoundError)  there is none
├── DataError (ValueError)          a folder or file of data that is not what it should be
│   ├── DataNotFoundError (FileNotFoundError)  there is none at this path
│   ├── DecodeError                 an image that is broken, cut off or too large
│   └── FormatError                 a packed file that is damaged; names the file and the offset
├── UnequalSamplesError (RuntimeError)  samples of different shapes, which cannot be stacked to a batch
├── PillowSamplesError (TypeError)  samples that are Pillow images, which cannot be stacked to a batch
├── OpenFilesError (OSError)        too many files are open
└── OutOfMemoryError (MemoryError)  the batches in flight do not fit into memory

Each message says what failed, the value received, where, and what to do. Exceptions of the user's own
dataset and transforms keep their type.
"""


class RekindleError(Exception):
    """The base of all errors that Rekindle raises on purpose."""


class ArgumentError(RekindleError, ValueError):
    """An argument that cannot work, found when the loader is made."""


class MissingPackageError(ArgumentError, ImportError):
    """What was asked for needs a package that is not installed; the message has the command to install it."""


class StateError(RekindleError, ValueError):
    """A saved state that does not fit this loader; the message names the field."""


class FeedbackError(RekindleError, RuntimeError):
    """A method that chooses samples got no feedback on the model's losses, or none that it can use."""


class WorkerError(RekindleError, RuntimeError):
    """Workers die, and replacing them does not help."""


class LoaderTimeout(RekindleError, RuntimeError):  # noqa: N818 - reads as what happened
    """No batch arrived within the `timeout` that was asked for."""


class BadSamplesError(RekindleError, RuntimeError):
    """More samples failed than `on_error` is allowed to pass over."""


class RankError(RekindleError, RuntimeError):
    """Ranks of a distributed run differ in what they load, or one does not come; the message names them."""


class RemoteError(RekindleError, OSError):
    """An object behind a URL that cannot be read; the message names it, the offset and the attempts."""


class RemoteNotFoundError(RemoteError, FileNotFoundError):
    """There is no object behind a URL."""


class DataError(RekindleError, ValueError):
    """A folder or file of data that is missing, empty or not what it should be."""


class DataNotFoundError(DataError, FileNotFoundError):
    """There is no folder or file of data at a path, or none that matches a pattern."""


class DecodeError(DataError):
    """An image that is broken, cut off or too large; the message names its file and sample."""


class FormatError(DataError):
    """A packed file (HDF5, TFRecord, tar, LMDB) that is damaged; the message names file and offset."""


class OutOfMemoryError(RekindleError, MemoryError):
    """The batches in flight do not fit into the memory that is left."""


class OpenFilesError(RekindleError, OSError):
    """Too many files are open in this process or on this machine; the message says what needs them."""


class UnequalSamplesError(RekindleError, RuntimeError):
    """Samples of one batch differ in shape, so that they cannot be stacked."""


class PillowSamplesError(RekindleError, TypeError):
    """Samples are Pillow images, which have to become tensors before they can be stacked."""
