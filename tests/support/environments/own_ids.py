"""The ids that tests of every environment go through."""

from penstock import native

OF_THE_SUITE = ("dmc/cartpole-balance", "dmc/finger-turn_easy", "dmc/humanoid-run")
"""The control suite's tasks share one interface: these stand for it, and test_control_suite.py has all of them."""
OWN_IDS = [name for name in native.environment_ids() if not name.startswith("dmc/") or name in OF_THE_SUITE]
