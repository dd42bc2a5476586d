"""From eager modules to Relax: export-ready modules, the operator vocabulary's eager meaning, and the import."""
