"""The fragment for kernels of one's own against the kernel that the other tests boot."""

from __future__ import annotations

import re

from vhca.lab import Lab
from vhca.lab.kconfig import DEBUG, GUEST, missing

# Debian leaves what they are parts of out, and a configuration does not name them then.
HIDDEN = {"KASAN_GENERIC", "KASAN_OUTLINE", "FAULT_INJECTION_DEBUG_FS", "FAILSLAB", "FAIL_PAGE_ALLOC"}


def test_a_kernel_that_boots_here_has_all_of_it(lab: Lab) -> None:
    kernel = lab.prepared.kernel
    config = kernel.image.with_name(f"config-{kernel.release}").read_text()
    assert missing(GUEST, config) == []
    named = set(re.findall(r"^(?:# )?CONFIG_(\w+)", config, re.MULTILINE))
    assert {symbol for group in DEBUG for symbol in group.options} - named == HIDDEN
