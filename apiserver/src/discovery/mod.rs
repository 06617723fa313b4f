//! `/api`, `/apis`, aggregated discovery, `/version`, health.
