//! ConfigMap `extension-apiserver-authentication`: the authorities that extension API servers must trust.

use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::{Value, json};

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "extension-apiserver-authentication";

/// Authorities that extension API servers must trust, as in kube-apiserver's type of this name; certificates in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterAuthenticationInfo {
    /// Authority of users' client certificates.
    pub client_ca: String,
    /// Authority of the certificate with which this server calls extension servers.
    pub request_header_ca: String,
    /// Allowed common names of that certificate.
    pub allowed_names: Vec<String>,
}

/// `data` of the ConfigMap.
pub fn config_map_data(info: &ClusterAuthenticationInfo) -> Value {
    json!({
        "client-ca-file": info.client_ca,
        "requestheader-allowed-names": json!(info.allowed_names).to_string(),
        "requestheader-client-ca-file": info.request_header_ca,
        "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
        "requestheader-group-headers": "[\"X-Remote-Group\"]",
        "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
        "requestheader-username-headers": "[\"X-Remote-User\"]",
    })
}

/// Creates or updates the ConfigMap.
pub async fn publish(registry: &Arc<Registry>, info: &ClusterAuthenticationInfo) -> ApiResult<()> {
    let resource = registry.resource(&Gvr::new("", "v1", "configmaps"))?;
    let (ctx, options) = (loopback(NAMESPACE), loopback_options());
    let data = config_map_data(info);
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data,
    });
    match registry.create(&resource, &ctx, object, &options, &mut Vec::new()).await {
        Err(error) if error.is(Reason::AlreadyExists) => {}
        other => return other.map(drop),
    }
    let edit = Edit(Arc::new(move |live: &mut Value| {
        live["data"] = data.clone();
        Ok(())
    }));
    registry.update(&resource, &ctx, NAME, &Change::Edit(edit), &options, &mut Vec::new()).await.map(drop)
}
