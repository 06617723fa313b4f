//! Works: their clusters, and how controllers write them.

use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_plan::work::construct::{DesiredWork, WorkPlan};
use crowsnest_plan::work::holder::Holder;

use crate::Error;
use crate::runtime::context::{Context, new_id};

/// Parses the name of the cluster from an execution namespace.
pub fn member_of(namespace: &str) -> Option<ClusterName> {
    cluster_of_execution_namespace(namespace).and_then(|cluster| ClusterName::parse(cluster).ok())
}

/// Creates or updates a Work, unless it is up to date. Returns true if it was written. A binding does not take over
/// the Work of another existing binding or FederatedResourceQuota, since names of Works do not contain the API group.
pub async fn write_work(context: &Context, desired: &DesiredWork) -> Result<bool, Error> {
    let resource = &context.kinds.work;
    let existing = context.get_full(resource, &desired.namespace, &desired.name).await?;
    if let Some(held) = existing.as_deref().and_then(|existing| desired.held_by_another(existing)) {
        let is_held = match &held {
            Holder::Quota => true,
            Holder::Binding(key) => {
                context.exists(context.kinds.binding(key.scope()), &key.namespace, &key.name).await?
            }
        };
        if is_held {
            let (namespace, name) = (&desired.namespace, &desired.name);
            return Err(Error::Apply(format!("work {namespace}/{name} belongs to {held}")));
        }
    }
    match desired.plan(existing.as_deref(), &new_id()) {
        WorkPlan::Keep => Ok(false),
        WorkPlan::Create(work) => context.create(resource, &work).await.map(|_| true),
        WorkPlan::Update(work) => context.replace(resource, &work).await.map(|_| true),
        WorkPlan::WaitForDeletion => {
            Err(Error::Waiting(format!("work {}/{} is being deleted", desired.namespace, desired.name)))
        }
    }
}
