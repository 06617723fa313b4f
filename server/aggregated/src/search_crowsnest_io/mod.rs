//! `search.crowsnest.io/v1alpha1`: queries over the fleet, single objects with their history, logs of pods, and the state of the cache.
//! Handlers parse parameters, search the cache as the caller, and format the results. docs/SEARCH-API.md describes input and output.

mod blast_radius;
pub mod cache;
mod call;
mod columns;
mod count;
mod diff;
mod events;
mod explain;
mod export;
mod graph;
mod history;
mod hits;
mod index;
mod journal;
mod logs;
mod mcp;
mod metrics;
mod object;
mod openapi;
mod operation;
mod parameters;
mod paths;
mod query;
mod saved_searches;
pub mod status;
mod suggest;

use crate::resource::registry::Group;
use crate::resource::{Definition, LIST, Paths, Resource};
use crowsnest_api::aggregated_groups;

pub const NAME: &str = aggregated_groups::CROWSNEST_SEARCH.name;
const API_VERSION: &str = "search.crowsnest.io/v1alpha1";

/// Resources of the group. They list no objects and therefore lack the verb `watch`: clients watch every resource that has it.
const RESOURCES: &[&dyn Resource] = &[
    &blast_radius::BlastRadius,
    &cache::CACHE,
    &count::Count,
    &diff::Diff,
    &explain::Explain,
    &export::Export,
    &graph::Graph,
    &history::History,
    &index::TEXT_INDEX,
    &journal::Journal,
    &logs::Logs,
    &mcp::MCP,
    &metrics::METRICS,
    &paths::Paths,
    &query::Query,
    &saved_searches::SavedSearches,
    &status::Status,
    &suggest::Suggest,
];

pub const GROUP: Group =
    Group { schemas: openapi::schemas, ..Group::new(&aggregated_groups::CROWSNEST_SEARCH, RESOURCES) };

/// Definition of a resource without objects; its singular name equals its plural.
const fn definition(resource: &'static str, kind: &'static str) -> Definition {
    Definition { singular: resource, route: NAME, ..Definition::new(resource, kind, LIST, Paths::Collection) }
}
