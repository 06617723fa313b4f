//! Evaluates conditions on paths by reading manifests from the store.

use crate::document::Document;
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::permits::SearchPermits;
use crate::plan::predicate::{IdSet, Match};
use crowsnest_store::{BodyMode, Store};
use crowsnest_store::{Error, Object};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of manifests that a search reads. The same limit applies to the earlier versions that it reads.
pub const MAX_EXAMINED: usize = 50_000;
/// Number of manifests read at once.
pub(crate) const EXAMINE_BATCH: usize = 500;

/// Reads manifests within search permits.
#[derive(Clone)]
pub(crate) struct Examiner {
    pub store: Arc<dyn Store>,
    pub permits: Arc<SearchPermits>,
}

impl fmt::Debug for Examiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Examiner")
    }
}

/// Result of an examination.
#[derive(Debug)]
pub(crate) struct Examination {
    /// Objects whose manifests meet the condition.
    pub ids: IdSet,
    /// True if manifests were skipped because of the limit or the deadline.
    pub is_truncated: bool,
}

impl Examiner {
    /// Reads the manifests of candidates, given by record id, and returns those that match.
    pub async fn examine(
        &self,
        candidates: BTreeSet<u64>,
        matches: &Match,
        deadline: Instant,
    ) -> Result<Examination, Error> {
        let mut candidates: Vec<u64> = candidates.into_iter().collect();
        let mut is_truncated = candidates.len() > MAX_EXAMINED;
        candidates.truncate(MAX_EXAMINED);
        let matches = Arc::new(matches.clone());
        let mut ids = BTreeSet::new();
        for batch in candidates.chunks(EXAMINE_BATCH) {
            if Instant::now() > deadline {
                is_truncated = true;
                break;
            }
            let objects = self.store.by_ids(batch, BodyMode::Read).await?;
            let matches = Arc::clone(&matches);
            ids.extend(self.permits.run(Instant::now(), move || filter_matching(&objects, &matches)).await?);
        }
        Ok(Examination { ids: Arc::new(ids), is_truncated })
    }
}

/// Record ids of the objects that match.
fn filter_matching(objects: &[Object], matches: &Match) -> Result<Vec<u64>, Error> {
    let mut ids = Vec::new();
    for object in objects {
        let document = Document::from_object(object)?;
        if DocumentEvaluator::new(&document).is_match(matches) {
            ids.push(document.id);
        }
    }
    Ok(ids)
}
