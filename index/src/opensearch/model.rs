//! The parts of the search and of the text model that are translated for an engine, imported in one place.

pub(super) use crate::search::plan::World;
pub(super) use crate::search::plan::paths::{Step, Want, amount, written};
pub(super) use crate::search::plan::patterns::MOST_EDITS;
pub(super) use crate::search::plan::predicate::{Match, Numbers, PathTest, Test};
pub(super) use crate::search::plan::score;
pub(super) use crate::search::plan::sort::{OfCluster, Place, Rank, Ranked, Sort, SortBy};
pub(super) use crate::text::columns::{Facet, Key, Number, Word, scope_terms};
pub(super) use crate::text::document::Document;
pub(super) use crate::text::tokens::{MAX_CHUNK, begins_terms, chunks, lowered, tails, terms as chunk_terms};
