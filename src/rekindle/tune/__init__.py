"""Where does the time go, and what would help?"""

from rekindle.tune.report import Report
from rekindle.tune.reuse_report import ReuseReport
from rekindle.tune.views import Views

__all__ = ["Report", "ReuseReport", "Views"]
