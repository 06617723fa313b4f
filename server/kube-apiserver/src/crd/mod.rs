//! CustomResourceDefinitions: their validation and status, and the custom resources they serve.
//!
//! Pure parts: [`definition`] (reading and defaulting), [`validation`], `structural`, `keywords`, `defaults` and `rules` (a
//! definition's schemas), [`values`] (validating objects), `cel`, [`names`]. [`controller`] watches definitions, writes their status and installs what they serve into
//! the registry's catalog, from which `http/`, `discovery/` and `openapi/` read.

mod cel;
pub mod controller;
mod conversion;
mod defaults;
pub mod definition;
mod embedded;
mod field_paths;
mod formats;
mod internal;
mod keywords;
mod known;
pub mod names;
pub mod resources;
mod rule_costs;
mod rules;
mod strategy;
mod structural;
pub mod validation;
pub mod values;
mod version_parts;
pub mod versions;

#[cfg(test)]
mod served_tests;
#[cfg(test)]
mod tests;

pub use strategy::CustomStrategy;
