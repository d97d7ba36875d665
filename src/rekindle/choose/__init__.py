"""Which samples, when, at what weight?"""

from rekindle.choose.batch_orders import (
    BatchOrder,
    EndOfEpoch,
    Orders,
    PlannedEpochs,
    iterable_orders,
    planned_orders,
    unplanned_order,
)
from rekindle.choose.duplicates.groups_file import Group, Member, RedundantGroups
from rekindle.choose.duplicates.settings import Redundancy
from rekindle.choose.echo_sequence import plan_echo
from rekindle.choose.order_kind import OrderKind
from rekindle.choose.plan import EpochPlan, batches_per_epoch
from rekindle.choose.planned_sampler import PlannedSampler
from rekindle.choose.planning import plan_epoch
from rekindle.choose.refresh_schedule import Refresh
from rekindle.choose.sampler_state import between_epochs
from rekindle.choose.scores import Measured, Scores
from rekindle.choose.selection import Choice
from rekindle.choose.shard import EpochLayout, EpochStart, Shard
from rekindle.choose.user_samplers import SamplerOrders

__all__ = [
    "BatchOrder",
    "Choice",
    "EndOfEpoch",
    "EpochLayout",
    "EpochPlan",
    "EpochStart",
    "Group",
    "Measured",
    "Member",
    "OrderKind",
    "Orders",
    "PlannedEpochs",
    "PlannedSampler",
    "Redundancy",
    "RedundantGroups",
    "Refresh",
    "SamplerOrders",
    "Scores",
    "Shard",
    "batches_per_epoch",
    "between_epochs",
    "iterable_orders",
    "plan_echo",
    "plan_epoch",
    "planned_orders",
    "unplanned_order",
]
