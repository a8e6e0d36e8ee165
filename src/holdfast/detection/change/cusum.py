"""Cumulative sums (Page, 1954), both ways: small but lasting shifts that no single value shows.

Knows the reference and the noise only as told; whether a shift matters is for others to say.
"""


class Cusum:
    """How far the values have lately run away from their reference, upwards and downwards."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.up = self.down = 0.0
        self.num_up = self.num_down = 0  # values since the sum was last zero

    def update(self, away: float, slack: float, most: float, ceiling: float) -> None:
        """``away``: from the reference; ``slack``: ignored of it; ``most``: one value may add;
        ``ceiling``: of the sums, so that an old shift is soon forgotten."""
        step = max(-most, min(most, away))
        self.up = min(ceiling, max(0.0, self.up + step - slack))
        self.num_up = self.num_up + 1 if self.up else 0
        self.down = min(ceiling, max(0.0, self.down - step - slack))
        self.num_down = self.num_down + 1 if self.down else 0
