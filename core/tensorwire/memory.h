// SPDX-License-Identifier: Apache-2.0
// The C ABI: the arena, buffers, received messages and metadata.
#ifndef TENSORWIRE_MEMORY_H
#define TENSORWIRE_MEMORY_H

#include "tensorwire/values.h"

#ifdef __cplusplus
extern "C" {
#endif

// What readers of a publication may have on lease, in bytes of arena memory: it counts in nothing
// else, so that no other lease makes copies of the publication, and it none of others. Null: no
// memory. Memory that was allocated within it keeps it.
tw_quota* tw_quota_create(size_t bytes);
size_t tw_quota_leased(const tw_quota* quota);
// How many blocks were copied for a reader so far, because the quota was used up.
uint64_t tw_quota_copied(const tw_quota* quota);
void tw_quota_release(tw_quota* quota);
// Writable arena memory, aligned to 4096 bytes from one page up, else to 64. RESOURCE_EXHAUSTED
// when the arena stays full. Leases of it count within the quota, null: within none. Below a page
// nothing is lent.
int tw_allocate(tw_quota* quota, size_t size, const tw_wait* wait, tw_buffer** out,
                tw_status* status);
// Marks the arena block around [data, data + size) as published. 0: the bytes do not lie in the
// arena.
int tw_publish(const void* data, size_t size);
int tw_published(const void* data, size_t size);
// The values of tw_memory_counters, as many as there is room for. Their number; 0: no memory.
size_t tw_arena(uint64_t* values, size_t room);
// For allocators: a block of at least a page without a handle, aligned to 4096 bytes. Null: the
// arena has no room now, and somebody else should serve; for more than an eighth of the arena also
// when less than an eighth would be left, which is kept for smaller blocks.
void* tw_arena_allocate(size_t size);
// Whether [data, data + size) lies in one live block of the arena.
int tw_arena_holds(const void* data, size_t size);
// Gives such a block back; peers that have it on lease keep it. 0: it is none.
int tw_arena_free(void* data);

// Memory made to be accessed by peers (tw_peer_expose): zeroed, at a page, and a file of its own,
// which peers over shared memory map instead of asking for each operation. A peer that has it
// mapped may write anything there at any time: nothing in it is to be trusted twice.
// RESOURCE_EXHAUSTED, INVALID_ARGUMENT (no bytes).
int tw_shared_create(size_t size, tw_shared** out, tw_status* status);
void* tw_shared_data(const tw_shared* shared);
size_t tw_shared_size(const tw_shared* shared);
// It lasts as long as a region of it is exposed.
void tw_shared_release(tw_shared* shared);

// A word of such memory, 8 bytes at a multiple of 8, and how much it is waited for to be at least.
// nudges: what tw_shared_nudges said before the caller looked at anything else that it waits for.
typedef struct tw_shared_word {
  tw_shared* memory;
  uint64_t offset;
  uint64_t at_least;
  uint32_t nudges;
} tw_shared_word;
// Waits until one of the words is at least so much, or the memory of one was nudged. It polls for a
// while, then sleeps until a peer, tw_peer_change_word or tw_shared_nudge has changed one; a plain
// store wakes nobody. Up to 128 words wake it, by Linux 5.16 or newer; else, and where a device
// stores, it looks each millisecond. DEADLINE_EXCEEDED, OUT_OF_RANGE, INVALID_ARGUMENT.
int tw_shared_wait_any(const tw_shared_word* words, size_t count, const tw_wait* wait,
                       tw_status* status);
// Ends waits for words of this memory. How often that was done.
void tw_shared_nudge(tw_shared* shared);
uint32_t tw_shared_nudges(const tw_shared* shared);

// As memcpy, at the speed of the machine where there is much to copy.
void tw_copy(void* to, const void* from, size_t size);
typedef struct tw_copying {
  void* to;
  const void* from;
  size_t size;
} tw_copying;
// The same of several, none of which goes where another one comes from.
void tw_copy_all(const tw_copying* copies, size_t count);

// The arena's memory, and memory of messages that were received, go back to the system where they
// lie idle. Without it that takes a minute. What was posted (tw_post) has its minute all the same.
void tw_trim(void);

void* tw_buffer_data(const tw_buffer* buffer);
size_t tw_buffer_size(const tw_buffer* buffer);
int tw_buffer_readonly(const tw_buffer* buffer);
int tw_buffer_leased(const tw_buffer* buffer);
// Call before code of the user can reach a received buffer's bytes (it may write to them in spite
// of everything).
void tw_buffer_expose(tw_buffer* buffer);
// Ahead of code that will write: no other buffer shows its writes. The bytes may move, so nobody
// may hold an address that tw_buffer_data gave before. RESOURCE_EXHAUSTED: no mapping is to be had.
int tw_buffer_separate(tw_buffer* buffer, tw_status* status);
void tw_buffer_release(tw_buffer* buffer);

size_t tw_message_count(const tw_message* message);
size_t tw_message_size(const tw_message* message);  // bytes of all segments
tw_segment tw_message_segment(const tw_message* message, size_t index);
// All segments, one after the other, at the speed of the machine. `to`: tw_message_size bytes that
// nothing has been written to yet, so that it gets huge pages where the system has them.
void tw_message_copy(const tw_message* message, void* to);
// Whether a segment lies in the sender's memory.
int tw_message_leased(const tw_message* message);

// Posts memory for a message of one segment that is received by copy and has exactly `size` bytes,
// TW_SMALLEST_POSTED at least, over whatever link: nothing else has to touch it then. Nobody else
// may meanwhile. A few can be posted; the oldest go, and what nobody needed for a minute. `owner`
// is told of each that goes, perhaps before this returns.
#define TW_SMALLEST_POSTED (4u << 20)
void tw_post(void* data, size_t size, const tw_owner* owner);
// The context of the owner whose memory the message has been received into, and who has that memory
// back; from then on the message may only be released. Null: it lies somewhere else.
void* tw_message_posted(tw_message* message);
// A new reference; null: no memory.
tw_buffer* tw_message_buffer(tw_message* message, size_t index);
void tw_message_release(tw_message* message);

// Null counts as empty.
void tw_metadata_each(const tw_metadata* metadata, tw_visit_pair visit, void* context);
void tw_metadata_release(tw_metadata* metadata);

#ifdef __cplusplus
}
#endif

#endif  // TENSORWIRE_MEMORY_H
