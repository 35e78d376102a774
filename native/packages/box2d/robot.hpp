/// The base of both robots: a world that is built from the generator, and saved with what it was built from.
#pragma once

#include <memory>

#include "world.hpp"

namespace penstock_box2d {

inline constexpr double scale = 30.0, frames_per_second = 50.0, view_width = 600.0, view_height = 400.0;

/// A robot. `Derived` has `void build(Rng&)`, which makes `world` from the generator and `built`, and
/// `static constexpr std::size_t`s `extras` and `contact_room`: how many numbers of its own it saves after the world with
/// `save_extras` and `load_extras`, and how many of contacts a state has room for; `loaded` follows a load.
template <class Derived, class Built, std::size_t Bodies, std::size_t Joints>
class Robot {
 public:
  [[nodiscard]] std::size_t state_size() const {
    return 1 + 2 * std::tuple_size_v<penstock::Rng::Words> + Built::count + 3 + Derived::contact_room + 16 * Bodies +
           7 * Joints + Derived::extras;
  }
  void save(std::span<double> row) const {
    Writer out(row);
    out.put(world != nullptr);
    if (world == nullptr) return;
    for (std::uint64_t word : origin) out.put_word(word);
    built.save(out);
    self().save_extras(out);
    world->save(out);
  }
  void load(std::span<const double> row) {
    Reader in(row);
    world.reset();
    if (in.whole(1) == 0) return;
    for (std::uint64_t& word : origin) word = in.word();
    if (!penstock::Rng::are_words(origin)) throw std::invalid_argument("the generator that built it is not PCG64's");
    built.load(in);
    auto rng = penstock::Rng::from_words(origin);
    self().build(rng);
    self().load_extras(in);
    world->load(in);
    self().loaded();
  }

 protected:
  /// Builds a new world from the generator, and remembers how.
  void begin(penstock::Rng& rng, const Built& from) {
    origin = rng.words(), built = from;
    self().build(rng);
  }

  std::unique_ptr<World> world;
  Built built{};

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  penstock::Rng::Words origin{};
};

}  // namespace penstock_box2d
