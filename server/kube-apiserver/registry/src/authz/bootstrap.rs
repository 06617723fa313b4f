//! Creates the default roles and bindings of RBAC at start, and restores rules and subjects that they lack.

use std::sync::Arc;

use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_apimachinery::user::UserInfo;
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::authz::GROUP;
use crate::authz::default_roles::{Repair, default_objects, plan_repair};
use crate::object::Object;
use crate::strategy::RequestContext;
use crate::{Change, Edit, Registry};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::options::{DeleteOptions, WriteOptions};

/// Request context of the server's own requests.
pub fn loopback(namespace: &str) -> RequestContext {
    RequestContext {
        user: UserInfo {
            name: "system:apiserver".into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            ..UserInfo::default()
        },
        now: jiff::Timestamp::now(),
        dry_run: false,
        subresource: String::new(),
        namespace: namespace.to_owned(),
        record: None,
    }
}

/// Options of the server's own writes.
pub fn loopback_options() -> WriteOptions {
    WriteOptions { manager: "kube-apiserver".into(), raw: json!({}), ..WriteOptions::default() }
}

/// Creates missing default namespaces, roles and bindings, and repairs the existing ones.
pub async fn ensure_defaults(registry: &Arc<Registry>) -> ApiResult<()> {
    let options = loopback_options();
    let mut warnings = Vec::new();
    let namespaces = registry.resource(&Gvr::new("", "v1", "namespaces"))?;
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        match registry.create(&namespaces, &loopback(""), namespace, &options, &mut warnings).await {
            Err(error) if !error.is(Reason::AlreadyExists) => return Err(error),
            _ => {}
        }
    }
    try_join_all(default_objects()?.into_iter().map(|object| ensure_default(registry, object))).await?;
    Ok(())
}

/// Creates a default role or binding, or repairs the existing one.
async fn ensure_default(registry: &Arc<Registry>, default: Value) -> ApiResult<()> {
    let plural = match default["kind"].as_str() {
        Some("ClusterRole") => "clusterroles",
        Some("Role") => "roles",
        Some("ClusterRoleBinding") => "clusterrolebindings",
        _ => "rolebindings",
    };
    let resource = registry.resource(&Gvr::new(GROUP, "v1", plural))?;
    let (ctx, options, mut warnings) = (loopback(default.namespace()), loopback_options(), Vec::new());
    let existing = match registry.get(&resource, &ctx.namespace, default.name()).await {
        Ok(existing) => existing,
        Err(error) if error.is(Reason::NotFound) => {
            registry.create(&resource, &ctx, default, &options, &mut warnings).await?;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    match plan_repair(&existing, &default) {
        Repair::Nothing => {}
        Repair::Update(_) => {
            let name = default.name().to_owned();
            let edit = Edit(Arc::new(move |live: &mut Value| {
                if let Repair::Update(repaired) = plan_repair(live, &default) {
                    *live = repaired;
                }
                Ok(())
            }));
            registry.update(&resource, &ctx, &name, &Change::Edit(edit), &options, &mut warnings).await?;
        }
        Repair::Recreate => {
            let delete = DeleteOptions { raw: json!({}), ..DeleteOptions::default() };
            registry.delete(&resource, &ctx, default.name(), &delete, &mut warnings).await?;
            registry.create(&resource, &ctx, default, &options, &mut warnings).await?;
        }
    }
    Ok(())
}
