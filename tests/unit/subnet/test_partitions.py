"""Partitions: the file that describes them, tables in cards and switches, and what the SA then shows to whom."""

import pytest

from tests.unit.fabric.bench import Bench, Card
from tests.unit.subnet.test_administration import query
from vhca.subnet import partition_file
from vhca.subnet.multicast import IPOIB_BROADCAST
from vhca.subnet.partition_file import PartitionError, read
from vhca.subnet.partitions import Group, Member, Partition, Partitions, shared
from vhca.wire import mad as m

# That of opensm's manual, with a card and a host by their names.
EXAMPLE = """
Default=0x7fff : ALL, SELF=full ;
Default : ALL_SWITCHES=full;

NewPartition , ipoib : 0x123456=full, 0x3456789034=limi, 0x2134af2306 ;

YetAnotherOne = 0x300 : SELF=full ;
YetAnotherOne = 0x8300 : ALL=limited ;  # the same one

ShareIO = 0x80 , defmember=full : 0x123451, h0,
   0x123453=both
   node-7 ; 0x99, indx0 : ;
Default=0x7fff,ipoib,mtu=5,rate=16:
   mgid=ff12:401b::0707,sl=1 # random IPv4 group
   mgid=ff12::1,sl=1,Q_Key=0xDEADBEEF,rate=3,mtu=2,scope=5,scope=8
   ALL=full;
"""


def test_the_file_of_opensm_s_manual_is_understood() -> None:
    found = read(EXAMPLE)
    by_pkey = {one.pkey: one for one in found.partitions}
    assert {pkey: one.name for pkey, one in by_pkey.items()} == {
        0x7FFF: "Default", 1: "NewPartition", 0x300: "YetAnotherOne", 0x80: "ShareIO", 0x99: "",
    }  # fmt: skip
    assert by_pkey[0x7FFF].members == [
        Member("ALL"), Member("SELF", "full"), Member("ALL"), Member("SELF", "full"), Member("ALL_SWITCHES", "full"),
        Member("ALL", "full"),
    ]  # fmt: skip
    assert by_pkey[1].members == [Member(0x123456, "full"), Member(0x3456789034), Member(0x2134AF2306)]
    assert by_pkey[0x300].members == [Member("SELF", "full"), Member("ALL")]
    assert by_pkey[0x80].members == [
        Member(0x123451, "full"), Member("h0", "full"), Member(0x123453, "both"), Member("node-7", "full"),
    ]  # fmt: skip
    assert by_pkey[0x99].first
    assert found.has_both
    assert list(found.groups) == [
        Group(bytes.fromhex("ff12401b8001000000000000ffffffff"), 0x8001, 0xB1B),
        Group(IPOIB_BROADCAST, 0xFFFF, 0xB1B, mtu=5, rate=16),
        Group(bytes.fromhex("ff12401bffff00000000000000000707"), 0xFFFF, 0xB1B, 5, 16, sl=1),
        Group(bytes.fromhex("ff150000000000000000000000000001"), 0xFFFF, 0xDEADBEEF, 2, 3, sl=1),
        Group(bytes.fromhex("ff180000000000000000000000000001"), 0xFFFF, 0xDEADBEEF, 2, 3, sl=1),
    ]


def test_what_is_written_for_opensm_is_the_same() -> None:
    found = read(EXAMPLE).with_cards({"h0": 0xA0, "node-7": 0xA7})
    text = partition_file.write(found)
    assert "h0" not in text
    # OpenSM takes no MGID of IP with the bit of full members in its P_Key.
    assert "NewPartition=0x0001, ipoib, " in text
    assert "mgid=ff12:401b::707\n" in text
    again = read(text)
    tables = [
        {guid: partitions._table(guid, switch, own_guid=0xA0) for guid in (0x123451, 0x123453, 0xA0, 0xA7, 5)}
        for partitions in (found, again)
        for switch in (False, True)
    ]
    assert tables[:2] == tables[2:]
    assert set(again.groups) == set(found.groups)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("A=1 : ALL", "line 1: a semicolon is missing"),
        ("\nA=1 ALL ;", "line 2: there is no colon"),
        ("A=x : ALL ;", "line 1: 'x' is no P_Key"),
        ("A=0x12345 : ALL ;", "P_Key 0x12345 is not in"),
        ("A=1 : ALL=fool ;", "'fool' is no membership"),
        ("A=1 : ALL= ;", "'' is no membership"),
        ("A=1, defmember=x : ALL ;", "'x' is no membership"),
        ("A=1, sl=16 : ALL ;", "sl 16 is not in"),
        ("A=1, mtu=0 : ALL ;", "mtu is 0"),
        ("A=1, what=0 : ALL ;", "'what' is no flag"),
        ("A=1 : ALL,\n\n  1h ;", "line 3: '1h' is no port GUID"),
        ("A=1 :\n mgid=fe80::1\n ;", "line 2: 'fe80::1' is no multicast GID"),
        ("A=1, ipoib, mtu=4 :\n mgid=ff12:401b::1,mtu=3\n ;", "line 2: a group of IP has the mtu of its"),
        ("A=1 :\n mgid=ff12:401b:8002::1\n ;", "line 2: the GID has another P_Key"),
        ("A=1 : " + "1" * (1 << 20) + ";", "more than 1 MiB"),
        ("".join(f"N{n}: ;\n" for n in range(1 << 15)), "line 32767: there is no P_Key left"),
        ("\n\na\n" + "b\n" * 300_000, "line 3: a semicolon is missing"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(PartitionError, match=complaint):
        read(text)


def test_a_card_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError, match="h7"):
        read("A=1 : h7 ;").with_cards({"h0": 1})


def test_who_may_speak_to_whom() -> None:
    full, limited = 0x8001, 0x0001
    assert shared([full], [full]) == shared([full], [limited]) == [full]
    assert shared([limited], [full]) == [limited]
    assert shared([limited], [limited]) == shared([full], [0x8002]) == shared([0], [0]) == []
    assert shared([limited, full, 0xFFFF], [full, 0x7FFF]) == [full, 0xFFFF, limited]


def members(**guids: str) -> list[Member]:
    return [Member(int(guid[1:], 16), membership) for guid, membership in guids.items()]  # type: ignore[arg-type]


# Cards 0 and 1 are full members, 2 is a limited one, 3 is in no partition but the default one.
THREE = Partitions(
    [
        Partition("Default", 0x7FFF, members=[Member("ALL"), Member("SELF", "full")]),
        Partition("one", 1, members=members(x1000="full", x1001="full", x1002="limited")),
        Partition("two", 2, True, members=members(x1002="both")),
    ]
)
TABLES = [[0x7FFF, 0x8001], [0x7FFF, 0x8001], [0x8002, 2, 0x7FFF, 1], [0x7FFF]]


class PartitionBench(Bench):
    def __init__(self, partitions: Partitions = THREE) -> None:
        super().__init__(4, partitions=partitions)
        self.run()

    @property
    def tables(self) -> list[list[int]]:
        return [[pkey for pkey in card.sma.port(1).pkeys if pkey] for card in self.cards]


def test_cards_get_their_tables_before_they_are_active_and_again_after_a_reset() -> None:
    bench = PartitionBench()
    assert bench.tables == TABLES
    assert bench.fabric.active()
    card = bench.cards[0]
    card.port.set_enabled(False)
    card.sma = type(card.sma)(card.sma.board)
    bench.run()
    card.port.set_enabled(True)
    bench.run()
    assert bench.tables == TABLES
    bench.cards[1].sma.port(1).pkeys = (0xFFFF, 0x8001, *[0] * 126)
    bench.pass_time(11)
    assert bench.tables == TABLES, "what a host wrote itself is set back"
    sets = bench.fabric.counters().get("sm.changed_pkeys", 0)
    bench.pass_time(25)
    assert bench.fabric.counters()["sm.changed_pkeys"] == sets == 1


def test_tables_of_any_length_are_written_and_kept() -> None:
    many = [Partition(f"p{pkey}", pkey, members=members(x1000="full")) for pkey in range(1, 70)]
    bench = PartitionBench(Partitions([THREE.partitions[0], *many]))
    wanted = [0x7FFF, *(pkey | 0x8000 for pkey in range(1, 70))]
    assert bench.tables[0] == wanted
    port = bench.cards[0].sma.port(1)
    port.pkeys = (*port.pkeys[:100], 0x8099, *port.pkeys[101:])
    bench.pass_time(12)
    assert bench.tables[0] == wanted, "whatever a host puts behind its end"


def test_switches_look_at_the_ports_of_cards_if_they_are_to() -> None:
    bench = PartitionBench(Partitions(THREE.partitions, enforced=True))
    a, b, c, d = bench.cards
    ports = bench.fabric.switch.ports
    assert [[pkey for pkey in port.pkeys if pkey] for port in ports[1:5]] == TABLES
    assert all(port.info.partition_enforcement_inbound for port in ports[1:5])
    assert not any(port.info.partition_enforcement_inbound for port in ports[5:])

    def hear(sender: Card, receiver: Card, pkey: int) -> bool:
        receiver.inbox.clear()
        packet = sender.data(receiver.lid)
        packet.pkey = pkey
        sender.port.send(packet)
        bench.run()
        return bool(receiver.inbox)

    assert hear(a, b, 0x8001)
    assert hear(a, c, 0x8001)
    assert hear(c, a, 0x0001)
    assert not hear(a, b, 0xFFFF), "the port is a limited member there"
    assert not hear(c, b, 0x8001), "so is this one here"
    assert not hear(d, a, 0x8001)
    assert not hear(a, d, 0x8001)
    # What a host writes into its own card's table changes nothing at the switch.
    d.sma.port(1).pkeys = (0xFFFF, 0x8001, *[0] * 126)
    assert not hear(d, a, 0x8001)
    # A table of a switch that somebody changed is set right.
    ports[4].pkeys = (0x8001, *ports[4].pkeys[1:])
    bench.pass_time(12)
    assert [pkey for pkey in ports[4].pkeys if pkey] == TABLES[3]


def test_the_directory_answers_as_what_it_is() -> None:
    """A limited member asks as such; who answers is a full member, and the switch lets that out."""
    bench = PartitionBench(Partitions(THREE.partitions, enforced=True))
    answers = bench.sa(bench.cards[3], query(m.METHOD_GET, m.ATTR_CLASS_PORT_INFO), pkey=0x7FFF)
    assert [answer.status for answer in answers] == [0]
    assert bench.cards[3].inbox[-1].pkey == 0xFFFF
