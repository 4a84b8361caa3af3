"""Does an environment keep the contract? What `marft check-env` says, one finding a check."""

from marft.envs.checking.finding import Finding
from marft.envs.checking.run_checks import check_env

__all__ = ["Finding", "check_env"]
