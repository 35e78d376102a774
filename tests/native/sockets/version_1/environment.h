/* Penstock's environment protocol, version 1, for C and C++: one header, no library. docs/socket.md describes it.
 *
 * A server describes its environment in a penstock_environment, and calls penstock_listen and penstock_serve, which forks a
 * process for each connection. A client calls penstock_connect, penstock_reset and penstock_step. POSIX, little-endian.
 * Define PENSTOCK_TOKEN_VARIABLE differently to read the secret from another environment variable. */
#ifndef PENSTOCK_ENVIRONMENT_H
#define PENSTOCK_ENVIRONMENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the protocol is little-endian, and this header copies numbers as they are"
#endif

#ifndef PENSTOCK_TOKEN_VARIABLE
#define PENSTOCK_TOKEN_VARIABLE "PENSTOCK_ENVIRONMENT_TOKEN"
#endif

enum { PENSTOCK_VERSION = 1, PENSTOCK_HELLO_BYTES = 36, PENSTOCK_TEXT_BYTES = 1 << 20, PENSTOCK_ENVS = 1 << 16 };
enum {
  PENSTOCK_HELLO = 1,
  PENSTOCK_WELCOME,
  PENSTOCK_RESET,
  PENSTOCK_OBSERVED,
  PENSTOCK_STEP,
  PENSTOCK_STEPPED,
  PENSTOCK_FAILED,
  PENSTOCK_CLOSE
};
static const size_t PENSTOCK_FRAME_BYTES = (size_t)1 << 30;

typedef struct {
  double reward;
  int terminated, truncated;
} penstock_result;

/* An environment. Everything that a step depends on is in its state: `reset` sets all of it from the seed alone. */
typedef struct {
  const char *name;        /* clients ask for socket/<name>; no quotes or backslashes */
  size_t state_bytes;      /* memory of one environment, zero at first */
  size_t observation_size; /* float32 numbers */
  int action_count;        /* choices, which a step gets as an int64_t; or 0 */
  size_t action_size;      /* with action_count 0: float32 numbers between action_low and action_high */
  float action_low, action_high;
  long max_episode_steps;  /* steps after which an episode is truncated; 0: none */
  double reward_threshold; /* NAN: none */
  void (*reset)(void *state, uint64_t seed);
  penstock_result (*step)(void *state, const void *action);
  void (*observe)(const void *state, float *observation);
} penstock_environment;

static inline int penstock_send_all(int fd, const void *data, size_t size) {
  const char *next = (const char *)data;
  while (size > 0) {
    ssize_t sent = send(fd, next, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return -1;
    next += sent, size -= (size_t)sent;
  }
  return 0;
}

static inline int penstock_receive_all(int fd, void *data, size_t size) {
  char *next = (char *)data;
  while (size > 0) {
    ssize_t received = recv(fd, next, size, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return -1;
    next += received, size -= (size_t)received;
  }
  return 0;
}

static inline int penstock_send_frame(int fd, int kind, const void *body, size_t size) {
  unsigned char head[8] = {0};
  uint32_t bytes = (uint32_t)size;
  uint16_t kind16 = (uint16_t)kind;
  memcpy(head, &bytes, 4), memcpy(head + 4, &kind16, 2);
  return penstock_send_all(fd, head, sizeof head) || penstock_send_all(fd, body, size) ? -1 : 0;
}

/* Receives one frame into `body`, which has room for `most` bytes; returns its kind, or -1. */
static inline int penstock_receive_frame(int fd, void *body, size_t most, size_t *size) {
  unsigned char head[8];
  uint32_t bytes;
  uint16_t kind, zero;
  if (penstock_receive_all(fd, head, sizeof head)) return -1;
  memcpy(&bytes, head, 4), memcpy(&kind, head + 4, 2), memcpy(&zero, head + 6, 2);
  if (bytes > most || zero || kind < PENSTOCK_HELLO || kind > PENSTOCK_CLOSE) return -1;
  if (penstock_receive_all(fd, body, bytes)) return -1;
  *size = bytes;
  return kind;
}

static inline void penstock_limit_waits(int fd, double seconds) {
  struct timeval wait;
  int on = 1;
  wait.tv_sec = (time_t)seconds, wait.tv_usec = (suseconds_t)((seconds - floor(seconds)) * 1e6);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* ---- server ---- */

typedef struct {
  const penstock_environment *environment;
  size_t count, action_bytes, row_bytes;
  long limit;
  unsigned char *states;
  long *steps;
  unsigned char *ready;
} penstock_batch;

static inline void *penstock_state(const penstock_batch *batch, size_t index) {
  return batch->states + index * batch->environment->state_bytes;
}

static inline void penstock_begin(const penstock_batch *batch, size_t index, uint64_t seed) {
  batch->environment->reset(penstock_state(batch, index), seed);
  batch->steps[index] = 0, batch->ready[index] = 1;
}

static inline void penstock_observe(const penstock_batch *batch, size_t index, unsigned char *out) {
  batch->environment->observe(penstock_state(batch, index), (float *)(void *)out);
}

static inline int penstock_fail(int fd, const char *text) {
  penstock_send_frame(fd, PENSTOCK_FAILED, text, strlen(text));
  return -1;
}

/* Compares without an early end, so that the time says nothing about the secret. */
static inline int penstock_same_token(const unsigned char *given, size_t size) {
  const char *wanted = getenv(PENSTOCK_TOKEN_VARIABLE);
  size_t length = wanted ? strlen(wanted) : 0, index;
  unsigned differing = length != size;
  for (index = 0; index < size; ++index) differing |= given[index] ^ (unsigned)(unsigned char)(index < length ? wanted[index] : 0);
  return !differing;
}

/* Answers HELLO; returns 0 if the connection goes on. */
static inline int penstock_welcome(int fd, penstock_batch *batch, unsigned char *text) {
  const penstock_environment *environment = batch->environment;
  char answer[1024], action[160], limit[32] = "null", threshold[40] = "null";
  uint32_t numbers[2], lengths[3], head[4];
  int64_t asked;
  size_t size;
  int written;
  if (penstock_receive_frame(fd, text, PENSTOCK_TEXT_BYTES, &size) != PENSTOCK_HELLO || size < PENSTOCK_HELLO_BYTES) return -1;
  memcpy(numbers, text + 8, 8), memcpy(&asked, text + 16, 8), memcpy(lengths, text + 24, 12);
  if (memcmp(text, "PENSTOCK", 8) || size != PENSTOCK_HELLO_BYTES + (size_t)lengths[0] + lengths[1] + lengths[2]) return -1;
  text += PENSTOCK_HELLO_BYTES;
  if (!penstock_same_token(text, lengths[0])) return penstock_fail(fd, "the token is wrong");
  if (numbers[0] != PENSTOCK_VERSION) return penstock_fail(fd, "the server speaks version 1 of the protocol");
  text += lengths[0];
  if (lengths[1] && (lengths[1] != strlen(environment->name) || memcmp(text, environment->name, lengths[1]))) {
    snprintf(answer, sizeof answer, "the server has '%s': ask for socket/%s", environment->name, environment->name);
    return penstock_fail(fd, answer);
  }
  text += lengths[1];
  if (lengths[2] > 2 || (lengths[2] == 2 && memcmp(text, "{}", 2))) return penstock_fail(fd, "the environment has no settings");
  batch->count = numbers[1];
  batch->limit = asked == 0 ? environment->max_episode_steps : asked < 0 ? 0 : (long)asked;
  if (!batch->count || batch->count > PENSTOCK_ENVS || asked < -1 || batch->count * (10 + 2 * batch->row_bytes) > PENSTOCK_FRAME_BYTES ||
      batch->count * (9 + batch->action_bytes) > PENSTOCK_FRAME_BYTES)
    return penstock_fail(fd, "num_envs or max_episode_steps is out of range");
  batch->states = (unsigned char *)calloc(batch->count, environment->state_bytes ? environment->state_bytes : 1);
  batch->steps = (long *)calloc(batch->count, sizeof(long));
  batch->ready = (unsigned char *)calloc(batch->count, 1);
  if (!batch->states || !batch->steps || !batch->ready) return penstock_fail(fd, "no memory for so many environments");
  if (environment->action_count)
    snprintf(action, sizeof action, "{\"kind\":\"discrete\",\"n\":%d}", environment->action_count);
  else
    snprintf(action, sizeof action, "{\"kind\":\"box\",\"dtype\":\"float32\",\"shape\":[%zu],\"low\":%.9g,\"high\":%.9g}",
             environment->action_size, (double)environment->action_low, (double)environment->action_high);
  if (batch->limit) snprintf(limit, sizeof limit, "%ld", batch->limit);
  if (!isnan(environment->reward_threshold)) snprintf(threshold, sizeof threshold, "%.17g", environment->reward_threshold);
  head[0] = PENSTOCK_VERSION, head[1] = (uint32_t)batch->count;
  head[2] = (uint32_t)batch->row_bytes, head[3] = (uint32_t)batch->action_bytes;
  memcpy(answer, head, sizeof head);
  written = snprintf(answer + sizeof head, sizeof answer - sizeof head,
                     "{\"name\":\"%s\",\"observation\":{\"dtype\":\"float32\",\"shape\":[%zu],\"low\":null,\"high\":null},"
                     "\"action\":%s,\"max_episode_steps\":%s,\"reward_threshold\":%s}",
                     environment->name, environment->observation_size, action, limit, threshold);
  if (written < 0 || (size_t)written >= sizeof answer - sizeof head) return -1;
  return penstock_send_frame(fd, PENSTOCK_WELCOME, answer, sizeof head + (size_t)written);
}

/* Steps all that are asked for into `out`; returns the bytes of the answer, or 0 if an action is wrong. */
static inline size_t penstock_step_batch(penstock_batch *batch, const unsigned char *in, unsigned char *out) {
  size_t count = batch->count, index, ended = 0;
  const unsigned char *actions = in + 8 * count, *chosen = actions + batch->action_bytes * count;
  unsigned char *shown = out + 10 * count, *final = shown + batch->row_bytes * count;
  float *row = (float *)malloc(batch->row_bytes);
  memset(out, 0, 10 * count);
  for (index = 0; row && index < count; ++index) {
    const unsigned char *action = actions + index * batch->action_bytes;
    int64_t choice = 0;
    penstock_result result;
    uint64_t seed;
    if (chosen[index]) {
      if (!batch->ready[index]) break;
      if (batch->environment->action_count) memcpy(&choice, action, sizeof choice);
      if (choice < 0 || (batch->environment->action_count && choice >= batch->environment->action_count)) break;
      /* Rows of choices are copied; those of floats lie on their alignment, behind seeds of 8 bytes. */
      result = batch->environment->step(penstock_state(batch, index),
                                        batch->environment->action_count ? (const void *)&choice : (const void *)action);
      if (batch->limit && ++batch->steps[index] >= batch->limit) result.truncated = 1;
      memcpy(out + 8 * index, &result.reward, 8);
      out[8 * count + index] = result.terminated != 0, out[9 * count + index] = result.truncated != 0;
      if (result.terminated || result.truncated) {
        penstock_observe(batch, index, (unsigned char *)row);
        memcpy(final + batch->row_bytes * ended++, row, batch->row_bytes);
        memcpy(&seed, in + 8 * index, 8);
        penstock_begin(batch, index, seed);
      }
    }
    penstock_observe(batch, index, (unsigned char *)row);
    memcpy(shown + batch->row_bytes * index, row, batch->row_bytes);
  }
  free(row);
  if (row && index == count) return 10 * count + batch->row_bytes * (count + ended);
  return 0;
}

static inline void penstock_answer_all(int fd, penstock_batch *batch) {
  size_t count = batch->count, size, index, most = count * (9 + batch->action_bytes);
  size_t room = count * (10 + 2 * batch->row_bytes);
  unsigned char *in = (unsigned char *)malloc(most), *out = (unsigned char *)malloc(room);
  float *row = (float *)malloc(batch->row_bytes);
  for (;;) {
    int kind = in && out && row ? penstock_receive_frame(fd, in, most, &size) : -1;
    if (kind == PENSTOCK_RESET && size == 9 * count) {
      for (index = 0; index < count; ++index) {
        uint64_t seed;
        memcpy(&seed, in + 8 * index, 8);
        if (in[8 * count + index]) penstock_begin(batch, index, seed);
        penstock_observe(batch, index, (unsigned char *)row);
        memcpy(out + batch->row_bytes * index, row, batch->row_bytes);
      }
      if (penstock_send_frame(fd, PENSTOCK_OBSERVED, out, batch->row_bytes * count)) break;
    } else if (kind == PENSTOCK_STEP && size == most) {
      size_t bytes = penstock_step_batch(batch, in, out);
      if (!bytes) {
        penstock_fail(fd, "an action is none of the environment's, or came before the first reset");
        break;
      }
      if (penstock_send_frame(fd, PENSTOCK_STEPPED, out, bytes)) break;
    } else {
      if (kind >= 0 && kind != PENSTOCK_CLOSE) penstock_fail(fd, "expected RESET or STEP of the agreed sizes");
      break;
    }
  }
  free(in), free(out), free(row);
}

/* Listens on an IPv4 address, such as 127.0.0.1; port 0 takes a free one. Returns a descriptor, or -1 with errno.
 * Another address than this machine's own is refused (EACCES) while the token's variable is empty. */
static inline int penstock_listen(const char *host, int port, int *bound) {
  struct sockaddr_in where;
  socklen_t size = sizeof where;
  const char *token = getenv(PENSTOCK_TOKEN_VARIABLE);
  int on = 1, fd;
  memset(&where, 0, sizeof where);
  where.sin_family = AF_INET, where.sin_port = htons((uint16_t)port);
  if (port < 0 || port > 65535 || inet_pton(AF_INET, host, &where.sin_addr) != 1) return errno = EINVAL, -1;
  if ((ntohl(where.sin_addr.s_addr) >> 24) != 127 && !(token && *token)) return errno = EACCES, -1;
  if ((fd = socket(AF_INET, SOCK_STREAM, 0)) < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, (struct sockaddr *)&where, sizeof where) || listen(fd, 128) ||
      getsockname(fd, (struct sockaddr *)&where, &size)) {
    int why = errno;
    close(fd);
    return errno = why, -1;
  }
  if (bound) *bound = ntohs(where.sin_port);
  return fd;
}

/* Serves clients, a process each, until accepting fails. */
static inline int penstock_serve(int listening, const penstock_environment *environment) {
  signal(SIGCHLD, SIG_IGN); /* the kernel collects the processes of connections */
  for (;;) {
    int fd = accept(listening, NULL, NULL);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return -1;
    if (fork() == 0) {
      penstock_batch batch;
      unsigned char *text = (unsigned char *)malloc(PENSTOCK_TEXT_BYTES);
      close(listening);
      memset(&batch, 0, sizeof batch);
      batch.environment = environment;
      batch.row_bytes = 4 * environment->observation_size;
      batch.action_bytes = environment->action_count ? 8 : 4 * environment->action_size;
      penstock_limit_waits(fd, 10.0);
      if (text && penstock_welcome(fd, &batch, text) == 0) {
        penstock_limit_waits(fd, 0.0);
        penstock_answer_all(fd, &batch);
      }
      close(fd);
      _exit(0);
    }
    close(fd);
  }
}

/* ---- client ---- */

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

/* Connects, and makes `count` environments; limit 0 is the environment's own. Waits at most `seconds` for each piece of an answer.
 * Returns 0, or -1 with a text in `error`. */
static inline int penstock_connect(penstock_client *client, const char *host, int port, const char *name, size_t count,
                                   long limit, double seconds) {
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

static inline int penstock_ask(penstock_client *client, int kind, size_t bytes, int answer, void *into, size_t most, size_t *size) {
  int found;
  if (client->fd < 0) return penstock_client_fail(client, "not connected", 255);
  if (penstock_send_frame(client->fd, kind, client->body, bytes)) return penstock_client_fail(client, "the server is gone", 255);
  found = penstock_receive_frame(client->fd, into, most, size);
  if (found == answer) return 0;
  return found == PENSTOCK_FAILED ? penstock_client_fail(client, (char *)into, *size)
                                  : penstock_client_fail(client, "no answer, or none of the protocol", 255);
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
  return size == count * client->observation_bytes ? 0 : penstock_client_fail(client, "an answer of another size", 255);
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
  if (size < 10 * count) return penstock_client_fail(client, "an answer of another size", 255);
  for (index = 0; index < count; ++index) ended += client->terminated[index] || client->truncated[index];
  return size == count * 10 + (count + ended) * client->observation_bytes ? 0 : penstock_client_fail(client, "an answer of another size", 255);
}

#endif
