"""What a model is to the loop, and a scripted one."""
