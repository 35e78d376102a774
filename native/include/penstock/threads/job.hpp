/// References to a team's job and to its poll without their types. A job is compiled once, apart: a team calls it from
/// several places.
#pragma once

#include <cstddef>

namespace penstock {

struct JobRef {
  const void* context = nullptr;
  void (*call)(const void* context, std::size_t member, std::size_t first, std::size_t last) noexcept = nullptr;

  void operator()(std::size_t member, std::size_t first, std::size_t last) const noexcept {
    call(context, member, first, last);
  }
};

struct PollRef {
  const void* context;
  void (*call)(const void* context);

  void operator()() const { call(context); }
};

template <class Job>
[[gnu::noinline]] void call_job(const void* context, std::size_t member, std::size_t first, std::size_t last) noexcept {
  (*static_cast<Job*>(const_cast<void*>(context)))(member, first, last);
}

}  // namespace penstock
