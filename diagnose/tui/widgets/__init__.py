"""The widgets of the screen: lists, scrolling lines, panels drawn from the state, the timeline."""
