"""How a report says one thing: sentences about a finding, a gain, a forecast, and what could not be told."""
