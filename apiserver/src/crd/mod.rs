//! CustomResourceDefinitions: their validation and status, and the custom resources they serve.
//!
//! Pure parts: [`definition`] (reading and defaulting), [`validation`], `structural`, [`values`] (validating objects),
//! [`defaulting`], `cel`, [`names`]. [`controller`] watches definitions, writes their status and installs what they serve into
//! the registry's catalog, from which `http/`, `discovery/` and `openapi/` read.

mod cel;
mod cel_types;
pub mod controller;
mod conversion;
pub mod defaulting;
pub mod definition;
mod embedded;
mod formats;
mod keywords;
pub mod names;
pub mod resources;
mod strategy;
mod structural;
pub mod validation;
pub mod values;
pub mod versions;

#[cfg(test)]
mod served_tests;
#[cfg(test)]
mod tests;

pub(crate) use cel::untyped as untyped_cel;
pub(crate) use cel_types::check_expression as check_cel;
pub use strategy::CustomStrategy;
