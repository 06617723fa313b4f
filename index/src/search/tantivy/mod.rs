//! The text index as an engine of searches.

pub(crate) mod reader;
