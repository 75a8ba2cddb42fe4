"""Who looks after the job: where it shall be, when it is done, what it costs, and what came back."""
