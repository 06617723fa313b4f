//! Work: every manifest loses what a member sets itself, and learns which labels and annotations are ours.

use crowsnest_api::constants::label;
use crowsnest_api::work::Work;

use super::decode::{changed, decode};
use super::{Outcome, Refusal, Request, World, metadata};
use crate::plan::work::{managed, prune};

pub(super) fn mutate(request: &Request, world: &World<'_>) -> Result<Outcome, Refusal> {
    let mut work: Work = decode(&request.object)?;
    if metadata::label(&work.metadata, label::WORK_PERMANENT_ID).is_empty() {
        metadata::set_label(&mut work.metadata, label::WORK_PERMANENT_ID, world.permanent_id);
    }
    let id = metadata::label(&work.metadata, label::WORK_PERMANENT_ID).to_owned();
    for manifest in &mut work.spec.workload.manifests {
        if !manifest.0.is_object() {
            return Err(Refusal::internal("a manifest is not an object"));
        }
        prune::prune(&mut manifest.0);
        prune::prune_job_ttl(&mut manifest.0);
        managed::stamp(&mut manifest.0, &id);
    }
    changed(&work).map(Outcome::Changed)
}
