//! Works: their clusters, and how controllers write them.

use crowsnest_api::constants::event;
use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use crowsnest_plan::work::construct::{DesiredWork, WorkPlan};
use crowsnest_plan::work::owner::WorkOwner;

use crate::Error;
use crate::runtime::context::{Context, new_id};
use crate::runtime::event_recorder::Severity;

/// Parses the name of the cluster from an execution namespace. `None` for other namespaces.
pub fn member_of(namespace: &str) -> Option<ClusterName> {
    cluster_of_execution_namespace(namespace).and_then(|cluster| ClusterName::parse(cluster).ok())
}

/// Writes Works, as [`write_work`] does.
pub async fn write_works(context: &Context, desired: &[DesiredWork]) -> Result<(), Error> {
    for work in desired {
        write_work(context, work).await?;
    }
    Ok(())
}

/// Creates a Work, or updates it if it differs. Returns true if it was written. Fails if the Work of this name belongs
/// to another existing binding or contains another object: names of Works do not contain the API group, and their
/// hashes can collide.
pub async fn write_work(context: &Context, desired: &DesiredWork) -> Result<bool, Error> {
    let resource = &context.kinds.work;
    let existing = context.get_full(resource, &desired.namespace, &desired.name).await?;
    if let Some(existing) = existing.as_deref().filter(|existing| !unstructured::is_terminating(existing))
        && let Some(owner) = desired.conflicting_owner(existing)
    {
        let owner_exists = match &owner {
            WorkOwner::Quota | WorkOwner::Object(_) => true,
            WorkOwner::Binding(key) => {
                context.exists(context.kinds.binding(key.scope()), &key.namespace, &key.name).await?
            }
        };
        if owner_exists {
            let (namespace, name) = (&desired.namespace, &desired.name);
            let object = ObjectIdentity::from_object(&desired.manifest);
            let hint = desired.other_object(existing).map_or("", |_| "; rename the object");
            let message = format!("cannot write Work {namespace}/{name} for {object}: it belongs to {owner}{hint}");
            context.events.record(existing, Severity::Warning, event::SYNC_WORK_FAILED, message.as_str());
            return Err(Error::Other(message));
        }
    }
    match desired.plan(existing.as_deref(), &new_id()) {
        WorkPlan::Keep => Ok(false),
        WorkPlan::Create(work) => context.create(resource, &work).await.map(|_| true),
        WorkPlan::Update(work) => context.replace(resource, &work).await.map(|_| true),
        WorkPlan::WaitForDeletion => {
            Err(Error::Waiting(format!("Work {}/{} is being deleted", desired.namespace, desired.name)))
        }
    }
}
