/* A client of Penstock's environment protocol for C and C++: with environment.h beside it, no library. docs/socket.md.
 *
 * penstock_connect, penstock_reset and penstock_step; POSIX, little-endian. It speaks version 2 of the protocol, and asks
 * for no masks. */
#ifndef PENSTOCK_CLIENT_H
#define PENSTOCK_CLIENT_H

#include "environment.h"

/* A connection, and the answers to the latest request. Rows are observation_bytes long, `final` has one for each episode
 * that ended, in order; they lie at no alignment, so memcpy them. `description` is the server's JSON. */
typedef struct {
  int fd;
  size_t count, observation_bytes, action_bytes;
  double *reward;
  unsigned char *terminated, *truncated, *observation, *final, *body;
  char *description;
  char error[256];
} penstock_client;

static inline int penstock_client_fail(penstock_client *client, const char *text, size_t size) {
  snprintf(client->error, sizeof client->error, "%.*s", (int)(size < 255 ? size : 255), text);
  return -1;
}

static inline void penstock_disconnect(penstock_client *client) {
  if (client->fd >= 0) penstock_send_frame(client->fd, PENSTOCK_CLOSE, "", 0), close(client->fd);
  free(client->reward), free(client->body), free(client->description);
  memset(client, 0, sizeof *client), client->fd = -1;
}

static inline int penstock_greet(penstock_client *client, const char *host, int port, const char *name, size_t count, long limit,
                                 double seconds) {
  static const char magic[8] = {'P', 'E', 'N', 'S', 'T', 'O', 'C', 'K'};
  const char *token = getenv(PENSTOCK_TOKEN_VARIABLE);
  size_t token_bytes = token ? strlen(token) : 0, name_bytes = strlen(name), size;
  uint32_t numbers[2] = {PENSTOCK_VERSION, (uint32_t)count}, lengths[3] = {(uint32_t)token_bytes, (uint32_t)name_bytes, 2};
  uint32_t head[4];
  int64_t limit64 = limit;
  struct sockaddr_in where;
  unsigned char *text = (unsigned char *)malloc(PENSTOCK_TEXT_BYTES + 1);
  int kind;
  memset(client, 0, sizeof *client), client->fd = -1;
  memset(&where, 0, sizeof where);
  where.sin_family = AF_INET, where.sin_port = htons((uint16_t)port);
  if (!text || !count || count > PENSTOCK_ENVS || token_bytes + name_bytes > 65536 || inet_pton(AF_INET, host, &where.sin_addr) != 1) {
    free(text);
    return penstock_client_fail(client, "the address or a size is wrong", 255);
  }
  client->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (client->fd >= 0) penstock_limit_waits(client->fd, seconds);
  memcpy(text, magic, 8), memcpy(text + 8, numbers, 8), memcpy(text + 16, &limit64, 8), memcpy(text + 24, lengths, 12);
  if (token_bytes) memcpy(text + PENSTOCK_HELLO_BYTES, token, token_bytes);
  memcpy(text + PENSTOCK_HELLO_BYTES + token_bytes, name, name_bytes);
  memcpy(text + PENSTOCK_HELLO_BYTES + token_bytes + name_bytes, "{}", 2);
  size = PENSTOCK_HELLO_BYTES + token_bytes + name_bytes + 2;
  if (client->fd < 0 || connect(client->fd, (struct sockaddr *)&where, sizeof where) ||
      penstock_send_frame(client->fd, PENSTOCK_HELLO, text, size)) {
    free(text);
    return penstock_client_fail(client, strerror(errno), 255);
  }
  kind = penstock_receive_frame(client->fd, text, PENSTOCK_TEXT_BYTES, &size);
  if (kind != PENSTOCK_WELCOME || size < sizeof head) {
    kind == PENSTOCK_FAILED ? penstock_client_fail(client, (char *)text, size) : penstock_client_fail(client, "no WELCOME", 255);
    free(text);
    return -1;
  }
  memcpy(head, text, sizeof head);
  client->count = count, client->observation_bytes = head[2], client->action_bytes = head[3];
  if (head[0] != PENSTOCK_VERSION || head[1] != count || !head[2] || !head[3] ||
      (uint64_t)count * (26 + 2 * (uint64_t)head[2] + head[3]) > PENSTOCK_FRAME_BYTES) {
    free(text);
    return penstock_client_fail(client, "WELCOME has sizes out of range", 255);
  }
  text[size] = 0;
  client->description = (char *)malloc(size - sizeof head + 1);
  client->reward = (double *)malloc(count * (10 + 2 * client->observation_bytes));
  client->body = (unsigned char *)malloc(count * (9 + client->action_bytes));
  if (client->description) memcpy(client->description, text + sizeof head, size - sizeof head + 1);
  free(text);
  if (!client->description || !client->reward || !client->body) return penstock_client_fail(client, "no memory", 255);
  client->terminated = (unsigned char *)(client->reward + count), client->truncated = client->terminated + count;
  client->observation = client->truncated + count, client->final = client->observation + count * client->observation_bytes;
  return 0;
}

/* Connects, and makes `count` environments; limit 0 is the environment's own. Waits at most `seconds` for each piece of an answer.
 * Returns 0, or -1 with a text in `error`; nothing is held then. */
static inline int penstock_connect(penstock_client *client, const char *host, int port, const char *name, size_t count,
                                   long limit, double seconds) {
  if (!penstock_greet(client, host, port, name, count, limit, seconds)) return 0;
  if (client->fd >= 0) close(client->fd);
  free(client->reward), free(client->body), free(client->description);
  client->fd = -1, client->reward = NULL, client->body = NULL, client->description = NULL;
  return -1;
}

/* Ends the connection, as a later answer to this request would be taken for that of the next one. Returns -1. */
static inline int penstock_give_up(penstock_client *client, const char *text, size_t size) {
  close(client->fd), client->fd = -1;
  return penstock_client_fail(client, text, size);
}

static inline int penstock_ask(penstock_client *client, int kind, size_t bytes, int answer, void *into, size_t most, size_t *size) {
  int found;
  if (client->fd < 0) return penstock_client_fail(client, "not connected", 255);
  if (penstock_send_frame(client->fd, kind, client->body, bytes)) return penstock_give_up(client, "the server is gone", 255);
  found = penstock_receive_head(client->fd, size);
  if (found == answer && *size <= most && !penstock_receive_all(client->fd, into, *size)) return 0;
  if (found == PENSTOCK_FAILED) {
    char text[256];
    size_t shown = *size < sizeof text ? *size : sizeof text - 1;
    if (!penstock_receive_all(client->fd, text, shown)) return penstock_give_up(client, text, shown);
  }
  return penstock_give_up(client, "no answer, or none of the protocol", 255);
}

/* Starts episodes with these seeds where `chosen` is 1 (NULL: everywhere); writes `observation`. Returns 0, or -1. */
static inline int penstock_reset(penstock_client *client, const uint64_t *seeds, const unsigned char *chosen) {
  size_t count = client->count, size;
  if (!client->body) return penstock_client_fail(client, "not connected", 255);
  memcpy(client->body, seeds, 8 * count);
  if (chosen) memcpy(client->body + 8 * count, chosen, count);
  else memset(client->body + 8 * count, 1, count);
  if (penstock_ask(client, PENSTOCK_RESET, 9 * count, PENSTOCK_OBSERVED, client->observation, count * client->observation_bytes, &size))
    return -1;
  return size == count * client->observation_bytes ? 0 : penstock_give_up(client, "an answer of another size", 255);
}

/* Steps where `chosen` is 1 (NULL: everywhere). An episode that ends is followed by one with its seed of `next_seeds`,
 * whose first observation is in `observation`; the last one of the ended is in `final`. Returns 0, or -1. */
static inline int penstock_step(penstock_client *client, const uint64_t *next_seeds, const void *actions, const unsigned char *chosen) {
  size_t count = client->count, size, index, ended = 0;
  if (!client->body) return penstock_client_fail(client, "not connected", 255);
  memcpy(client->body, next_seeds, 8 * count), memcpy(client->body + 8 * count, actions, count * client->action_bytes);
  if (chosen) memcpy(client->body + (8 + client->action_bytes) * count, chosen, count);
  else memset(client->body + (8 + client->action_bytes) * count, 1, count);
  if (penstock_ask(client, PENSTOCK_STEP, (9 + client->action_bytes) * count, PENSTOCK_STEPPED, client->reward,
                   count * (10 + 2 * client->observation_bytes), &size))
    return -1;
  if (size < 10 * count) return penstock_give_up(client, "an answer of another size", 255);
  for (index = 0; index < count; ++index) ended += client->terminated[index] || client->truncated[index];
  return size == count * 10 + (count + ended) * client->observation_bytes ? 0 : penstock_give_up(client, "an answer of another size", 255);
}

#endif
