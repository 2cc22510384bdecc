"""What every report and the screen use alike: labels and colours, styled text, bars, wrapped lines, names of files."""
