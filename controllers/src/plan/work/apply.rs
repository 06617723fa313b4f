//! How a manifest meets the object a member already has: whose it is, what of it stays, and whether anything changes.

use serde_json::Value;

use super::managed;
use super::prune::{prune, prune_job_ttl};
use crate::plan::object;

/// What to do with one manifest in one member.
#[derive(Debug, Clone, PartialEq)]
pub enum ApplyPlan {
    Create(Value),
    Update(Value),
    /// The member has it already.
    Keep,
    /// The member has an object of that name which is not ours to change; the text is the Work's message.
    Conflict(String),
}

/// What a manifest finds in a member.
#[derive(Debug, Clone, PartialEq)]
pub enum Meeting<'o> {
    /// There is nothing to take over from the member.
    Planned(ApplyPlan),
    /// An object to update: the kind's interpreter is to put into `desired` what the member decides before [`finish`].
    Ours { desired: Value, observed: &'o Value },
}

/// How a manifest meets the object that a member has, if it has one.
pub fn meet<'o>(cluster: &str, manifest: &Value, observed: Option<&'o Value>) -> Meeting<'o> {
    let Some(observed) = observed else { return Meeting::Planned(ApplyPlan::Create(manifest.clone())) };
    if !may_update(manifest, observed) {
        return Meeting::Planned(ApplyPlan::Conflict(format!(
            "resource(kind={}, {}/{}) already exists in the cluster {cluster} and the {} strategy value is empty, \
             Karmada will not manage this resource",
            object::kind(manifest),
            object::namespace(manifest),
            object::name(manifest),
            super::construct::CONFLICT_RESOLUTION,
        )));
    }
    let mut desired = manifest.clone();
    keep_members_metadata(&mut desired, observed);
    Meeting::Ours { desired, observed }
}

/// What to do about an object of which everything is known that the member decides.
pub fn finish(desired: Value, observed: &Value) -> ApplyPlan {
    if is_up_to_date(&desired, observed) { ApplyPlan::Keep } else { ApplyPlan::Update(desired) }
}

/// Ours already, or the manifest says to take it over.
fn may_update(manifest: &Value, observed: &Value) -> bool {
    managed::is_managed(observed)
        || object::annotation(manifest, super::construct::CONFLICT_RESOLUTION) == Some("overwrite")
}

fn keep_members_metadata(desired: &mut Value, observed: &Value) {
    for field in ["resourceVersion", "finalizers", "ownerReferences"] {
        match object::at(observed, &["metadata", field]) {
            Some(value) => object::set(desired, &["metadata", field], value.clone()),
            None => {
                object::remove(desired, &["metadata", field]);
            }
        }
    }
    managed::retain(desired, observed);
}

/// Whether the live object, without what the member fills in, is what the manifest wants.
fn is_up_to_date(desired: &Value, observed: &Value) -> bool {
    let mut live = observed.clone();
    prune(&mut live);
    prune_job_ttl(&mut live);
    for field in ["resourceVersion", "finalizers", "ownerReferences"] {
        if let Some(value) = object::at(observed, &["metadata", field]) {
            object::set(&mut live, &["metadata", field], value.clone());
        }
    }
    for field in ["annotations", "labels"] {
        if let Some(value) = object::at(observed, &["metadata", field]) {
            object::set(&mut live, &["metadata", field], value.clone());
        }
    }
    let mut wanted = desired.clone();
    prune(&mut wanted);
    for field in ["resourceVersion", "finalizers", "ownerReferences", "annotations", "labels"] {
        if let Some(value) = object::at(desired, &["metadata", field]) {
            object::set(&mut wanted, &["metadata", field], value.clone());
        }
    }
    object::semantically_equal(&live, &wanted)
}
