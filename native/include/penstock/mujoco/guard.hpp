/// Calls into MuJoCo that cannot end the process.
///
/// MuJoCo reports an error to a log handler and exits if the handler returns. A guarded call installs a handler for its
/// thread alone, leaves MuJoCo by longjmp as its documentation asks, and throws what was reported.
#pragma once

#include <memory>
#include <type_traits>

namespace penstock::mujoco {

enum class Warnings {
  passed_on,  ///< to the process's handler, as without a guard
  dropped,
};

void guarded(void (*call)(void*), void* context, Warnings warnings);

/// Runs `call()`, which must hold nothing with a destructor while it is inside MuJoCo: an error jumps over it. Throws
/// std::runtime_error with MuJoCo's words. Data that an error left behind is fit for mj_resetData alone.
template <class Call>
void guarded(Call&& call, Warnings warnings = Warnings::passed_on) {
  guarded([](void* context) { (*static_cast<std::remove_reference_t<Call>*>(context))(); },
          const_cast<void*>(static_cast<const void*>(std::addressof(call))), warnings);
}

}  // namespace penstock::mujoco
