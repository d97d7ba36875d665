"""Methods that choose the samples of an epoch: scores in, indices and weights out."""

from rekindle.choose.importance.active_bias import ActiveBias
from rekindle.choose.importance.buckets import Buckets
from rekindle.choose.importance.info_batch import InfoBatch
from rekindle.choose.importance.kakurenbo import Kakurenbo
from rekindle.choose.importance.method import EpochPlanner, ImportanceMethod, name_of
from rekindle.choose.importance.online_batch_selection import OnlineBatchSelection
from rekindle.choose.importance.random_subset import RandomSubset
from rekindle.choose.importance.selection_via_proxy import SelectionViaProxy, write_hardness
from rekindle.choose.importance.selective_backprop import SelectiveBackprop
from rekindle.choose.importance.uniform import Uniform

__all__ = [
    "ActiveBias",
    "Buckets",
    "EpochPlanner",
    "ImportanceMethod",
    "InfoBatch",
    "Kakurenbo",
    "OnlineBatchSelection",
    "RandomSubset",
    "SelectionViaProxy",
    "SelectiveBackprop",
    "Uniform",
    "name_of",
    "write_hardness",
]
