"""Which samples, when, at what weight?"""

from rekindle.choose.choice import Choice, checked
from rekindle.choose.copies import Copies
from rekindle.choose.echo import plan_echo
from rekindle.choose.orders import (
    BatchOrder,
    EndOfEpoch,
    Orders,
    planned_epochs,
    planned_orders,
    stream_orders,
)
from rekindle.choose.plan import EpochPlan, plan_epoch
from rekindle.choose.planned_sampler import PlannedSampler
from rekindle.choose.redundancy import Redundancy
from rekindle.choose.redundant_groups import Group, Member, RedundantGroups
from rekindle.choose.refresh import Refresh
from rekindle.choose.samplers import SamplerOrders, between_epochs, check_generator
from rekindle.choose.scores import Loaded, Measured, Scores, array_kinds
from rekindle.choose.stand_ins import StandIns, reads_spared

__all__ = [
    "BatchOrder",
    "Choice",
    "Copies",
    "EndOfEpoch",
    "EpochPlan",
    "Group",
    "Loaded",
    "Measured",
    "Member",
    "Orders",
    "PlannedSampler",
    "Redundancy",
    "RedundantGroups",
    "Refresh",
    "SamplerOrders",
    "Scores",
    "StandIns",
    "array_kinds",
    "between_epochs",
    "check_generator",
    "checked",
    "plan_echo",
    "plan_epoch",
    "planned_epochs",
    "planned_orders",
    "reads_spared",
    "stream_orders",
]
