//! Documents of the paths that belong to no resource: versions, groups, resources of a group version, keys.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_registry::resource::ResourceRef;
use serde_json::{Map, Value, json};

use super::definitions::{Form, reference};
use super::identifiers;
use super::operation::META;

static MEDIA: [&str; 3] = ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"];

/// A GET operation on a path that belongs to no resource.
pub(super) struct Root {
    /// The path without slashes at its ends, which names its v3 document.
    pub(super) path: String,
    tag: String,
    description: &'static str,
    id: String,
    /// Definition of the response; `None` is a text.
    pub(super) definition: Option<String>,
    media: &'static [&'static str],
}

impl Root {
    fn meta(path: String, tag: String, description: &'static str, id: String, kind: &str) -> Self {
        Self { path, tag, description, id, definition: Some(format!("{META}.{kind}")), media: &MEDIA }
    }

    /// The path as in documents.
    pub(super) fn document_path(&self) -> String {
        format!("/{}/", self.path)
    }

    pub(super) fn item(&self, form: Form) -> Value {
        let schema = self.definition.as_deref().map_or_else(|| json!({"type": "string"}), |name| reference(name, form));
        let mut operation = json!({
            "tags": [self.tag], "description": self.description, "operationId": self.id,
        });
        let success = match form {
            Form::V2 => {
                operation["produces"] = json!(self.media);
                json!({"description": "OK", "schema": schema})
            }
            Form::V3 => {
                let media = self.media.iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema})));
                json!({"description": "OK", "content": media.collect::<Map<_, _>>()})
            }
        };
        operation["responses"] = json!({"200": success, "401": {"description": "Unauthorized"}});
        json!({"get": operation})
    }
}

/// All such paths. Groups of custom resources have none.
pub(super) fn all(resources: &[&ResourceRef]) -> Vec<Root> {
    const RESOURCES: &str = "get available resources";
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for resource in resources.iter().filter(|resource| !resource.is_custom()) {
        versions.entry(&resource.gvr.group).or_default().insert(&resource.gvr.version);
    }
    let mut roots = vec![
        Root {
            path: ".well-known/openid-configuration".into(),
            tag: "WellKnown".into(),
            description: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
            id: "getServiceAccountIssuerOpenIDConfiguration".into(),
            definition: None,
            media: &MEDIA[..1],
        },
        Root {
            path: "openid/v1/jwks".into(),
            tag: "openid".into(),
            description: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
            id: "getServiceAccountIssuerOpenIDKeyset".into(),
            definition: None,
            media: &["application/jwk-set+json"],
        },
        Root {
            path: "version".into(),
            tag: "version".into(),
            description: "get the version information for this server",
            id: "getCodeVersion".into(),
            definition: Some("io.k8s.apimachinery.pkg.version.Info".into()),
            media: &MEDIA[..1],
        },
        Root::meta(
            "api".into(),
            "core".into(),
            "get available API versions",
            "getCoreAPIVersions".into(),
            "APIVersions",
        ),
        Root::meta("apis".into(), "apis".into(), "get available API versions", "getAPIVersions".into(), "APIGroupList"),
    ];
    for (group, versions) in versions {
        let root = if group.is_empty() { "api".to_owned() } else { format!("apis/{group}") };
        if !group.is_empty() {
            let id = identifiers::group_operation_id(group, "", "APIGroup");
            let tag = identifiers::group_tag(group);
            roots.push(Root::meta(root.clone(), tag, "get information of a group", id, "APIGroup"));
        }
        for version in versions {
            let id = identifiers::group_operation_id(group, version, "APIResources");
            let tag = identifiers::tag(group, version);
            roots.push(Root::meta(format!("{root}/{version}"), tag, RESOURCES, id, "APIResourceList"));
        }
    }
    roots
}

/// Adds the paths of a v2 document to `paths`, and the names of the definitions that they reference to `definitions`.
pub(super) fn add_all(resources: &[&ResourceRef], paths: &mut Map<String, Value>, definitions: &mut Vec<String>) {
    for root in all(resources) {
        paths.insert(root.document_path(), root.item(Form::V2));
        definitions.extend(root.definition);
    }
}
