"""The verdict on a challenger, and the hourly look at the champion."""
