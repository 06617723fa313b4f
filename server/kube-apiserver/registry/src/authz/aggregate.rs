//! Controller for aggregated ClusterRoles: their rules are the union of the rules of the selected ClusterRoles.

use std::sync::Arc;

use crowsnest_apimachinery::status::ApiResult;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::authz::GROUP;
use crate::authz::bootstrap::{loopback, loopback_options};
use crate::authz::escalation::aggregated_rules;
use crate::object::Object;
use crate::reconcile::reconcile_on_change;
use crate::storage::ResourceKey;
use crate::{Change, Edit, Registry};
use crowsnest_apimachinery::names::Gvr;

/// Reconciles on changes of ClusterRoles until cancelled.
pub async fn run(registry: Arc<Registry>, stop: CancellationToken) {
    let table = ResourceKey::new(GROUP, "clusterroles");
    let aggregate = || aggregate_all(&registry);
    reconcile_on_change(&registry.store, &table, &stop, "cannot aggregate ClusterRoles", aggregate).await;
}

/// Updates the rules of all aggregated ClusterRoles.
pub async fn aggregate_all(registry: &Arc<Registry>) -> ApiResult<()> {
    let resource = registry.resource(&Gvr::new(GROUP, "v1", "clusterroles"))?;
    let roles = registry.list_all(&resource).await?;
    for role in &roles {
        let Some(rules) = aggregated_rules(role, &roles) else { continue };
        if role["rules"].as_array().map(Vec::as_slice).unwrap_or_default() == rules.as_slice() {
            continue;
        }
        let edit = Edit(Arc::new(move |role: &mut Value| {
            role["rules"] = rules.clone().into();
            Ok(())
        }));
        let mut warnings = Vec::new();
        let ctx = loopback("");
        registry.update(&resource, &ctx, role.name(), &Change::Edit(edit), &loopback_options(), &mut warnings).await?;
    }
    Ok(())
}
