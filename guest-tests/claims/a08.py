"""A08: where a process has its queues and doorbells: its memory map, as the kernel keeps it."""

from common import Endpoint, arguments, e, say, tell

options = arguments()
end = Endpoint()
other = end.card()
end.connect(other)  # a QP may have itself as its peer
with open("/proc/self/maps") as lines:
    maps = [line.split() for line in lines]
mapped = []
for words in maps:
    if len(words) > 5 and "uverbs" in words[5]:
        say(*words)
        low, high = (int(part, 16) for part in words[0].split("-"))
        mapped.append({"low": low, "high": high, "rights": words[1], "offset": int(words[2], 16), "file": words[5]})
areas = [
    [*(int(part, 16) for part in words[0].split("-")), words[5] if len(words) > 5 else "anonymous"]
    for words in maps
    if len(words) < 6 or words[5].startswith(("[heap]", "/dev/"))
]
end.post_recv()
end.post_send(e.IBV_WR_SEND)
done = [wc.status for wc in end.poll(2)]
tell(mapped=mapped, areas=areas, done=done, buffer=end.memory.address)
