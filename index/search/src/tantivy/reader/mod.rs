//! Answers of the text index: a plan becomes sets of documents of each segment, which are counted, ordered and shown within
//! the caller's rights.

pub(crate) mod collector;
pub(crate) mod doc_sets;
pub(crate) mod facet_counts;
pub(crate) mod frequent_terms;
pub(crate) mod lookup;
pub(crate) mod memory;
pub(crate) mod permitted;
pub(crate) mod scan;
pub(crate) mod top_hits;
pub(crate) mod warm_up;
