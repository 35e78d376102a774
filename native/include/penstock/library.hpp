/// Environments in a shared library of their own: what a library exports, and the line that exports it.
///
///     #include "my_env.hpp"
///     PENSTOCK_LIBRARY(MyEnv, MyOtherEnv)
///
/// The library holds whole pools, so its inner loop is compiled for its environments; it links neither Python nor
/// Penstock. It must be compiled with the headers of the Penstock that loads it, by a compiler that agrees with it.
#pragma once

#include <string>
#include <vector>

#include "penstock/pool.hpp"

#define PENSTOCK_STRING2(x) #x
#define PENSTOCK_STRING(x) PENSTOCK_STRING2(x)
/// Raised with every change of what crosses the border: any_pool.hpp and env.hpp's Description.
#define PENSTOCK_BORDER 2

namespace penstock {

/// Both sides must have the same one.
inline constexpr const char* border = "penstock " PENSTOCK_STRING(PENSTOCK_BORDER) ", GCC ABI " PENSTOCK_STRING(
    __GXX_ABI_VERSION) ", C++11 strings " PENSTOCK_STRING(_GLIBCXX_USE_CXX11_ABI);

struct Library {
  const char* border;
  const std::vector<CatalogEntry>* entries;
};

using LibraryEntryPoint = const Library* (*)();
inline constexpr const char* library_entry_point = "penstock_library";

}  // namespace penstock

#define PENSTOCK_LIBRARY(...)                                                                                       \
  extern "C" __attribute__((visibility("default"))) const ::penstock::Library* penstock_library() {                 \
    static const auto entries = []<class... E>(std::type_identity<std::tuple<E...>>) {                              \
      return std::vector<::penstock::CatalogEntry>{::penstock::catalog_entry<E>()...};                              \
    }(std::type_identity<std::tuple<__VA_ARGS__>>{});                                                               \
    static const ::penstock::Library library{::penstock::border, &entries};                                         \
    return &library;                                                                                                \
  }
