/* A server of Penstock's environment protocol for C and C++: this header and spaces.h, no library. docs/socket.md.
 *
 * A server describes its environment in a penstock_environment, and calls penstock_listen and penstock_serve, which forks a
 * process for each connection. POSIX, little-endian. It speaks versions 1 and 2 of the protocol. client.h is the other end.
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

#include "spaces.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the protocol is little-endian, and this header copies numbers as they are"
#endif

#ifndef PENSTOCK_TOKEN_VARIABLE
#define PENSTOCK_TOKEN_VARIABLE "PENSTOCK_ENVIRONMENT_TOKEN"
#endif

enum { PENSTOCK_PLAIN_VERSION = 1, PENSTOCK_VERSION = 2, PENSTOCK_MASKS = 1, PENSTOCK_HELLO_BYTES = 36, PENSTOCK_TEXT_BYTES = 1 << 20, PENSTOCK_ENVS = 1 << 16 };
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

typedef struct {
  double reward;
  int terminated, truncated;
} penstock_result;

/* An environment. Everything that a step depends on is in its state: `reset` sets all of it from the seed alone. */
typedef struct {
  const char *name;        /* clients ask for socket/<name>; no quotes or backslashes */
  size_t state_bytes;      /* memory of one environment, zero at first */
  size_t observation_size; /* float32 numbers, which `observe` writes; or 0 with leaves */
  int action_count;        /* choices, which a step gets as an int64_t; or 0 */
  size_t action_size;      /* with action_count 0: float32 numbers between action_low and action_high; or 0 with leaves */
  float action_low, action_high;
  long max_episode_steps;  /* steps after which an episode is truncated; 0: none */
  double reward_threshold; /* NAN: none */
  void (*reset)(void *state, uint64_t seed);
  penstock_result (*step)(void *state, const void *action);
  void (*observe)(const void *state, float *observation);
  /* NULL, or with action_count: writes 1 for each choice that is allowed now, into bytes that are 0. A run asks for it by
   * environment.action_mask = "info". No step gets another choice. Not called once an episode has ended. */
  void (*action_mask)(const void *state, unsigned char *allowed);
  /* Spaces of several parts or other types, in place of the sizes above. A row has its leaves one after the other without
   * padding, so memcpy numbers: penstock_offset tells where a leaf begins. `observe_leaves` then writes a row in place of
   * `observe`; where there are action leaves, a step gets a row of these. */
  const penstock_leaf *observation_leaves, *action_leaves;
  size_t observation_leaf_count, action_leaf_count;
  void (*observe_leaves)(const void *state, unsigned char *row);
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

/* Receives the head of a frame, whose body of `size` bytes follows; returns its kind, or -1. */
static inline int penstock_receive_head(int fd, size_t *size) {
  unsigned char head[8];
  uint32_t bytes;
  uint16_t kind, zero;
  if (penstock_receive_all(fd, head, sizeof head)) return -1;
  memcpy(&bytes, head, 4), memcpy(&kind, head + 4, 2), memcpy(&zero, head + 6, 2);
  *size = bytes;
  return zero || kind < PENSTOCK_HELLO || kind > PENSTOCK_CLOSE ? -1 : kind;
}

/* Receives one frame into `body`, which has room for `most` bytes; returns its kind, or -1. */
static inline int penstock_receive_frame(int fd, void *body, size_t most, size_t *size) {
  int kind = penstock_receive_head(fd, size);
  return kind < 0 || *size > most || penstock_receive_all(fd, body, *size) ? -1 : kind;
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
  penstock_leaf plain_observation, plain_action; /* of an environment that states sizes */
  const penstock_leaf *observations, *actions;
  size_t observation_count, action_count;
  size_t count, action_bytes, row_bytes;
  size_t mask_bytes; /* at the beginning of a row; 0 if the client did not ask for masks */
  long limit;
  unsigned char *states;
  long *steps;
  unsigned char *ready;
} penstock_batch;

/* Finds the leaves of an environment; returns 0, or -1 where it states none, or wrong ones. */
static inline int penstock_lay_out(penstock_batch *batch, const penstock_environment *environment) {
  penstock_leaf *seen = &batch->plain_observation, *action = &batch->plain_action;
  memset(batch, 0, sizeof *batch);
  batch->environment = environment;
  seen->axes = 1, seen->shape[0] = environment->observation_size, seen->low = -INFINITY, seen->high = INFINITY;
  action->axes = !environment->action_count, action->shape[0] = environment->action_size;
  action->kind = environment->action_count ? PENSTOCK_DISCRETE : PENSTOCK_BOX, action->choices = environment->action_count;
  action->low = environment->action_low, action->high = environment->action_high;
  batch->observations = environment->observation_leaf_count ? environment->observation_leaves : seen;
  batch->observation_count = environment->observation_leaf_count ? environment->observation_leaf_count : 1;
  batch->actions = environment->action_leaf_count ? environment->action_leaves : action;
  batch->action_count = environment->action_leaf_count ? environment->action_leaf_count : 1;
  if (environment->observation_leaf_count ? environment->observation_size || !environment->observe_leaves : !environment->observe) return -1;
  if (environment->action_leaf_count && (environment->action_count || environment->action_size)) return -1;
  if (!penstock_leaves_are_right(batch->observations, batch->observation_count) ||
      !penstock_leaves_are_right(batch->actions, batch->action_count))
    return -1;
  batch->row_bytes = penstock_offset(batch->observations, batch->observation_count);
  batch->action_bytes = penstock_offset(batch->actions, batch->action_count);
  return 0;
}

static inline void *penstock_state(const penstock_batch *batch, size_t index) {
  return batch->states + index * batch->environment->state_bytes;
}

static inline void penstock_begin(const penstock_batch *batch, size_t index, uint64_t seed) {
  batch->environment->reset(penstock_state(batch, index), seed);
  batch->steps[index] = 0, batch->ready[index] = 1;
}

/* Writes a row, whose floats lie at no alignment behind a mask: `row` is room for them. Zeros before the first reset. */
static inline void penstock_observe(const penstock_batch *batch, size_t index, int ended, float *row, unsigned char *out) {
  size_t choice;
  if (!batch->ready[index]) {
    memset(out, 0, batch->row_bytes);
    return;
  }
  if (batch->environment->observation_leaf_count) {
    batch->environment->observe_leaves(penstock_state(batch, index), out + batch->mask_bytes);
  } else {
    batch->environment->observe(penstock_state(batch, index), row);
    memcpy(out + batch->mask_bytes, row, batch->row_bytes - batch->mask_bytes);
  }
  if (!batch->mask_bytes) return;
  memset(out, ended != 0, batch->mask_bytes);
  if (ended) return;
  batch->environment->action_mask(penstock_state(batch, index), out);
  for (choice = 0; choice < batch->mask_bytes; ++choice) out[choice] = out[choice] != 0;
}

/* Whether the environment's mask allows a choice; `room` is for the mask. */
static inline int penstock_allows(const penstock_batch *batch, size_t index, int64_t choice, unsigned char *room) {
  if (!batch->environment->action_mask || !batch->environment->action_count) return 1;
  memset(room, 0, (size_t)batch->environment->action_count);
  batch->environment->action_mask(penstock_state(batch, index), room);
  return room[choice] != 0;
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
  char *answer = (char *)text; /* written once the request has been read */
  penstock_text described = {answer, PENSTOCK_TEXT_BYTES};
  uint32_t numbers[2], lengths[3], head[4];
  uint16_t version, wishes;
  int64_t asked;
  size_t size;
  if (penstock_receive_frame(fd, text, PENSTOCK_TEXT_BYTES, &size) != PENSTOCK_HELLO || size < PENSTOCK_HELLO_BYTES) return -1;
  memcpy(numbers, text + 8, 8), memcpy(&asked, text + 16, 8), memcpy(lengths, text + 24, 12);
  memcpy(&version, text + 8, 2), memcpy(&wishes, text + 10, 2);
  if (memcmp(text, "PENSTOCK", 8) || size != PENSTOCK_HELLO_BYTES + (uint64_t)lengths[0] + lengths[1] + lengths[2]) return -1;
  text += PENSTOCK_HELLO_BYTES;
  if (!penstock_same_token(text, lengths[0])) return penstock_fail(fd, "the token is wrong");
  if (version != PENSTOCK_PLAIN_VERSION && version != PENSTOCK_VERSION)
    return penstock_fail(fd, "the server speaks versions 1 and 2 of the protocol: update the older side");
  if (wishes && (wishes != PENSTOCK_MASKS || version == PENSTOCK_PLAIN_VERSION))
    return penstock_fail(fd, "the client has wishes that the server does not know: update the server");
  if (version == PENSTOCK_PLAIN_VERSION && (environment->observation_leaf_count || environment->action_leaf_count))
    return penstock_fail(fd, "the environment has spaces that version 1 of the protocol does not have: update the client");
  if (wishes && !(environment->action_mask && environment->action_count))
    return penstock_fail(fd, "the environment has no action_mask: leave environment.action_mask out");
  text += lengths[0];
  if (lengths[1] && (lengths[1] != strlen(environment->name) || memcmp(text, environment->name, lengths[1]))) {
    penstock_print(&described, "the server has '%s': ask for socket/%s", environment->name, environment->name);
    return penstock_fail(fd, described.left ? answer : "the server has another environment");
  }
  text += lengths[1];
  if (lengths[2] > 2 || (lengths[2] == 2 && memcmp(text, "{}", 2))) return penstock_fail(fd, "the environment has no settings");
  batch->count = numbers[1];
  batch->mask_bytes = wishes ? (size_t)environment->action_count : 0;
  batch->row_bytes += batch->mask_bytes;
  batch->limit = asked == 0 ? environment->max_episode_steps : asked < 0 ? 0 : (long)asked;
  /* In 64 bits, which a size_t may not have. */
  if (!batch->count || batch->count > PENSTOCK_ENVS || asked < -1 || (int64_t)(long)asked != asked ||
      batch->count * (10 + 2 * (uint64_t)batch->row_bytes) > PENSTOCK_FRAME_BYTES ||
      batch->count * (9 + (uint64_t)batch->action_bytes) > PENSTOCK_FRAME_BYTES)
    return penstock_fail(fd, "num_envs or max_episode_steps is out of range");
  batch->states = (unsigned char *)calloc(batch->count, environment->state_bytes ? environment->state_bytes : 1);
  batch->steps = (long *)calloc(batch->count, sizeof(long));
  batch->ready = (unsigned char *)calloc(batch->count, 1);
  if (!batch->states || !batch->steps || !batch->ready) return penstock_fail(fd, "no memory for so many environments");
  head[0] = version, head[1] = (uint32_t)batch->count;
  head[2] = (uint32_t)batch->row_bytes, head[3] = (uint32_t)batch->action_bytes;
  memcpy(answer, head, sizeof head);
  described.at += sizeof head, described.left -= sizeof head;
  penstock_print(&described, "{\"name\":\"%s\",\"observation\":", environment->name);
  penstock_print_space(&described, batch->observations, batch->observation_count);
  penstock_print(&described, ",\"action\":");
  penstock_print_space(&described, batch->actions, batch->action_count);
  penstock_print(&described, ",\"action_mask\":%s,\"max_episode_steps\":", wishes ? "true" : "false");
  if (batch->limit) penstock_print(&described, "%ld,\"reward_threshold\":", batch->limit);
  else penstock_print(&described, "null,\"reward_threshold\":");
  if (!isfinite(environment->reward_threshold)) penstock_print(&described, "null}");
  else penstock_print_number(&described, environment->reward_threshold), penstock_print(&described, "}");
  if (!described.left) return penstock_fail(fd, "the description of the environment is too long");
  return penstock_send_frame(fd, PENSTOCK_WELCOME, answer, (size_t)(described.at - answer));
}

/* Steps all that are asked for into `out`; returns the bytes of the answer, or 0 if an action is wrong. */
static inline size_t penstock_step_batch(penstock_batch *batch, const unsigned char *in, unsigned char *out) {
  size_t count = batch->count, index, ended = 0;
  const unsigned char *actions = in + 8 * count, *chosen = actions + batch->action_bytes * count;
  unsigned char *shown = out + 10 * count, *final = shown + batch->row_bytes * count;
  float *row = (float *)malloc(batch->row_bytes);
  unsigned char *room = (unsigned char *)malloc((size_t)batch->environment->action_count + 1);
  memset(out, 0, 10 * count);
  for (index = 0; row && room && index < count; ++index) {
    const unsigned char *action = actions + index * batch->action_bytes;
    int64_t choice = 0;
    penstock_result result;
    uint64_t seed;
    if (chosen[index]) {
      if (!batch->ready[index]) break;
      if (!penstock_row_is_right(batch->actions, batch->action_count, action)) break;
      if (batch->environment->action_count) memcpy(&choice, action, sizeof choice);
      if (!penstock_allows(batch, index, choice, room)) break;
      /* Rows of choices are copied; those of floats lie on their alignment, behind seeds of 8 bytes. */
      result = batch->environment->step(penstock_state(batch, index),
                                        batch->environment->action_count ? (const void *)&choice : (const void *)action);
      if (batch->limit && ++batch->steps[index] >= batch->limit) result.truncated = 1;
      memcpy(out + 8 * index, &result.reward, 8);
      out[8 * count + index] = result.terminated != 0, out[9 * count + index] = result.truncated != 0;
      if (result.terminated || result.truncated) {
        penstock_observe(batch, index, 1, row, final + batch->row_bytes * ended++);
        memcpy(&seed, in + 8 * index, 8);
        penstock_begin(batch, index, seed);
      }
    }
    penstock_observe(batch, index, 0, row, shown + batch->row_bytes * index);
  }
  free(row), free(room);
  if (row && room && index == count) return 10 * count + batch->row_bytes * (count + ended);
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
        penstock_observe(batch, index, 0, row, out + batch->row_bytes * index);
      }
      if (penstock_send_frame(fd, PENSTOCK_OBSERVED, out, batch->row_bytes * count)) break;
    } else if (kind == PENSTOCK_STEP && size == most) {
      size_t bytes = penstock_step_batch(batch, in, out);
      if (!bytes) {
        penstock_fail(fd, "an action is none of the environment's, is forbidden by its action_mask, or came before the first reset");
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

/* Serves clients, a process each, until accepting fails; at once (EINVAL) where the environment's spaces are none. */
static inline int penstock_serve(int listening, const penstock_environment *environment) {
  penstock_batch batch;
  if (penstock_lay_out(&batch, environment)) return errno = EINVAL, -1;
  signal(SIGCHLD, SIG_IGN); /* the kernel collects the processes of connections */
  for (;;) {
    int fd = accept(listening, NULL, NULL);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return -1;
    if (fork() == 0) {
      unsigned char *text = (unsigned char *)malloc(PENSTOCK_TEXT_BYTES);
      close(listening);
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

#endif
