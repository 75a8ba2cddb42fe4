"""Models how long spot machines live, and decides under a deadline when to buy on demand."""
