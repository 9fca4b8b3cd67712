"""Alerts without a person: evaluations, notices, and their delivery by ordinary tasks.

The public name is `mail_report`, to which applications give a schedule.
"""

from typing import TYPE_CHECKING

from runner.lazy_imports import lazy_names

if TYPE_CHECKING:
    from runner.alerts.report_mail import mail_report

__all__ = ["mail_report"]

__getattr__ = lazy_names(__name__, {"mail_report": "runner.alerts.report_mail"})
