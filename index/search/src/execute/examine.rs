//! Decides conditions on paths by reading manifests from the store.

use crate::document::Document;
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::permits::SearchPermits;
use crate::plan::predicate::{Match, Numbers};
use crowsnest_store::{BodyMode, Store};
use crowsnest_store::{Error, Object};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of manifests read by a search; the same limit applies to its earlier versions.
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
pub(crate) struct Examined {
    /// Objects whose manifests meet the condition.
    pub ids: Numbers,
    /// True if manifests were skipped because of the limit or the deadline.
    pub truncated: bool,
}

impl Examiner {
    /// Examines objects by their ids.
    pub async fn examine(
        &self,
        candidates: BTreeSet<u64>,
        matches: &Match,
        deadline: Instant,
    ) -> Result<Examined, Error> {
        let mut candidates: Vec<u64> = candidates.into_iter().collect();
        let mut truncated = candidates.len() > MAX_EXAMINED;
        candidates.truncate(MAX_EXAMINED);
        let matches = Arc::new(matches.clone());
        let mut ids = BTreeSet::new();
        for some in candidates.chunks(EXAMINE_BATCH) {
            if Instant::now() > deadline {
                truncated = true;
                break;
            }
            let objects = self.store.by_ids(some, BodyMode::Read).await?;
            let matches = Arc::clone(&matches);
            ids.extend(self.permits.run(Instant::now(), move || filter_matching(&objects, &matches)).await?);
        }
        Ok(Examined { ids: Arc::new(ids), truncated })
    }
}

fn filter_matching(objects: &[Object], matches: &Match) -> Result<Vec<u64>, Error> {
    let mut ids = Vec::new();
    for object in objects {
        let document = Document::from_object(object)?;
        if DocumentEvaluator::new(&document).holds(matches) {
            ids.push(document.id);
        }
    }
    Ok(ids)
}
