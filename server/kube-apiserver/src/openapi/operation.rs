//! Operations: description, parameters, bodies, responses and kinds.

use crowsnest_registry::resource::{ResourceRef, Subresource};
use serde_json::{Map, Value, json};

use super::definitions::{self, SpecVersion, reference};
use super::{identifiers, parameters};

/// Package of the kinds of `meta/v1`, as the prefix of their definitions.
pub(super) const META_V1: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const ANY_MEDIA_TYPE: &str = "*/*";

/// Kind of an operation; the value of `x-kubernetes-action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    List,
    Create,
    DeleteCollection,
    Get,
    Update,
    Patch,
    Delete,
    /// Deprecated watch of a single object.
    Watch,
    /// Deprecated watch of a collection.
    WatchList,
    /// Request that is passed on to a pod, service or node.
    Connect,
}

impl Action {
    /// `x-kubernetes-action`
    fn name(self) -> &'static str {
        match self {
            Action::List => "list",
            Action::Create => "post",
            Action::DeleteCollection => "deletecollection",
            Action::Get => "get",
            Action::Update => "put",
            Action::Patch => "patch",
            Action::Delete => "delete",
            Action::Watch => "watch",
            Action::WatchList => "watchlist",
            Action::Connect => "connect",
        }
    }
}

/// An operation on a path.
#[derive(Clone, Copy)]
pub(super) struct Operation<'a> {
    pub(super) resource: &'a ResourceRef,
    pub(super) subresource: Option<&'a Subresource>,
    pub(super) spec_version: SpecVersion,
    pub(super) action: Action,
    /// HTTP method in lower case.
    pub(super) method: &'static str,
    /// True if the path contains a namespace.
    pub(super) is_namespaced: bool,
    /// True if the path contains the name of an object.
    pub(super) has_name: bool,
    /// True if the path ends with the path of a proxied request.
    pub(super) has_path: bool,
}

impl Operation<'_> {
    /// The operation in a document.
    pub(super) fn to_json(self) -> Value {
        let (definition, kind) = self.kind();
        let mut out = json!({
            "tags": [identifiers::tag(&self.resource.gvr.group, &self.resource.gvr.version)],
            "description": self.description(),
            "operationId": identifiers::operation_id(&self),
            "responses": self.responses(&definition),
            "x-kubernetes-action": self.action.name(),
            "x-kubernetes-group-version-kind": kind,
        });
        let mut parameters = self.parameters();
        self.add_body(&mut out, &mut parameters, &definition);
        out["parameters"] = Value::Array(parameters);
        out
    }

    fn is_custom(&self) -> bool {
        self.resource.strategy.published_schema().is_some()
    }

    /// Name of the definition of the operation's kind, and the kind.
    fn kind(&self) -> (String, Value) {
        let resource = self.resource;
        let resource_kind =
            || json!({"group": resource.gvr.group, "version": resource.gvr.version, "kind": resource.kind});
        match self.subresource {
            Some(sub) if sub.kind != resource.kind => {
                let gvk = json!({"group": sub.group, "version": sub.version, "kind": sub.kind});
                let schema =
                    crowsnest_schema::schema_set::SchemaSet::builtin().kind(&sub.group, &sub.version, &sub.kind);
                let definition = schema.and_then(|s| s.name.as_deref().map(str::to_owned)).unwrap_or_default();
                // As in kube-apiserver, the scale of a custom resource is an operation of its kind.
                (definition, if self.is_custom() { resource_kind() } else { gvk })
            }
            _ => (definitions::definition_name(resource), resource_kind()),
        }
    }

    fn description(&self) -> String {
        let kind = &self.resource.kind;
        let sub = self.subresource.map(|subresource| subresource.name);
        let subresource_of = sub.map(|sub| format!("{sub} of ")).unwrap_or_default();
        let deprecation = "deprecated: use the 'watch' parameter with a list operation instead";
        match self.action {
            Action::List => format!("list {subresource_of}objects of kind {kind}"),
            Action::Create => format!("create {subresource_of}{}", with_article(kind)),
            Action::DeleteCollection => format!("delete collection of {kind}"),
            Action::Get => format!("read {subresource_of}the specified {kind}"),
            Action::Update => format!("replace {subresource_of}the specified {kind}"),
            Action::Patch => format!("partially update {subresource_of}the specified {kind}"),
            Action::Delete => format!("delete {subresource_of}{}", with_article(kind)),
            Action::Watch => format!(
                "watch changes to an object of kind {kind}. {deprecation}, filtered to a single item with the 'fieldSelector' parameter."
            ),
            Action::WatchList => format!("watch individual changes to a list of {kind}. {deprecation}."),
            Action::Connect => {
                format!("connect {} requests to {} of {kind}", self.method.to_uppercase(), sub.unwrap_or_default())
            }
        }
    }

    /// Parameters of the query and path.
    fn parameters(&self) -> Vec<Value> {
        let mut queries: Vec<_> = match self.action {
            Action::List | Action::Watch | Action::WatchList => parameters::LIST.to_vec(),
            Action::DeleteCollection if self.is_custom() => parameters::LIST.to_vec(),
            Action::DeleteCollection => parameters::delete_collection(),
            Action::Get if self.is_custom() => parameters::GET_CUSTOM.to_vec(),
            Action::Get if self.is_log() => parameters::connect("PodLogOptions").to_vec(),
            Action::Get => Vec::new(),
            Action::Create | Action::Update => parameters::WRITE.to_vec(),
            Action::Patch if self.is_custom() => parameters::WRITE.to_vec(),
            Action::Patch => parameters::WRITE.into_iter().chain([parameters::FORCE]).collect(),
            Action::Delete => parameters::DELETE.to_vec(),
            Action::Connect => self.subresource.map(|sub| parameters::connect(&sub.kind).to_vec()).unwrap_or_default(),
        };
        if self.action != Action::Connect {
            queries.push(parameters::PRETTY);
        }
        let mut out: Vec<Value> =
            queries.into_iter().map(|query| parameters::query(query, self.spec_version)).collect();
        if self.has_name {
            out.push(parameters::path("name", &format!("name of the {}", self.kind_of_name()), self.spec_version));
        }
        if self.is_namespaced {
            let description = "object name and auth scope, such as for teams and projects";
            out.push(parameters::path("namespace", description, self.spec_version));
        }
        if self.has_path {
            out.push(parameters::path("path", "path to the resource", self.spec_version));
        }
        out
    }

    fn is_log(&self) -> bool {
        self.subresource.is_some_and(|subresource| subresource.name == "log")
    }

    /// The kind in the description of the name: for built-in kinds, that of the subresource.
    fn kind_of_name(&self) -> &str {
        let subresource = self.subresource.filter(|_| !self.is_custom());
        subresource.map_or(&self.resource.kind, |subresource| &subresource.kind)
    }

    /// Adds the request body: to the parameters in v2, to the operation in v3.
    fn add_body(&self, out: &mut Value, parameters: &mut Vec<Value>, definition: &str) {
        let (name, is_required) = match self.action {
            Action::Create | Action::Update => (definition.to_owned(), true),
            Action::Patch => (format!("{META_V1}.Patch"), true),
            Action::Delete => (format!("{META_V1}.DeleteOptions"), false),
            Action::DeleteCollection if !self.is_custom() => (format!("{META_V1}.DeleteOptions"), false),
            _ => return,
        };
        let media = match self.action {
            Action::Patch => self.patch_media_types(),
            _ if self.is_custom() => vec!["application/json", YAML],
            _ => vec![ANY_MEDIA_TYPE],
        };
        let schema = reference(&name, self.spec_version);
        match self.spec_version {
            SpecVersion::V2 => {
                let mut body = json!({"name": "body", "in": "body", "schema": schema});
                if is_required {
                    body["required"] = true.into();
                }
                parameters.push(body);
                out["consumes"] = json!(media);
            }
            SpecVersion::V3 => {
                out["requestBody"] = json!({"content": content(&media, &schema)});
                if is_required {
                    out["requestBody"]["required"] = true.into();
                }
            }
        }
    }

    fn patch_media_types(&self) -> Vec<&'static str> {
        let mut media =
            vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
        if !self.is_custom() {
            media.push("application/strategic-merge-patch+json");
        }
        media
    }

    fn responses(&self, definition: &str) -> Value {
        let schema = match self.action {
            Action::List => format!("{definition}List"),
            Action::DeleteCollection => format!("{META_V1}.Status"),
            Action::Delete if crate::http::handler::returns_object(self.resource) => definition.to_owned(),
            Action::Delete => format!("{META_V1}.Status"),
            Action::Watch | Action::WatchList => format!("{META_V1}.WatchEvent"),
            Action::Connect => String::new(),
            _ if self.is_log() => String::new(),
            _ => definition.to_owned(),
        };
        let codes: &[(&str, &str)] = match self.action {
            Action::Create => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
            Action::Update => &[("200", "OK"), ("201", "Created")],
            Action::Patch if !self.is_custom() => &[("200", "OK"), ("201", "Created")],
            Action::Delete => &[("200", "OK"), ("202", "Accepted")],
            _ => &[("200", "OK")],
        };
        let mut out: Map<String, Value> =
            codes.iter().map(|(code, text)| ((*code).to_owned(), self.response(text, &schema))).collect();
        out.insert("401".into(), json!({"description": "Unauthorized"}));
        Value::Object(out)
    }

    fn response(&self, description: &str, definition: &str) -> Value {
        let schema =
            if definition.is_empty() { json!({"type": "string"}) } else { reference(definition, self.spec_version) };
        if self.spec_version == SpecVersion::V2 {
            return json!({"description": description, "schema": schema});
        }
        let is_watchable = matches!(self.action, Action::List | Action::Watch | Action::WatchList);
        let media: &[&str] = match self.action {
            Action::Connect => &[ANY_MEDIA_TYPE],
            _ if self.is_log() => &["application/json", PROTOBUF, YAML, "text/plain"],
            _ if self.is_custom() => &["application/json", YAML],
            _ if is_watchable => &[
                "application/json",
                "application/json;stream=watch",
                PROTOBUF,
                "application/vnd.kubernetes.protobuf;stream=watch",
                YAML,
            ],
            _ => &["application/json", PROTOBUF, YAML],
        };
        json!({"description": description, "content": content(media, &schema)})
    }
}

/// The schema for each of the media types.
fn content(media: &[&str], schema: &Value) -> Map<String, Value> {
    media.iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema}))).collect()
}

/// A kind with its article; plurals have none.
fn with_article(kind: &str) -> String {
    let is_plural = kind.ends_with('s') && !kind.ends_with("ss");
    match (is_plural, kind.starts_with(['A', 'E', 'I', 'O', 'U'])) {
        (true, _) => kind.to_owned(),
        (false, true) => format!("an {kind}"),
        (false, false) => format!("a {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("Pod", "a Pod")]
    #[case("Ingress", "an Ingress")]
    #[case("Endpoints", "Endpoints")]
    #[case("StorageClass", "a StorageClass")]
    fn kinds_have_articles(#[case] kind: &str, #[case] expected: &str) {
        assert_eq!(with_article(kind), expected);
    }
}
