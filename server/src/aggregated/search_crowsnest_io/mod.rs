//! `search.crowsnest.io/v1alpha1`: `query` (JSON, or server-sent events that may go on), `count`, `explain`, `suggest`,
//! `export`; `logs` of pods; `history`, `diff`, `graph` and `journal` of an object; `savedsearches`; `status` (the fleet at a glance, followed with `watch=true`),
//! `cache`, `metrics`. Handlers read parameters, call the cache's search as the caller, and print. docs/SEARCH-API.md says
//! what goes in and out.

pub(crate) mod cache;
mod columns;
mod export;
mod hits;
pub(crate) mod index;
mod journal;
mod logs;
mod object;
pub(crate) mod openapi;
mod parameters;
pub(crate) mod query;
pub(crate) mod saved_searches;
pub(crate) mod status;

const API_VERSION: &str = "search.crowsnest.io/v1alpha1";
