#include "penstock/mujoco/guard.hpp"

#include <mujoco/mujoco.h>

#include <csetjmp>
#include <cstring>
#include <stdexcept>
#include <string>

#include "penstock/mujoco/numpy_array.hpp"

// MuJoCo's own Python module uses these. The public mju_setLogHandler sets one handler for the whole process, which
// belongs to the user. The library is loaded with the one version of MuJoCo that it was compiled for.
extern "C" mjfLogHandler _mjPRIVATE_setTlsLogHandler(mjfLogHandler handler);
extern "C" mjfLogHandler _mjPRIVATE_getGlobalLogHandler();

namespace penstock::mujoco {
namespace {

struct Way {
  std::jmp_buf out;
  char said[sizeof(mjLogMessage::subject)];
  Warnings warnings;
};
thread_local Way way;

void handle(const mjLogMessage* message) {
  if (message->level == mjLOG_ERROR) {
    std::memcpy(way.said, message->subject, sizeof(way.said));
    way.said[sizeof(way.said) - 1] = '\0';
    std::longjmp(way.out, 1);
  }
  if (way.warnings == Warnings::passed_on) _mjPRIVATE_getGlobalLogHandler()(message);
}

}  // namespace

void guarded(void (*call)(void*), void* context, Warnings warnings) {
  way.warnings = warnings;
  const mjfLogHandler before = _mjPRIVATE_setTlsLogHandler(handle);
  if (setjmp(way.out) == 0) {
    call(context);
    _mjPRIVATE_setTlsLogHandler(before);
    return;
  }
  _mjPRIVATE_setTlsLogHandler(before);
  throw std::runtime_error(std::string("MuJoCo: ") + way.said);
}

}  // namespace penstock::mujoco

extern "C" __attribute__((visibility("default"))) void penstock_mujoco_dot_is_fused(bool fused) {
  penstock::mujoco::dot_is_fused = fused;
}
