//! The default roles and bindings of RBAC, written at start where they are absent or lost rules.

use std::sync::Arc;

use crowsnest_api::user::UserInfo;
use serde_json::{Value, json};

use crate::authz::GROUP;
use crate::authz::default_roles::default_objects;
use crate::registry::options::WriteOptions;
use crate::registry::resource::Gvr;
use crate::registry::strategy::RequestContext;
use crate::registry::{Change, Edit, Registry};
use crate::status::{ApiResult, Reason};

/// A context of the server itself.
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
    }
}

/// Options of the server's own writes.
pub fn loopback_options() -> WriteOptions {
    WriteOptions { manager: "kube-apiserver".into(), raw: json!({}), ..WriteOptions::default() }
}

/// Writes what is missing of the default roles, bindings and namespaces.
pub async fn write_defaults(registry: &Arc<Registry>) -> ApiResult<()> {
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
    for object in default_objects() {
        let plural = if object["kind"] == "ClusterRole" { "clusterroles" } else { "clusterrolebindings" };
        let resource = registry.resource(&Gvr::new(GROUP, "v1", plural))?;
        match registry.create(&resource, &loopback(""), object.clone(), &options, &mut warnings).await {
            Err(error) if error.is(Reason::AlreadyExists) => {
                if plural == "clusterroles" && object["aggregationRule"].is_null() {
                    restore(registry, &resource, object).await?;
                }
            }
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Gives a default role back the rules it lost.
async fn restore(
    registry: &Arc<Registry>,
    resource: &crate::registry::resource::ResourceRef,
    default: Value,
) -> ApiResult<()> {
    let name = default["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let edit = Edit(Arc::new(move |role: &mut Value| {
        if role["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] != "true" {
            return Ok(());
        }
        let mut rules = role["rules"].as_array().cloned().unwrap_or_default();
        for rule in default["rules"].as_array().into_iter().flatten() {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
        role["rules"] = rules.into();
        Ok(())
    }));
    let mut warnings = Vec::new();
    registry.update(resource, &loopback(""), &name, &Change::Edit(edit), &loopback_options(), &mut warnings).await?;
    Ok(())
}
