"""How close two guests come to the rate that a cable was given: `python -m tests.bench.bench_rates`."""

from __future__ import annotations

from typing import Final

from vhca.fabric import LineConfig
from vhca.lab import Lab
from vhca.lab.perftest import perftest, perftest_values, run_exchange, wait_port_active

RATES_GBPS: Final = (0.1, 0.5, 1, 2, 4, 8, 25)
LATENCIES_US: Final = (0, 10, 100, 1000)


def main() -> None:
    """Print rates and latencies that were set, and what guests measure."""
    with Lab(2) as lab:
        server, client = lab.guests
        for guest in (server, client):
            wait_port_active(guest)
        print("rate set, Gbit/s    ib_write_bw, 64 KiB, Gbit/s    share")
        for rate in RATES_GBPS:
            lab.fabric.set_line("g1/1", LineConfig(rate_bps=round(rate * 1e9)))
            rounds = max(200, round(rate * 1500))
            values = ended(lab, "ib_write_bw", 65536, rounds, "BW average")
            got = float(values[3]) * (1 << 20) * 8 / 1e9
            print(f"{rate:16}    {got:27.3f}    {got / rate:5.2f}", flush=True)
        print("latency set, us    ib_write_lat, 8 B, us")
        for latency in LATENCIES_US:
            lab.fabric.set_line("g1/1", LineConfig(latency_ns=latency * 1000))
            values = ended(lab, "ib_write_lat", 8, 200, "t_typical")
            print(f"{latency:15}    {float(values[4]):21.1f}", flush=True)


def ended(lab: Lab, program: str, size: int, rounds: int, heading: str) -> list[str]:
    """The result of a program of perftest."""
    ends = run_exchange(lab.guests[0], lab.guests[1], perftest(program, size, rounds), timeout_s=120)
    assert [end.returncode for end in ends] == [0, 0], ends
    return perftest_values(ends[1].stdout, heading)


if __name__ == "__main__":
    main()
