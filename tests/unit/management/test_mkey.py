import pytest

from vhca.management.mkey import MKeyGuard
from vhca.wire.mad import METHOD_GET, METHOD_SET, METHOD_TRAP_REPRESS, Smp
from vhca.wire.smp import PortInfo

KEY = 0x1234
SECOND = 1_000_000_000


@pytest.mark.parametrize("method", [METHOD_GET, METHOD_SET, METHOD_TRAP_REPRESS])
@pytest.mark.parametrize("level", range(4))
def test_who_may_do_what_at_each_level(level: int, method: int) -> None:
    info = PortInfo(mkey=KEY, mkey_protect_bits=level)
    guard = MKeyGuard(info)
    assert guard.allows(Smp(method=method, mkey=KEY), 0)
    for wrong in (0, KEY + 1):
        assert guard.allows(Smp(method=method, mkey=wrong), 0) == (method == METHOD_GET and level < 2)
    assert info.mkey_violations == (0 if method == METHOD_GET and level < 2 else 2)
    assert guard.shown_to(KEY) == KEY
    assert guard.shown_to(0) == (0 if level else KEY)


def test_no_key_no_check() -> None:
    info = PortInfo(mkey_protect_bits=3)
    assert MKeyGuard(info).allows(Smp(method=METHOD_SET, mkey=9), 0)
    assert info.mkey_violations == 0


def test_the_lease_runs_from_the_first_violation_until_the_key_is_shown() -> None:
    info = PortInfo(mkey=KEY, mkey_protect_bits=2, mkey_lease_period=10)
    guard = MKeyGuard(info)
    wrong, right = Smp(method=METHOD_GET), Smp(method=METHOD_GET, mkey=KEY)
    assert not guard.allows(wrong, 0)
    assert not guard.allows(wrong, 9 * SECOND)
    assert guard.allows(right, 9 * SECOND)
    assert not guard.allows(wrong, 20 * SECOND)
    assert not guard.allows(wrong, 29 * SECOND)
    assert guard.allows(wrong, 30 * SECOND), "ten seconds without its manager: anybody may read"
    assert guard.shown_to(0) == KEY
    assert not guard.allows(Smp(method=METHOD_SET), 30 * SECOND)


def test_a_lease_of_zero_never_ends() -> None:
    info = PortInfo(mkey=KEY, mkey_protect_bits=2)
    guard = MKeyGuard(info)
    assert not any(guard.allows(Smp(method=METHOD_GET), n * 100 * SECOND) for n in range(100))


def test_violations_stop_at_the_top_of_their_counter() -> None:
    info = PortInfo(mkey=KEY, mkey_violations=0xFFFE)
    guard = MKeyGuard(info)
    for _ in range(3):
        assert not guard.allows(Smp(method=METHOD_SET), 0)
    assert info.mkey_violations == 0xFFFF
