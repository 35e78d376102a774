/* CartPole behind a socket, in C: cc -O2 cartpole.c -o cartpole -lm, then ./cartpole 7000.
 *
 * The equations and limits are those of Barto, Sutton and Anderson (1983), as CartPole-v1 of Gymnasium has them; the
 * generator that places the pole is another one, so episodes differ from Gymnasium's. */
#include "environment.h"

typedef struct {
  double x, x_speed, angle, angle_speed;
} pole;

/* splitmix64: a good generator of few numbers, whose state is the seed. */
static double drawn(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0 * 0.1 - 0.05;
}

static void reset(void *state, uint64_t seed) {
  pole *now = state;
  now->x = drawn(&seed), now->x_speed = drawn(&seed), now->angle = drawn(&seed), now->angle_speed = drawn(&seed);
}

static penstock_result step(void *state, const void *action) {
  pole *now = state;
  int64_t choice;
  memcpy(&choice, action, sizeof choice);
  const double force = choice ? 10.0 : -10.0, cosine = cos(now->angle), sine = sin(now->angle), seconds = 0.02;
  const double push = (force + 0.05 * now->angle_speed * now->angle_speed * sine) / 1.1;
  const double turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
  const double speed_up = push - 0.05 * turn * cosine / 1.1;
  now->x += seconds * now->x_speed, now->x_speed += seconds * speed_up;
  now->angle += seconds * now->angle_speed, now->angle_speed += seconds * turn;
  const penstock_result result = {1.0, fabs(now->x) > 2.4 || fabs(now->angle) > 12 * 2 * 3.14159265358979 / 360, 0};
  return result;
}

static void observe(const void *state, float *out) {
  const pole *now = state;
  out[0] = (float)now->x, out[1] = (float)now->x_speed, out[2] = (float)now->angle, out[3] = (float)now->angle_speed;
}

int main(int count, char **arguments) {
  const penstock_environment cartpole = {
      .name = "CartPole-v1", .state_bytes = sizeof(pole), .observation_size = 4, .action_count = 2,
      .max_episode_steps = 500, .reward_threshold = 475.0, .reset = reset, .step = step, .observe = observe};
  int port = 0, listening = penstock_listen("127.0.0.1", count > 1 ? atoi(arguments[1]) : 7000, &port);
  if (listening < 0) return perror("penstock_listen"), 1;
  printf("socket/%s at 127.0.0.1:%d\n", cartpole.name, port);
  fflush(stdout);
  return penstock_serve(listening, &cartpole) ? 1 : 0;
}
