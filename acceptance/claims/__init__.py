"""What is said of RDMA on Linux, claim by claim, against what two guests really do.

:mod:`.framework` says what a claim, a finding and a verdict are; :mod:`.bench` is what a claim works with;
:mod:`.trace` listens in the guest's kernel; :mod:`.run` runs claims and :mod:`.report` writes the results.
Every other module here whose name begins with a group's letter (`a_device`, `b_...`) holds claims.
"""

from acceptance.claims.bench import Bench, Result
from acceptance.claims.framework import Claim, Findings, claim
from acceptance.claims.verdict import Status, Verdict

__all__ = ["Bench", "Claim", "Findings", "Result", "Status", "Verdict", "claim"]
