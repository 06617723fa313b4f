//! Counts of a response, computed with its hits or after them.

use crate::collect::facets::{Counts, FacetRequest};
use crate::engine::PendingCounts;
use crate::execute::{SearchResults, Sources};
use crate::plan::PlanningContext;
use crowsnest_store::Error;
use std::sync::Arc;
use std::time::Instant;

/// Counts that are not computed yet.
pub(crate) struct Counting {
    pub sources: Sources,
    pub facet_request: FacetRequest,
    pub planning_context: Arc<PlanningContext>,
    pub found: SearchResults,
    /// Counts of the engine; None if `found` contains them.
    pub pending: Option<PendingCounts>,
}

impl Counting {
    /// The counts, with the notices of the search. They are incomplete if the engine reached a limit. Counts that follow the
    /// hits may take as long as the hits, however long the client took to read these.
    pub async fn count(self) -> Result<Counts, Error> {
        let Self { mut sources, facet_request, planning_context, mut found, pending } = self;
        if let Some(pending) = pending {
            let deadline = sources.context.deadline_of_part(Instant::now());
            sources = sources.with_deadline(deadline);
            found.add_counts(pending(deadline).await?);
        }
        let mut counts = facet_request.count(&sources, &planning_context, &found).await?;
        counts.notices.append(&mut found.notices);
        counts.incomplete |= found.top.incomplete;
        Ok(counts)
    }
}
