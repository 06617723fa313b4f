//! Re-exports the types of plans and documents that are translated for an engine.

pub(super) use crate::collect::ValueAmounts;
pub(super) use crate::collect::sums::SumsRequest;
pub(super) use crate::document::Document;
pub(super) use crate::document::columns::{Facet, Key, Keyword, Number, scope_terms};
pub(super) use crate::document::tokens::{
    MAX_CHUNK_BYTES, chunks, lower_into, matches_by_prefix, suffixes, terms as chunk_terms,
};
pub(super) use crate::plan::PlanningContext;
pub(super) use crate::plan::paths::{PathCondition, Step, numeric_value, scalar_text};
pub(super) use crate::plan::patterns::MAX_EDITS;
pub(super) use crate::plan::predicate::{IdSet, Match, PathTest, Test};
pub(super) use crate::plan::score;
pub(super) use crate::plan::sort::{ClusterProperty, Rank, RankedHit, Sort, SortBy, SortPosition};
