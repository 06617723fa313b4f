//! Evaluates plans on the text index: each plan becomes sets of documents per segment, which are counted, sorted
//! and returned within the caller's permissions.

pub(crate) mod collector;
pub(crate) mod doc_sets;
pub(crate) mod facet_counts;
pub(crate) mod frequent_terms;
pub(crate) mod lookup;
pub(crate) mod permitted;
pub(crate) mod permitted_cache;
pub(crate) mod scan;
pub(crate) mod sums;
pub(crate) mod top_hits;
pub(crate) mod warm_up;
