//! CustomResourceDefinitions: validation, status, and the custom resources they define.
//!
//! Pure parts: [`definition`] (accessors and defaults), [`status`] (accepted names and conditions), [`validation`] with
//! `structural`, `keywords`, `defaults` and `rules` (schemas of a CRD), [`values`], `list_uniqueness` and `cel`
//! (validation of custom resources). [`controller`] watches CRDs, writes their status and installs their resources in
//! the registry's catalog, from which `http/`, `discovery/` and `openapi/` read.

mod cel;
pub mod controller;
mod conversion;
mod custom_schema;
mod defaults;
pub mod definition;
mod definition_cache;
mod embedded;
mod field_paths;
mod formats;
mod internal_types;
mod keywords;
mod list_uniqueness;
mod numbers;
pub mod resources;
mod rule_costs;
mod rules;
mod scale;
pub mod status;
mod strategy;
mod structural;
mod traversal;
pub mod validation;
pub mod values;
mod version_parts;
pub mod versions;

#[cfg(test)]
mod number_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod scale_tests;
#[cfg(test)]
mod served_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod version_tests;
#[cfg(test)]
mod webhook_tests;

pub use strategy::CustomStrategy;
