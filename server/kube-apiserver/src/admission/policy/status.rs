//! Controller for the status of ValidatingAdmissionPolicies: the observed generation and type checking warnings
//! ([`type_checking`](super::type_checking)).

use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::admission::GROUP;
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::object::Object;
use crowsnest_registry::reconcile::reconcile_on_change;
use crowsnest_registry::storage::ResourceKey;
use crowsnest_registry::strategy::RequestContext;
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::type_checking;

const PLURAL: &str = "validatingadmissionpolicies";

/// Reconciles all policies, and again when one of them changes, until cancelled.
pub async fn run(registry: Arc<Registry>, stop: CancellationToken) {
    let table = ResourceKey::new(GROUP, PLURAL);
    let reconcile = || reconcile_all(&registry);
    reconcile_on_change(&registry.store, &table, &stop, "cannot list policies", reconcile).await;
}

/// Updates the status of policies whose generation has changed.
async fn reconcile_all(registry: &Arc<Registry>) -> ApiResult<()> {
    let Some(resource) = registry.catalog.get(&Gvr::new(GROUP, "v1", PLURAL)) else { return Ok(()) };
    for policy in registry.list_all(&resource).await? {
        if policy["status"]["observedGeneration"] == policy.generation() {
            continue;
        }
        let served = registry.catalog.snapshot();
        let edit = Edit(Arc::new(move |policy: &mut Value| {
            let warnings = type_checking::expression_warnings(policy, &served);
            policy["status"]["observedGeneration"] = policy.generation().into();
            policy["status"]["typeChecking"] = match warnings.is_empty() {
                true => json!({}),
                false => json!({"expressionWarnings": warnings}),
            };
            Ok(())
        }));
        let ctx = RequestContext { subresource: "status".into(), ..loopback("") };
        let name = policy.name();
        let (change, options) = (Change::Edit(edit), loopback_options());
        if let Err(error) = registry.update(&resource, &ctx, name, &change, &options, &mut Vec::new()).await {
            tracing::warn!(policy = name, %error, "cannot update the status of a policy");
        }
    }
    Ok(())
}
