"""Where does the time go, and what would help?"""

from rekindle.tune.report import Report

__all__ = ["Report"]
