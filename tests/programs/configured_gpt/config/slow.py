# what was left from looking for a bug
dtype = "float32"
compile = False
