//! The parts of the search and of the text model that are translated for an engine, imported in one place.

pub(super) use crate::search::matches::{Match, Numbers, PathTest, Test};
pub(super) use crate::search::order::{OfCluster, Place, Rank, Ranked, Sort, SortBy};
pub(super) use crate::search::paths::{Step, Want, amount, written};
pub(super) use crate::search::patterns::MOST_EDITS;
pub(super) use crate::search::plan::World;
pub(super) use crate::search::rank;
pub(super) use crate::text::columns::{Facet, Key, Number, SCOPE_SEPARATOR, Word};
pub(super) use crate::text::document::Document;
pub(super) use crate::text::tokens::{MAX_CHUNK, begins_terms, chunks, lowered, tails, terms as chunk_terms};
