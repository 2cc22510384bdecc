"""What the screen is made of: lists, scrolling lines, panels drawn from the state, the timeline."""
