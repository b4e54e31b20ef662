/* SMPs of a program that go there and back at once: from its socket to the agents that they are for, and back.
 *
 * Only the common ones: a Get or Set without M_Key, along cables and to a node that Python has described, of what most of
 * a sweep consists of.  Everything else is handed to Python as it came.  vhca/fabric/swift.py says what is kept where.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "smps.h"

_Static_assert(MOST_TOUCHED >= ENOUGH_TOUCHED + 2 * MOST_HOPS, "one message more has room");

enum {
    VERSION = 1,
    CLASS_DIRECTED = 0x81,
    ANSWERED = 0x81,
    DIRECTION = 0x80,
    PERMISSIVE = 0xff,
};

static uint32_t get_bits(const uint8_t *at, uint32_t start, uint32_t bits)
{
    uint64_t value = 0;
    uint32_t first = start / 8, last = (start + bits - 1) / 8;

    for (uint32_t byte = first; byte <= last; byte++)
        value = value << 8 | at[byte];
    return (uint32_t)(value >> (7 - (start + bits - 1) % 8) & ((1ull << bits) - 1));
}

static void put_bits(uint8_t *at, uint32_t start, uint32_t bits, uint32_t value)
{
    for (uint32_t bit = 0; bit < bits; bit++) {
        uint32_t place = start + bits - 1 - bit;
        uint8_t mask = (uint8_t)(0x80 >> place % 8);

        at[place / 8] = (uint8_t)((value >> bit & 1) ? at[place / 8] | mask : at[place / 8] & ~mask);
    }
}

#define GET(of, field) get_bits(of, field##_START, field##_BITS)
#define PUT(of, field, value) put_bits(of, field##_START, field##_BITS, value)

/* Where a route ended: the node, the number of the port of arrival, and the ports on the way, two for each hop. */
struct way {
    struct smp_node *node;
    uint8_t port;
    uint8_t marks[MOST_HOPS];
    struct smp_port *passed[2 * MOST_HOPS];
};

/* Walk a route; false if it is none, or a cable on it is not one of which Python has said that packets just pass it. */
static bool walk(const struct smp_post *post, const uint8_t *path, uint8_t hops, struct way *way)
{
    struct smp_node *node = post->near;
    struct smp_port *out = &node->ports[0];

    if (!hops || hops > MOST_HOPS || path[1] != out->number)
        return false;
    for (uint8_t hop = 0; hop < hops; hop++) {
        if (hop) {
            if (!node->is_switch || !path[hop + 1] || path[hop + 1] >= node->count)
                return false;
            out = &node->ports[path[hop + 1]];
        }
        if (!out->peer || out->seen != post->cables)
            return false;
        way->passed[2 * hop] = out;
        way->passed[2 * hop + 1] = out->peer;
        way->marks[hop] = out->peer->number;
        node = out->peer->node;
    }
    way->node = node;
    way->port = way->marks[hops - 1];
    return true;
}

/* The port that a modifier names; NULL if that is Python's business. */
static struct smp_port *target_of(const struct way *way, uint32_t number)
{
    struct smp_node *node = way->node;

    if (!node->is_switch)
        return number == 0 || number == way->port ? &node->ports[0] : NULL;
    return number < node->count ? &node->ports[number] : NULL;
}

static void show_port_info(const struct way *way, const struct smp_port *port, uint8_t *data)
{
    memcpy(data, port->info, DATA_BYTES);
    PUT(data, PORT_INFO_LOCAL_PORT_NUM, way->port);
}

/* Read an attribute; false if that is Python's business. */
static bool read_attribute(const struct way *way, uint32_t attribute, uint32_t modifier, uint8_t *data)
{
    const struct smp_node *node = way->node;
    const struct smp_port *port;

    switch (attribute) {
    case ATTRIBUTE_NODE_INFO:
        if (modifier)
            return false;
        memcpy(data, node->info, DATA_BYTES);
        PUT(data, NODE_INFO_LOCAL_PORT_NUM, way->port);
        return true;
    case ATTRIBUTE_NODE_DESCRIPTION:
        if (modifier)
            return false;
        memcpy(data, node->description, DATA_BYTES);
        return true;
    case ATTRIBUTE_PORT_INFO:
        port = target_of(way, modifier & PORT_INFO_PORT);
        if (!port)
            return false;
        show_port_info(way, port, data);
        return true;
    case ATTRIBUTE_P_KEY_TABLE:
        port = node->is_switch ? target_of(way, modifier >> 16) : &node->ports[0];
        if (!port || (modifier & 0xffff) >= port->pkey_blocks)
            return false;
        memcpy(data, port->pkeys + (modifier & 0xffff) * DATA_BYTES, DATA_BYTES);
        return true;
    case ATTRIBUTE_MLNX_EXT_PORT_INFO:
        port = target_of(way, modifier);
        if (!port || (node->is_switch && !modifier))
            return false;
        memcpy(data, port->ext, DATA_BYTES);
        return true;
    default:
        return false;
    }
}

/* Whether what is wanted of a setting is nothing, or what is. */
static bool stays(uint32_t wanted, uint32_t now, uint32_t supported)
{
    return (!wanted || wanted == now) && !(now & ~supported);
}

#define STAYS(what) \
    stays(GET(data, PORT_INFO_##what##_ENABLED), GET(info, PORT_INFO_##what##_ENABLED), \
          GET(info, PORT_INFO_##what##_SUPPORTED))
#define SAME(field) (GET(data, PORT_INFO_##field) == GET(info, PORT_INFO_##field))
#define TAKE(field) PUT(info, PORT_INFO_##field, GET(data, PORT_INFO_##field))

/* Whether what a Set(PortInfo) wants of states and link is legal and changes no more than take_link() does. */
static bool is_usual(const uint8_t *info, const uint8_t *data, uint32_t modifier)
{
    uint32_t now = GET(info, PORT_INFO_PORT_STATE), wanted = GET(data, PORT_INFO_PORT_STATE);
    bool moves = (now == PORT_INIT && wanted == PORT_ARMED) || (now == PORT_ARMED && wanted == PORT_ACTIVE);

    if (now < PORT_INIT || GET(data, PORT_INFO_PORT_PHYSICAL_STATE))
        return false;
    if (wanted && !moves && !(wanted == now && now >= PORT_ARMED))
        return false;
    if (!STAYS(LINK_WIDTH) || !STAYS(LINK_SPEED))
        return false;
    if ((modifier & PORT_INFO_EXTENDED_SPEEDS) &&
        (!stays(GET(data, PORT_INFO_LINK_SPEED_EXT_ENABLED), GET(info, PORT_INFO_LINK_SPEED_EXT_ENABLED),
                GET(info, PORT_INFO_LINK_SPEED_EXT_SUPPORTED)) ||
         !stays(GET(data, PORT_INFO_LINK_SPEED_EXT_ENABLED2), GET(info, PORT_INFO_LINK_SPEED_EXT_ENABLED2),
                GET(info, PORT_INFO_LINK_SPEED_EXT_SUPPORTED2))))
        return false;
    return GET(data, PORT_INFO_NEIGHBOR_MTU) <= GET(info, PORT_INFO_MTU_CAP) &&
           GET(data, PORT_INFO_OPERATIONAL_VLS) <= GET(info, PORT_INFO_VL_CAP);
}

/* What both kinds of ports take over. */
static void take_link(uint8_t *info, const uint8_t *data)
{
    if (GET(data, PORT_INFO_NEIGHBOR_MTU))
        TAKE(NEIGHBOR_MTU);
    if (GET(data, PORT_INFO_OPERATIONAL_VLS))
        TAKE(OPERATIONAL_VLS);
    if (GET(data, PORT_INFO_PORT_STATE))
        TAKE(PORT_STATE);
    TAKE(VL_HIGH_LIMIT);
    TAKE(LOCAL_PHY_ERRORS);
    TAKE(OVERRUN_ERRORS);
}

/* Set(PortInfo) of an external port of a switch; false, and nothing done, if that is Python's. */
static bool write_external(uint8_t *info, const uint8_t *data, uint32_t modifier)
{
    if (!is_usual(info, data, modifier) || !SAME(PARTITION_ENFORCEMENT_INBOUND) ||
        !SAME(PARTITION_ENFORCEMENT_OUTBOUND))
        return false;
    take_link(info, data);
    TAKE(HOQ_LIFE);
    TAKE(VL_STALL_COUNT);
    TAKE(FILTER_RAW_INBOUND);
    TAKE(FILTER_RAW_OUTBOUND);
    if (!GET(data, PORT_INFO_PKEY_VIOLATIONS))
        PUT(info, PORT_INFO_PKEY_VIOLATIONS, 0);
    return true;
}

static bool is_unicast(uint32_t lid)
{
    return lid && lid < MULTICAST_LID_FIRST;
}

/* Set(PortInfo) of an end node's port. */
static bool write_end(uint8_t *info, const uint8_t *data, uint32_t modifier)
{
    uint32_t manager = GET(data, PORT_INFO_SM_LID);

    /* Whoever changes the M_Key is shown it by the old one. */
    if (memcmp(info + PORT_INFO_MKEY_AT, data + PORT_INFO_MKEY_AT, 8) || !is_usual(info, data, modifier) ||
        !is_unicast(GET(data, PORT_INFO_LID)) ||
        (!is_unicast(manager) && manager != PERMISSIVE_LID) ||
        GET(data, PORT_INFO_LINK_DOWN_DEFAULT_STATE) > PHYS_POLLING)
        return false;
    take_link(info, data);
    memcpy(info + PORT_INFO_GID_PREFIX_AT, data + PORT_INFO_GID_PREFIX_AT, 8);
    TAKE(LID);
    TAKE(SM_LID);
    TAKE(MKEY_LEASE_PERIOD);
    TAKE(MKEY_PROTECT_BITS);
    TAKE(LMC);
    TAKE(SM_SL);
    TAKE(SUBNET_TIMEOUT);
    if (GET(data, PORT_INFO_LINK_DOWN_DEFAULT_STATE))
        TAKE(LINK_DOWN_DEFAULT_STATE);
    if (!GET(data, PORT_INFO_MKEY_VIOLATIONS))
        PUT(info, PORT_INFO_MKEY_VIOLATIONS, 0);
    if (!GET(data, PORT_INFO_PKEY_VIOLATIONS))
        PUT(info, PORT_INFO_PKEY_VIOLATIONS, 0);
    if (!GET(data, PORT_INFO_QKEY_VIOLATIONS))
        PUT(info, PORT_INFO_QKEY_VIOLATIONS, 0);
    return true;
}

/* Write an attribute, and put into `data` what the answer shows; false, and nothing done, if that is Python's. */
static bool write_attribute(const struct way *way, uint32_t attribute, uint32_t modifier, uint8_t *data,
                            struct smp_served *served)
{
    struct smp_node *node = way->node;

    struct smp_port *port;
    bool echoed;

    if (attribute == ATTRIBUTE_LINEAR_FORWARDING_TABLE && node->is_switch) {
        uint32_t start = (modifier & 0xffff) * DATA_BYTES;

        if (start + DATA_BYTES > node->lft_bytes)
            return false;
        memcpy(node->lft + start, data, DATA_BYTES);
        served->changes++;
        return true;
    }
    if (attribute != ATTRIBUTE_PORT_INFO)
        return false;
    port = target_of(way, modifier & PORT_INFO_PORT);
    echoed = GET(data, PORT_INFO_CLIENT_REREGISTER);
    if (!node->is_switch) {
        if (!port || !write_end(port->info, data, modifier))
            return false;
    } else {
        /* Port 0 is another kind; and amid a manager's first sweep a switch may have a change to tell. */
        if (!port || port == node->ports || GET(node->switch_info, SWITCH_INFO_PORT_STATE_CHANGE) ||
            !write_external(port->info, data, modifier))
            return false;
        served->changes++;
        if (!port->changed) {
            port->changed = 1;
            served->changed[served->changed_count++] = port->id;
        }
    }
    show_port_info(way, port, data);
    if (echoed)
        PUT(data, PORT_INFO_CLIENT_REREGISTER, 1);
    return true;
}

/* Answer a message in place; false, and nothing done, if that is Python's business. */
static bool answer(const struct smp_post *post, uint8_t *message, struct smp_served *served)
{
    static const uint8_t length[8] = {0, 0, 0, 0, 0, 0, 1, 0};
    uint8_t *mad = message + HEAD_BYTES;
    uint8_t hops = mad[SMP_HOP_COUNT_AT], numbers[4], data[DATA_BYTES];
    struct smp_fabric *fabric = post->fabric;
    uint32_t attribute = (uint32_t)mad[SMP_ATTR_ID_AT] << 8 | mad[SMP_ATTR_ID_AT + 1];
    uint32_t modifier = get_bits(mad, SMP_ATTR_MOD_AT * 8, 32);
    struct way way;
    bool writes = mad[SMP_METHOD_AT] == METHOD_SET;

    if (message[0] != PERMISSIVE || message[1] != PERMISSIVE || memcmp(message + LENGTH_AT, length, sizeof length))
        return false;
    if (mad[0] != VERSION || mad[SMP_MGMT_CLASS_AT] != CLASS_DIRECTED || mad[SMP_CLASS_VERSION_AT] != VERSION)
        return false;
    if ((!writes && mad[SMP_METHOD_AT] != METHOD_GET) || mad[SMP_STATUS_AT] & DIRECTION || mad[SMP_HOP_POINTER_AT])
        return false;
    for (int at = 0; at < 8; at++)
        if (mad[SMP_MKEY_AT + at])
            return false;
    for (int at = 0; at < 4; at++)
        if (mad[SMP_DR_SLID_AT + at] != PERMISSIVE)
            return false;
    /* A request without M_Key has that of its target. */
    if (!walk(post, mad + SMP_INITIAL_PATH_AT, hops, &way) || !way.node->valid)
        return false;
    memcpy(data, mad + SMP_DATA_AT, DATA_BYTES);
    if (!(writes ? write_attribute(&way, attribute, modifier, data, served)
                 : read_attribute(&way, attribute, modifier, data)))
        return false;
    for (uint32_t at = 0; at < 2u * hops; at++)
        if (!way.passed[at]->passed++)
            fabric->touched[fabric->touched_count++] = way.passed[at]->id;
    memcpy(mad + SMP_DATA_AT, data, DATA_BYTES);
    memcpy(mad + SMP_RETURN_PATH_AT + 1, way.marks, hops);
    mad[SMP_METHOD_AT] = ANSWERED;
    mad[SMP_STATUS_AT] = DIRECTION;
    mad[SMP_STATUS_AT + 1] = 0;
    memset(message, 0, DQP_AT);
    message[SLID_AT] = message[SLID_AT + 1] = PERMISSIVE;
    memcpy(numbers, message + DQP_AT, sizeof numbers);
    memcpy(message + DQP_AT, message + SQP_AT, sizeof numbers);
    memcpy(message + SQP_AT, numbers, sizeof numbers);
    memset(message + STATUS_AT, 0, LENGTH_AT - STATUS_AT);
    return true;
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Answer what comes by a socket until it is time, there is nothing more, or something is for Python. */
void vhca_smps_serve(const struct smp_post *post, int fd, int64_t end_ns, struct smp_served *served)
{
    served->sent = served->delivered = served->changes = served->changed_count = 0;
    do {
        ssize_t size = recv(fd, served->message, sizeof served->message, MSG_DONTWAIT);

        served->size = size < 0 ? 0 : (uint32_t)size;
        served->error = size < 0 ? errno : 0;
        if (size < 0) {
            served->why = errno == EAGAIN ? SERVED_ALL : errno == EINTR ? SERVED_SOME : SERVED_FAILED;
            return;
        }
        if (size != MESSAGE_BYTES || !answer(post, served->message, served)) {
            served->why = SERVED_NOT;
            return;
        }
        served->sent++;
        if (send(fd, served->message, MESSAGE_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            served->error = errno;
            served->why = errno == EAGAIN ? SERVED_UNREAD : SERVED_FAILED;
            return;
        }
        served->delivered++;
    } while (post->fabric->touched_count < ENOUGH_TOUCHED && served->changed_count < MOST_CHANGED && now_ns() < end_ns);
    served->why = SERVED_SOME;
}
