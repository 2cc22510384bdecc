"""Reports that programs read, or other sites show: JSON, SARIF, JUnit, annotations, Markdown, trace events."""
