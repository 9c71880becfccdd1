"""A discrete-event simulation of a whole serving platform, driving the judgement that runs in production."""
