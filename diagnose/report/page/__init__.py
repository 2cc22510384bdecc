"""The report as one HTML page: `html` fills the template, the other modules prepare what it draws."""
