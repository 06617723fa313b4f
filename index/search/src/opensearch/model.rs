//! The parts of the search and of the text model that are translated for an engine, imported in one place.

pub(super) use crate::document::Document;
pub(super) use crate::document::columns::{Facet, Key, Number, Word, scope_terms};
pub(super) use crate::document::tokens::{
    MAX_CHUNK, chunks, lower_into, matches_by_prefix, tails, terms as chunk_terms,
};
pub(super) use crate::plan::FleetFacts;
pub(super) use crate::plan::paths::{PathCondition, Step, numeric_value, scalar_text};
pub(super) use crate::plan::patterns::MAX_EDITS;
pub(super) use crate::plan::predicate::{Match, Numbers, PathTest, Test};
pub(super) use crate::plan::score;
pub(super) use crate::plan::sort::{ClusterProperty, Rank, Ranked, Sort, SortBy, SortPosition};
