"""Long runs of whole machines on one rack: what is taken must be given back, a thousand times over.

`python -m tests.soak` (`make soak`); see :mod:`tests.soak.run`.
"""
