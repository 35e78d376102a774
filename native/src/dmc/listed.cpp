#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "penstock/dmc/task.hpp"

namespace penstock::dmc {

const std::vector<Listed>& listed() {
  static const std::vector<Listed> all = [] {
    std::vector<Listed> tasks;
    for (std::vector<Listed> domain :
         {cartpole(), pendulum(), acrobot(), ball_in_cup(), point_mass(), reacher(), finger(), cheetah(), hopper(), walker(),
          swimmer(), fish(), humanoid(), humanoid_cmu(), quadruped(), manipulator(), stacker(), dog(), lqr(),
          quadruped_escape()})
      std::move(domain.begin(), domain.end(), std::back_inserter(tasks));
    return tasks;
  }();
  return all;
}

double small_control(const Physics& physics) {
  const Tolerance still{.margin = 1.0, .kind = Sigmoid::quadratic, .at_margin = 0.0, .in_array = true};
  const auto controls = physics.controls();
  std::array<double, 64> each;
  std::transform(controls.begin(), controls.end(), each.begin(), still);
  return (mean(std::span(each).first(controls.size())) + 4.0) / 5.0;
}

}  // namespace penstock::dmc
