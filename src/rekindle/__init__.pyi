# The public names: the one list of them, from which `rekindle.__all__` and the API reference follow.
from . import transforms
from .choose.duplicates.groups_file import RedundantGroups
from .choose.duplicates.settings import Redundancy
from .choose.importance.active_bias import ActiveBias
from .choose.importance.buckets import Buckets
from .choose.importance.info_batch import InfoBatch
from .choose.importance.kakurenbo import Kakurenbo
from .choose.importance.method import ImportanceMethod
from .choose.importance.online_batch_selection import OnlineBatchSelection
from .choose.importance.random_subset import RandomSubset
from .choose.importance.selection_via_proxy import SelectionViaProxy
from .choose.importance.selective_backprop import SelectiveBackprop
from .choose.importance.uniform import Uniform
from .choose.scores import Scores
from .core.limits import Limits
from .core.shared_list import SharedList
from .errors import (
    ArgumentError,
    BadSamplesError,
    DataError,
    DataNotFoundError,
    DecodeError,
    FeedbackError,
    FormatError,
    LoaderTimeout,
    MissingPackageError,
    OpenFilesError,
    OutOfMemoryError,
    PillowSamplesError,
    RankError,
    RekindleError,
    RemoteError,
    RemoteNotFoundError,
    StateError,
    UnequalSamplesError,
    WorkerError,
)
from .fetch.remote.object_store import RemoteOptions
from .loader.dataloader import DataLoader
from .prepare.array_images import ArrayImages
from .prepare.image_dataset import ImageDataset
from .prepare.open_dataset import open
from .prepare.translate import native
from .reuse.cache.codecs import Jpeg
from .reuse.diversity import Diversity, diversity
from .reuse.settings import Echo, Refurbish
from .run.ray.settings import Ray
from .ship.batch_info import BatchInfo
from .tools.dataset_info import DatasetInfo, info
from .tools.find_duplicates import find_redundancy
from .tools.pack import PackResult, pack
from .tools.train_proxy import train_proxy
from .tools.verify import VerifyResult, verify
from .tune.report import Report

__version__: str
__all__ = [
    "ActiveBias",
    "ArgumentError",
    "ArrayImages",
    "BadSamplesError",
    "BatchInfo",
    "Buckets",
    "DataError",
    "DataLoader",
    "DataNotFoundError",
    "DatasetInfo",
    "DecodeError",
    "Diversity",
    "Echo",
    "FeedbackError",
    "FormatError",
    "ImageDataset",
    "ImportanceMethod",
    "InfoBatch",
    "Jpeg",
    "Kakurenbo",
    "Limits",
    "LoaderTimeout",
    "MissingPackageError",
    "OnlineBatchSelection",
    "OpenFilesError",
    "OutOfMemoryError",
    "PackResult",
    "PillowSamplesError",
    "RandomSubset",
    "RankError",
    "Ray",
    "Redundancy",
    "RedundantGroups",
    "Refurbish",
    "RekindleError",
    "RemoteError",
    "RemoteNotFoundError",
    "RemoteOptions",
    "Report",
    "Scores",
    "SelectionViaProxy",
    "SelectiveBackprop",
    "SharedList",
    "StateError",
    "UnequalSamplesError",
    "Uniform",
    "VerifyResult",
    "WorkerError",
    "diversity",
    "find_redundancy",
    "info",
    "native",
    "open",
    "pack",
    "train_proxy",
    "transforms",
    "verify",
]
