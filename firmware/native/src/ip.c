#include "ip.h"

#define FIELD(raw, name) ((load32((raw) + name##_AT) >> name##_SHIFT) & name##_MASK)

enum { ENCAPSULATION = IPOIB_HEADER_SIZE };

struct found ip_look(const uint8_t *head, uint64_t head_length, uint64_t length)
{
    struct found found = {IP_NONE, 0, 0}, none = found;
    const uint8_t *ip = head + ENCAPSULATION;
    uint32_t kind;
    uint64_t left;

    if (head_length < ENCAPSULATION + IPV4_HEADER_SIZE)
        return none;
    kind = load16(head + IPOIB_HEADER_TYPE_AT);
    if (kind == ETHER_IPV4) {
        uint32_t words = FIELD(ip, IPV4_HEADER_IHL);

        found = (struct found){IP_V4, ENCAPSULATION + 4 * words, ip[IPV4_HEADER_PROTOCOL_AT]};
        if (FIELD(ip, IPV4_HEADER_VERSION) != 4 || words < 5 ||
            load16(ip + IPV4_HEADER_TOTAL_LENGTH_AT) + (uint64_t)ENCAPSULATION != length ||
            found.transport > head_length)
            return none;
        if (FIELD(ip, IPV4_HEADER_FRAGMENT))
            found.protocol = 0;
    } else if (kind == ETHER_IPV6 && head_length >= ENCAPSULATION + IPV6_HEADER_SIZE) {
        found = (struct found){IP_V6, ENCAPSULATION + IPV6_HEADER_SIZE, ip[IPV6_HEADER_NEXT_HEADER_AT]};
        if (FIELD(ip, IPV6_HEADER_VERSION) != 6 ||
            load16(ip + IPV6_HEADER_PAYLOAD_LENGTH_AT) + (uint64_t)found.transport != length)
            return none;
    } else {
        return none;
    }
    left = length - found.transport;
    if (found.protocol == PROTOCOL_UDP) {
        if (left < UDP_HEADER_SIZE || load16(head + found.transport + UDP_HEADER_LENGTH_AT) != left)
            found.protocol = 0;
    } else if (found.protocol != PROTOCOL_TCP || left < TCP_HEADER_SIZE) {
        found.protocol = 0;
    }
    return found;
}

static uint32_t fold(uint64_t sum)
{
    sum = (sum >> 32) + (sum & 0xFFFFFFFF);
    sum = (sum >> 32) + (sum & 0xFFFFFFFF);
    sum = (sum >> 16) + (sum & 0xFFFF);
    sum = (sum >> 16) + (sum & 0xFFFF);
    return (uint32_t)((sum >> 16) + (sum & 0xFFFF));
}

static uint32_t sum_of(const uint8_t *at, uint64_t size)
{
    uint64_t sum = 0;

    for (; size >= 4; size -= 4, at += 4) {
        uint32_t word;

        memcpy(&word, at, 4);
        sum += word;
    }
    if (size & 2)
        sum += (uint64_t)(at[0] | at[1] << 8);
    if (size & 1)
        sum += at[size - 1];
    return fold(sum);
}

uint32_t ip_sum_pieces(const struct pieces *pieces, uint64_t length)
{
    uint64_t sum = 0, done = 0;

    for (const struct piece *piece = pieces->piece; done < length; piece++) {
        uint64_t size = piece->size < length - done ? piece->size : length - done;
        uint32_t part = sum_of(piece->at, size);

        /* Behind an odd number of bytes the words lie the other way round. */
        sum += done & 1 ? (part >> 8 | (part & 0xFF) << 8) : part;
        done += size;
    }
    return fold(sum);
}

static void store_sum(uint8_t *at, uint32_t sum)
{
    at[0] = (uint8_t)sum;
    at[1] = (uint8_t)(sum >> 8);
}

void ip_fill_header(uint8_t *head, const struct found *found)
{
    uint8_t *checksum = head + ENCAPSULATION + IPV4_HEADER_CHECKSUM_AT;

    if (found->kind != IP_V4)
        return;
    store_sum(checksum, 0);
    store_sum(checksum, 0xFFFF - sum_of(head + ENCAPSULATION, found->transport - ENCAPSULATION));
}

bool ip_header_holds(const uint8_t *head, const struct found *found)
{
    return found->kind == IP_V6 || sum_of(head + ENCAPSULATION, found->transport - ENCAPSULATION) == 0xFFFF;
}

static uint8_t *transport_checksum(const uint8_t *head, const struct found *found)
{
    return (uint8_t *)(uintptr_t)head + found->transport +
           (found->protocol == PROTOCOL_TCP ? TCP_HEADER_CHECKSUM_AT : UDP_HEADER_CHECKSUM_AT);
}

/* The sum of pseudo header, transport header and data. */
static uint32_t transport_sum(const uint8_t *head, uint64_t head_length, const struct found *found, uint64_t length,
                              uint32_t rest)
{
    bool v4 = found->kind == IP_V4;
    const uint8_t *addresses = head + ENCAPSULATION + (v4 ? IPV4_HEADER_ADDRESSES_AT : IPV6_HEADER_ADDRESSES_AT);
    uint8_t more[8];

    store32(more, (uint32_t)(length - found->transport));
    store32(more + 4, found->protocol);
    return fold((uint64_t)sum_of(addresses, v4 ? 8 : 32) + sum_of(more, sizeof(more)) +
                sum_of(head + found->transport, head_length - found->transport) + rest);
}

void ip_fill_transport(uint8_t *head, uint64_t head_length, const struct found *found, uint64_t length, uint32_t rest)
{
    uint8_t *checksum = transport_checksum(head, found);
    uint32_t value;

    store_sum(checksum, 0);
    value = 0xFFFF - transport_sum(head, head_length, found, length, rest);
    store_sum(checksum, !value && found->protocol == PROTOCOL_UDP ? 0xFFFF : value);
}

bool ip_transport_holds(const uint8_t *head, uint64_t head_length, const struct found *found, uint64_t length,
                        uint32_t rest)
{
    /* A UDP checksum of 0 says nothing. */
    if (found->protocol == PROTOCOL_UDP && !load16(transport_checksum(head, found)))
        return false;
    return transport_sum(head, head_length, found, length, rest) == 0xFFFF;
}

static void put_length(uint8_t *head, uint64_t length)
{
    uint32_t kind = load16(head + IPOIB_HEADER_TYPE_AT);

    if (kind == ETHER_IPV4)
        store16(head + ENCAPSULATION + IPV4_HEADER_TOTAL_LENGTH_AT, (uint16_t)(length - ENCAPSULATION));
    else if (kind == ETHER_IPV6)
        store16(head + ENCAPSULATION + IPV6_HEADER_PAYLOAD_LENGTH_AT,
                (uint16_t)(length - ENCAPSULATION - IPV6_HEADER_SIZE));
}

bool ip_can_be_cut(const uint8_t *header, uint64_t header_length)
{
    uint8_t head[MOST_HEADER_BYTES];
    struct found found;

    if (header_length < ENCAPSULATION + IPV4_HEADER_SIZE || header_length > MOST_HEADER_BYTES)
        return false;
    memcpy(head, header, header_length);
    put_length(head, header_length);
    found = ip_look(head, header_length, header_length);
    if (found.kind == IP_NONE || found.protocol != PROTOCOL_TCP)
        return false;
    return found.transport + 4 * (uint64_t)FIELD(head + found.transport, TCP_HEADER_DATA_OFFSET) == header_length &&
           FIELD(head + found.transport, TCP_HEADER_DATA_OFFSET) >= 5;
}

void ip_segment(uint8_t *head, uint64_t head_length, uint32_t number, uint32_t offset, uint64_t size, bool last)
{
    uint64_t length = head_length + size;
    struct found found;
    uint8_t *tcp, *flags;

    put_length(head, length);
    found = ip_look(head, head_length, length);
    if (found.kind == IP_V4) {
        uint8_t *identification = head + ENCAPSULATION + IPV4_HEADER_IDENTIFICATION_AT;

        store16(identification, (uint16_t)(load16(identification) + number));
    }
    tcp = head + found.transport;
    store32(tcp + TCP_HEADER_SEQUENCE_AT, load32(tcp + TCP_HEADER_SEQUENCE_AT) + offset);
    flags = tcp + TCP_HEADER_FLAGS_AT + (31 - TCP_HEADER_FLAGS_SHIFT) / 8;
    if (!last)
        *flags &= (uint8_t)~(TCP_FIN | TCP_PSH);
    if (number)
        *flags &= (uint8_t)~TCP_CWR;
}
