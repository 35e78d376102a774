/// The export of a shared library of environments, and the macro that defines it.
///
///     #include <penstock/library.hpp>
///     struct MyEnv { ... };
///     PENSTOCK_LIBRARY(MyEnv, MyOtherEnv)
///
/// `penstock.native.load("my_env.hpp")` compiles such a header and loads it; native/cmake is for packages of them.
///
/// The library holds whole pools, so its inner loop is compiled for its environments; it links neither Python nor
/// Penstock. It must be compiled with the headers of the Penstock that loads it, by a compiler that agrees with it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "penstock/env/contract.hpp"
#include "penstock/engine/catalog_entry.hpp"

#define PENSTOCK_STRING2(x) #x
#define PENSTOCK_STRING(x) PENSTOCK_STRING2(x)
/// Raised with every change of what crosses the border: any_pool.hpp and env.hpp's Description.
#define PENSTOCK_BORDER 9

namespace penstock {

/// Both sides must have the same one. Compilers of the Itanium C++ ABI agree on all else that crosses: Clang's
/// libraries load into what GCC compiled, and those of one GCC into what another did.
inline constexpr const char* border =
    "penstock " PENSTOCK_STRING(PENSTOCK_BORDER) ", libstdc++ strings " PENSTOCK_STRING(_GLIBCXX_USE_CXX11_ABI);

struct Library {
  const char* border;
  const std::vector<CatalogEntry>* entries;
};

using LibraryEntryPoint = const Library* (*)();
inline constexpr const char* library_entry_point = "penstock_library";

/// Adds the catalog entries of E. If E is not an environment, the compiler prints one sentence instead of template
/// errors.
template <class E>
void add_entries(std::vector<CatalogEntry>& all) {
  check_environment<E>();
  if constexpr (Environment<E>)
    for (CatalogEntry& entry : catalog_entries<E>()) all.push_back(std::move(entry));
}

}  // namespace penstock

#define PENSTOCK_LIBRARY(...)                                                                                       \
  extern "C" __attribute__((visibility("default"))) const ::penstock::Library* penstock_library() {                 \
    static const auto entries = []<class... E>(std::type_identity<std::tuple<E...>>) {                              \
      std::vector<::penstock::CatalogEntry> all;                                                                    \
      static_assert(::penstock::was_stored || ::penstock::have_names_of_their_own<E...>(),                          \
                    "penstock: PENSTOCK_LIBRARY: two environments have the same info.id; give one of them another");    \
      (::penstock::add_entries<E>(all), ...);                                                                       \
      return all;                                                                                                   \
    }(std::type_identity<std::tuple<__VA_ARGS__>>{});                                                               \
    static const ::penstock::Library library{::penstock::border, &entries};                                         \
    return &library;                                                                                                \
  }
