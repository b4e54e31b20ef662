"""A Dask worker's preload: in place of `vhca run` a program that does what the guest's command says, without a guest.

The command is `DO PATH`: `say` prints and leaves logs; `wait` and `die` note their process in PATH and go on for ever,
but the second `die` ends well; `orphan` waits and has ended when the file goes.
"""

from __future__ import annotations

import sys

from vhca.cli import cells, cluster_worker

RUN = """
import os, pathlib, sys, time
words = sys.argv[2:]
kernel, logs = (words[words.index(name) + 1] for name in ("--kernel", "--log-dir"))
what, path = words[words.index("--") + 1:]
path = pathlib.Path(path)
print(*words, flush=True)
if what == "say":
    (pathlib.Path(logs) / "h0.log").write_text(f"card of {kernel}\\\\n")
    (pathlib.Path(logs) / "deep").mkdir()
    (pathlib.Path(logs) / "deep" / "big").write_bytes(bytes(3 << 20))
    os.symlink("/etc/passwd", pathlib.Path(logs) / "link")
    if "--capture" in words:
        pathlib.Path(words[words.index("--capture") + 1]).write_text("packets")
    sys.exit(7 if kernel.startswith("6.2") else 0)
with path.open("a") as file:
    print(os.getpid(), kernel, file=file, flush=True)
tries = sum(kernel == line.split()[1] for line in path.read_text().splitlines())
if what == "die" and tries > 1:
    print("the second time it works")
    sys.exit(0)
time.sleep(600)
""".replace("\\\\", "\\")

cells.SELF = (sys.executable, "-c", RUN)  # type: ignore[misc]
cluster_worker._LOOK_S = 0.05  # type: ignore[misc]
