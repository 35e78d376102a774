/// Force-directed placement: nets pull like springs, overlapping macros push each other away.
#pragma once

#include "penstock/floorplan/costs/density.hpp"

namespace penstock::floorplan {

/// One phase: so many steps, each moving nothing further than `most_move` um along either axis.
struct Phase {
  std::int64_t steps;
  double most_move, attraction, repulsion;
};

struct Schedule {
  std::vector<Phase> phases;
  double io_factor = 1;       ///< factor of springs that end at a port
  bool from_current = false;  ///< else everything that moves starts at the canvas's centre
  bool move_cells = true;     ///< soft macros and standard cells
  bool move_hard = false;     ///< hard macros too
};

/// Three phases of 100 steps, each step at most `reach[i]` / 100 of the canvas's longer side.
inline Schedule schedule_of(const Grid& canvas, std::array<double, 3> reach, std::array<double, 3> repulsion) {
  Schedule out;
  constexpr std::array<double, 3> attraction{100.0, 1e-3, 1e-5};
  for (std::size_t i = 0; i < 3; ++i)
    out.phases.push_back({100, reach[i] * std::max(canvas.width, canvas.height) / 100, attraction[i], repulsion[i]});
  return out;
}
inline Schedule default_schedule(const Grid& canvas) {
  return schedule_of(canvas, {1, 1, 1}, {0, 1e6, 1e7});
}
/// Computes the initial positions of the observation.
inline Schedule feature_schedule(const Grid& canvas) {
  Schedule out = schedule_of(canvas, {1, 2, 2}, {0, 1e5, 1e6});
  out.move_hard = true;
  return out;
}

class Forces {
 public:
  Forces(Layout& layout, const Grid& canvas, const Schedule& schedule)
      : layout_(layout), canvas_(canvas), schedule_(schedule) {
    const Netlist& netlist = layout.netlist();
    moves_.assign(layout.x.size(), 0);
    for (std::int32_t i = 0; i < std::int32_t(layout.x.size()); ++i) {
      const bool cell = takes_room(netlist, i) && !netlist.is_hard(i);
      if (layout.fixed[std::size_t(i)] ||
          !((cell && schedule.move_cells) || (netlist.is_hard(i) && schedule.move_hard)))
        continue;
      moves_[std::size_t(i)] = 1;
      movable_.push_back(i);
      if (!schedule.from_current || !layout.placed[std::size_t(i)])
        layout.move(i, {canvas.width / 2, canvas.height / 2});
    }
    for (const std::int32_t macro : netlist.macros)
      if (layout.placed[std::size_t(macro)]) macros_.push_back(macro);
    for (std::size_t i = 0; i < macros_.size(); ++i) sides_.push_back({0, std::int32_t(i)});
    fx_.resize(layout.x.size()), fy_.resize(layout.x.size());
    find_springs();
  }

  void run() {
    for (const Phase& phase : schedule_.phases)
      for (std::int64_t step = 0; step < phase.steps; ++step) {
        std::ranges::fill(fx_, 0.0), std::ranges::fill(fy_, 0.0);
        if (phase.attraction != 0) pull(phase.attraction);
        if (phase.repulsion != 0) push(phase.repulsion * phase.most_move);
        move(phase.most_move);
      }
  }

 private:
  /// A net's tie between its driver and one sink. Ties that move nothing are left out.
  struct Spring {
    std::int32_t from, to;  ///< owners of the pins
    double weight, x, y;    ///< x, y: the sink pin's offset less the driver pin's
  };

  Layout& layout_;
  const Grid& canvas_;
  const Schedule& schedule_;
  std::vector<std::uint8_t> moves_;
  struct Side {
    double left;
    std::int32_t index;  ///< in macros_
  };
  std::vector<std::int32_t> movable_, macros_;
  std::vector<Side> sides_;
  std::vector<std::uint64_t> pairs_;
  std::vector<Spring> springs_;
  std::vector<double> fx_, fy_;

  void find_springs() {
    const Netlist& netlist = layout_.netlist();
    for (std::size_t net = 0; net < netlist.nets.size(); ++net) {
      const std::int32_t driver = netlist.nets[net], from = layout_.owner[std::size_t(driver)];
      if (!layout_.is_placed(driver)) continue;
      for (const std::int32_t sink : netlist.sinks_of(driver)) {
        const std::int32_t to = layout_.owner[std::size_t(sink)];
        if (!layout_.is_placed(sink) || !(moves_[std::size_t(from)] || moves_[std::size_t(to)])) continue;
        const bool port = netlist.nodes[std::size_t(driver)].type == NodeType::port ||
                          netlist.nodes[std::size_t(sink)].type == NodeType::port;
        springs_.push_back({from, to, netlist.net_weights[net] * (port ? schedule_.io_factor : 1.0),
                            layout_.dx[std::size_t(sink)] - layout_.dx[std::size_t(driver)],
                            layout_.dy[std::size_t(sink)] - layout_.dy[std::size_t(driver)]});
      }
    }
  }

  void add(std::int32_t node, double x, double y) { fx_[std::size_t(node)] += x, fy_[std::size_t(node)] += y; }

  void pull(double attraction) {
    for (const Spring& s : springs_) {
      const auto from = std::size_t(s.from), to = std::size_t(s.to);
      const double x = attraction * s.weight * (layout_.x[to] - layout_.x[from] + s.x);
      const double y = attraction * s.weight * (layout_.y[to] - layout_.y[from] + s.y);
      add(s.from, x, y), add(s.to, -x, -y);
    }
  }

  void push(double force) {
    find_overlaps();
    for (const std::uint64_t pair : pairs_) {
      const std::int32_t u = macros_[pair >> 32], v = macros_[pair & 0xffffffffu];
      const double dx = layout_.x[std::size_t(u)] - layout_.x[std::size_t(v)];
      const double dy = layout_.y[std::size_t(u)] - layout_.y[std::size_t(v)], distance = std::sqrt(dx * dx + dy * dy);
      const double x = distance > 0 ? force * dx / distance : -force, y = distance > 0 ? force * dy / distance : -force;
      add(u, x, y), add(v, -x, -y);
    }
  }

  /// Pairs (u, v) of macros_ that overlap, u < v, ascending. Swept from left to right, in an order that hardly changes
  /// from step to step.
  void find_overlaps() {
    const auto left = [&](std::int32_t i) {
      const auto macro = std::size_t(macros_[std::size_t(i)]);
      return layout_.x[macro] - layout_.width[macro] / 2;
    };
    for (std::size_t i = 0; i < sides_.size(); ++i) sides_[i].left = left(sides_[i].index);
    for (std::size_t i = 1; i < sides_.size(); ++i) {
      const Side side = sides_[i];
      std::size_t to = i;
      for (; to > 0 && sides_[to - 1].left > side.left; --to) sides_[to] = sides_[to - 1];
      sides_[to] = side;
    }
    pairs_.clear();
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      const auto a = std::size_t(macros_[std::size_t(sides_[i].index)]);
      const double ax = layout_.x[a], ay = layout_.y[a], width = layout_.width[a], height = layout_.height[a];
      const double right = ax + width / 2;
      for (std::size_t j = i + 1; j < sides_.size() && sides_[j].left <= right; ++j) {
        const auto b = std::size_t(macros_[std::size_t(sides_[j].index)]);
        if (std::abs(ay - layout_.y[b]) <= (height + layout_.height[b]) / 2 - 1e-4 &&
            std::abs(ax - layout_.x[b]) <= (width + layout_.width[b]) / 2 - 1e-4) {
          const auto u = std::uint64_t(sides_[i].index), v = std::uint64_t(sides_[j].index);
          pairs_.push_back(std::min(u, v) << 32 | std::max(u, v));
        }
      }
    }
    std::ranges::sort(pairs_);
  }

  void move(double most) {
    move_along(fx_, layout_.x, layout_.width, canvas_.width, most);
    move_along(fy_, layout_.y, layout_.height, canvas_.height, most);
  }
  /// Moves the node of the largest force by `most`, the others in proportion. No node comes to touch the canvas's edge.
  void move_along(const std::vector<double>& force, std::vector<double>& at, const std::vector<double>& size,
                  double side, double most) const {
    double largest = 0;
    for (const std::int32_t node : movable_) largest = std::max(largest, std::abs(force[std::size_t(node)]));
    if (!(largest > 0) || !std::isfinite(largest)) return;
    const double scale = most / largest;
    for (const std::int32_t node : movable_) {
      const auto i = std::size_t(node);
      const double to = at[i] + force[i] * scale;
      if (to - size[i] / 2 > 0 && to + size[i] / 2 < side) at[i] = to;
    }
  }
};

}  // namespace penstock::floorplan
