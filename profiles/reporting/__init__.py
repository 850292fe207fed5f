"""Turn measurements into files: results, tables, plots, documents, a page."""
