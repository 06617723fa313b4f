//! Admission of Works: prunes manifests of member-owned fields, and records managed labels and annotations.

use crowsnest_api::constants::label;
use crowsnest_api::work::Work;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::decode::{decode, encode_changed};
use super::{AdmissionContext, Outcome, Refusal, Request, metadata};
use crowsnest_plan::work::{managed, prune};

pub(super) fn mutate(request: &Request, context: &AdmissionContext<'_>) -> Result<Outcome, Refusal> {
    let mut work: Work = decode(&request.object)?;
    if metadata::label(&work.metadata, label::WORK_PERMANENT_ID).is_empty() {
        metadata::set_label(&mut work.metadata, label::WORK_PERMANENT_ID, context.permanent_id);
    }
    let id = metadata::label(&work.metadata, label::WORK_PERMANENT_ID).to_owned();
    for manifest in &mut work.spec.workload.manifests {
        check_manifest(&manifest.0)?;
        prune::prune(&mut manifest.0);
        prune::prune_job_ttl(&mut manifest.0);
        managed::set_work_id(&mut manifest.0, &id);
    }
    encode_changed(&work, &request.object).map(Outcome::Changed)
}

/// Rejects a manifest that is not an object or has no kind, with Go's messages.
fn check_manifest(manifest: &Value) -> Result<(), Refusal> {
    let found = match manifest {
        Value::Object(_) if !unstructured::kind(manifest).is_empty() => return Ok(()),
        Value::Object(_) => return Err(Refusal::internal(format!("Object 'Kind' is missing in '{manifest}'"))),
        Value::Null => return Err(Refusal::internal("unexpected end of JSON input")),
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
    };
    Err(Refusal::internal(format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}")))
}
