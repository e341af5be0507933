"""Fit the cascade of Eq. 4 to scores with teacher labels (Eq. 5)."""

from hamr.calibration.fit import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
