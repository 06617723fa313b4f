//! The parts of the search and of the text model that are translated for an engine, imported in one place.

pub(super) use crate::document::Document;
pub(super) use crate::document::columns::{Facet, Key, Number, Word, scope_terms};
pub(super) use crate::document::tokens::{MAX_CHUNK, begins_terms, chunks, lowered, tails, terms as chunk_terms};
pub(super) use crate::plan::FleetFacts;
pub(super) use crate::plan::paths::{Step, Want, amount, written};
pub(super) use crate::plan::patterns::MOST_EDITS;
pub(super) use crate::plan::predicate::{Match, Numbers, PathTest, Test};
pub(super) use crate::plan::score;
pub(super) use crate::plan::sort::{OfCluster, Rank, Ranked, Sort, SortBy, SortPosition};
