/// Throws the refusals of a pool, whichever environments it has: apart from its template, so that each is compiled once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace penstock {

[[noreturn, gnu::cold]] inline void refuse_unready_pool() {
  throw std::logic_error("not every environment is ready: reset(), reset_ids() or restore() first");
}
[[noreturn, gnu::cold]] inline void refuse_unready(std::size_t env) {
  throw std::logic_error("environment " + std::to_string(env) + " is not ready: reset it first");
}
[[noreturn, gnu::cold]] inline void refuse_ended(std::size_t env) {
  throw std::logic_error("the episode of environment " + std::to_string(env) +
                         " has ended and nothing resets it: reset it with options={'reset_mask': ...}, or make the "
                         "pool with another autoreset_mode");
}
[[noreturn, gnu::cold]] inline void refuse_unseeded(std::size_t env) {
  throw std::invalid_argument("environment " + std::to_string(env) + " has no generator yet: give a seed");
}
[[noreturn, gnu::cold]] inline void refuse_width(std::size_t env, std::size_t observed, std::size_t expected) {
  throw std::invalid_argument("environment " + std::to_string(env) + " would observe " + std::to_string(observed) +
                              " values, expected the pool's " + std::to_string(expected) +
                              ": what is observed is the same for a whole pool, and for all its time");
}

/// Throws unless no round is open; `call` is what needs that.
inline void require_no_round(bool is_open, const char* call) {
  if (is_open) [[unlikely]]
    throw std::logic_error(std::string("a round is open: end_round() or reset before ") + call);
}
/// Throws unless a round is open whose next step is `t`; `steps` is how many it has, and `next` is -1 where none is open.
inline void require_step(std::int64_t t, std::int64_t next, std::int64_t steps) {
  if (next < 0) [[unlikely]] throw std::logic_error("no round is open: call begin_round() first");
  if (t != next || t >= steps) [[unlikely]]
    throw std::invalid_argument("step_round got t=" + std::to_string(t) + ", expected " +
                                (next < steps ? std::to_string(next) : "end_round()"));
}
/// Throws unless a round is open whose steps were all made.
inline void require_all_steps(std::int64_t next, std::int64_t steps) {
  if (next < 0) throw std::logic_error("no round is open: call begin_round() first");
  if (next != steps)
    throw std::logic_error("the round has " + std::to_string(steps) + " steps, only " + std::to_string(next) +
                           " were made");
}

}  // namespace penstock
