//! OpenAPI documents of the paths that belong to no resource: the server's version, API groups, the resources of a
//! group version, and the discovery document and keys of the service account issuer.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_registry::resource::ResourceRef;
use serde_json::{Map, Value, json};

use super::definitions::{SpecVersion, reference};
use super::identifiers;
use super::operation::META_V1;

static MEDIA_TYPES: [&str; 3] = ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"];

/// A GET operation on a path that belongs to no resource.
pub(super) struct NonResourcePath {
    /// The path without slashes at its ends, which names its v3 document.
    pub(super) path: String,
    tag: String,
    description: &'static str,
    operation_id: String,
    /// Name of the definition of the response; `None` for plain text.
    pub(super) definition: Option<String>,
    media_types: &'static [&'static str],
}

impl NonResourcePath {
    /// A path whose response is a kind of `meta/v1`.
    fn with_meta_kind(path: String, tag: String, description: &'static str, operation_id: String, kind: &str) -> Self {
        Self {
            path,
            tag,
            description,
            operation_id,
            definition: Some(format!("{META_V1}.{kind}")),
            media_types: &MEDIA_TYPES,
        }
    }

    /// The path as key of `paths` in OpenAPI documents, with slashes at both ends.
    pub(super) fn document_path(&self) -> String {
        format!("/{}/", self.path)
    }

    /// The OpenAPI path item with its GET operation.
    pub(super) fn item(&self, spec_version: SpecVersion) -> Value {
        let schema =
            self.definition.as_deref().map_or_else(|| json!({"type": "string"}), |name| reference(name, spec_version));
        let mut operation = json!({
            "tags": [self.tag], "description": self.description, "operationId": self.operation_id,
        });
        let success = match spec_version {
            SpecVersion::V2 => {
                operation["produces"] = json!(self.media_types);
                json!({"description": "OK", "schema": schema})
            }
            SpecVersion::V3 => {
                let media = self.media_types.iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema})));
                json!({"description": "OK", "content": media.collect::<Map<_, _>>()})
            }
        };
        operation["responses"] = json!({"200": success, "401": {"description": "Unauthorized"}});
        json!({"get": operation})
    }
}

/// All paths that belong to no resource. Groups of custom resources have none.
pub(super) fn list_paths(resources: &[&ResourceRef]) -> Vec<NonResourcePath> {
    const RESOURCES: &str = "get available resources";
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for resource in resources.iter().filter(|resource| !resource.is_custom()) {
        versions.entry(&resource.gvr.group).or_default().insert(&resource.gvr.version);
    }
    let mut paths = vec![
        NonResourcePath {
            path: ".well-known/openid-configuration".into(),
            tag: "WellKnown".into(),
            description: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
            operation_id: "getServiceAccountIssuerOpenIDConfiguration".into(),
            definition: None,
            media_types: &MEDIA_TYPES[..1],
        },
        NonResourcePath {
            path: "openid/v1/jwks".into(),
            tag: "openid".into(),
            description: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
            operation_id: "getServiceAccountIssuerOpenIDKeyset".into(),
            definition: None,
            media_types: &["application/jwk-set+json"],
        },
        NonResourcePath {
            path: "version".into(),
            tag: "version".into(),
            description: "get the version information for this server",
            operation_id: "getCodeVersion".into(),
            definition: Some("io.k8s.apimachinery.pkg.version.Info".into()),
            media_types: &MEDIA_TYPES[..1],
        },
        NonResourcePath::with_meta_kind(
            "api".into(),
            "core".into(),
            "get available API versions",
            "getCoreAPIVersions".into(),
            "APIVersions",
        ),
        NonResourcePath::with_meta_kind(
            "apis".into(),
            "apis".into(),
            "get available API versions",
            "getAPIVersions".into(),
            "APIGroupList",
        ),
    ];
    for (group, versions) in versions {
        let root = if group.is_empty() { "api".to_owned() } else { format!("apis/{group}") };
        if !group.is_empty() {
            let id = identifiers::group_operation_id(group, "", "APIGroup");
            let tag = identifiers::group_tag(group);
            paths.push(NonResourcePath::with_meta_kind(
                root.clone(),
                tag,
                "get information of a group",
                id,
                "APIGroup",
            ));
        }
        for version in versions {
            let id = identifiers::group_operation_id(group, version, "APIResources");
            let tag = identifiers::tag(group, version);
            paths.push(NonResourcePath::with_meta_kind(
                format!("{root}/{version}"),
                tag,
                RESOURCES,
                id,
                "APIResourceList",
            ));
        }
    }
    paths
}

/// Adds the paths of a v2 document to `paths`, and the names of the definitions that they reference to `definitions`.
pub(super) fn add_all(resources: &[&ResourceRef], paths: &mut Map<String, Value>, definitions: &mut Vec<String>) {
    for path in list_paths(resources) {
        paths.insert(path.document_path(), path.item(SpecVersion::V2));
        definitions.extend(path.definition);
    }
}
