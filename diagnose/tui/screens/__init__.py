"""Cards over the screen: the keys, and the questions that are asked before something happens."""
