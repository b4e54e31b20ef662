/* IP over InfiniBand, as `vhca/wire/ipoib.py` has it: what a packet is, its checksums, segments of large sends.
 *
 * Sums are of 16-bit words as they lie in memory, which is the checksum with its bytes swapped.
 */
#ifndef VHCA_IP_H
#define VHCA_IP_H

#include "formats.h"
#include "memory.h"

enum ip_kind { IP_NONE, IP_V4, IP_V6 };

/* `protocol` is 0 where there is no transport checksum to compute. */
struct found {
    enum ip_kind kind;
    uint32_t transport, protocol;
};

/* Look at a packet of `length` bytes, of which `head` holds the headers; IP_NONE if it is not what it says. */
struct found ip_look(const uint8_t *head, uint64_t head_length, uint64_t length);

/* The sum of the first `length` bytes in pieces. */
uint32_t ip_sum_pieces(const struct pieces *pieces, uint64_t length);

void ip_fill_header(uint8_t *head, const struct found *found);

/* `rest` is the sum of what is behind `head`. */
void ip_fill_transport(uint8_t *head, uint64_t head_length, const struct found *found, uint64_t length, uint32_t rest);

bool ip_header_holds(const uint8_t *head, const struct found *found);

bool ip_transport_holds(const uint8_t *head, uint64_t head_length, const struct found *found, uint64_t length,
                        uint32_t rest);

/* Tell whether these are exactly the headers of IPoIB, IP and TCP. */
bool ip_can_be_cut(const uint8_t *header, uint64_t header_length);

/* Make the headers of a large send those of segment `number`, which has `size` bytes of data from `offset` on. */
void ip_segment(uint8_t *head, uint64_t head_length, uint32_t number, uint32_t offset, uint64_t size, bool last);

#endif
