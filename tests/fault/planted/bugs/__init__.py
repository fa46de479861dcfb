"""The bugs. Each is a mistake that somebody could make tomorrow, at the place where it would be made."""

from tests.fault.planted.bugs import claims, jobs, leases, reading, receipts, reconcile, redo, restored, sending

BUGS = [
    *leases.BUGS,
    *reading.BUGS,
    *sending.BUGS,
    *claims.BUGS,
    *receipts.BUGS,
    *reconcile.BUGS,
    *redo.BUGS,
    *jobs.BUGS,
    *restored.BUGS,
]
