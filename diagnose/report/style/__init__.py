"""Style shared by all reports and the screen: labels and colours, styled text, bars, wrapped lines, names of files."""
