//! Operations: description, parameters, bodies, responses and kinds.

use crowsnest_registry::resource::{ResourceRef, Subresource};
use serde_json::{Map, Value, json};

use super::definitions::{self, Form, reference};
use super::{identifiers, parameters};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const ANYTHING: &str = "*/*";

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
    pub(super) form: Form,
    pub(super) action: Action,
    /// HTTP method in lower case.
    pub(super) method: &'static str,
    /// True if the path contains a namespace.
    pub(super) namespaced: bool,
    /// True if the path contains the name of an object.
    pub(super) named: bool,
    /// True if the path ends with a path in the target.
    pub(super) with_path: bool,
}

impl Operation<'_> {
    pub(super) fn document(&self) -> Value {
        let (definition, kind) = self.kind();
        let mut out = json!({
            "tags": [identifiers::tag(&self.resource.gvr.group, &self.resource.gvr.version)],
            "description": self.description(),
            "operationId": identifiers::operation_id(self),
            "responses": self.responses(&definition),
            "x-kubernetes-action": self.action.name(),
            "x-kubernetes-group-version-kind": kind,
        });
        let mut parameters = self.parameters();
        self.body(&mut out, &mut parameters, &definition);
        out["parameters"] = Value::Array(parameters);
        out
    }

    fn is_custom(&self) -> bool {
        self.resource.strategy.published_schema().is_some()
    }

    /// Name of the definition of the operation's kind, and the kind.
    fn kind(&self) -> (String, Value) {
        let resource = self.resource;
        let own = || json!({"group": resource.gvr.group, "version": resource.gvr.version, "kind": resource.kind});
        match self.subresource {
            Some(sub) if sub.kind != resource.kind => {
                let gvk = json!({"group": sub.group, "version": sub.version, "kind": sub.kind});
                let schema = crowsnest_schema::set::SchemaSet::builtin().kind(&sub.group, &sub.version, &sub.kind);
                let definition = schema.and_then(|s| s.name.as_deref().map(str::to_owned)).unwrap_or_default();
                // As in kube-apiserver, the scale of a custom resource is an operation of its kind.
                (definition, if self.is_custom() { own() } else { gvk })
            }
            _ => (definitions::name(resource), own()),
        }
    }

    fn description(&self) -> String {
        let kind = &self.resource.kind;
        let sub = self.subresource.map(|subresource| subresource.name);
        let of = sub.map(|sub| format!("{sub} of ")).unwrap_or_default();
        let instead = "deprecated: use the 'watch' parameter with a list operation instead";
        match self.action {
            Action::List => format!("list {of}objects of kind {kind}"),
            Action::Create => format!("create {of}{}", with_article(kind)),
            Action::DeleteCollection => format!("delete collection of {kind}"),
            Action::Get => format!("read {of}the specified {kind}"),
            Action::Update => format!("replace {of}the specified {kind}"),
            Action::Patch => format!("partially update {of}the specified {kind}"),
            Action::Delete => format!("delete {of}{}", with_article(kind)),
            Action::Watch => format!(
                "watch changes to an object of kind {kind}. {instead}, filtered to a single item with the 'fieldSelector' parameter."
            ),
            Action::WatchList => format!("watch individual changes to a list of {kind}. {instead}."),
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
        let mut out: Vec<Value> = queries.into_iter().map(|query| parameters::query(query, self.form)).collect();
        if self.named {
            out.push(parameters::path("name", &format!("name of the {}", self.named_kind()), self.form));
        }
        if self.namespaced {
            let description = "object name and auth scope, such as for teams and projects";
            out.push(parameters::path("namespace", description, self.form));
        }
        if self.with_path {
            out.push(parameters::path("path", "path to the resource", self.form));
        }
        out
    }

    fn is_log(&self) -> bool {
        self.subresource.is_some_and(|subresource| subresource.name == "log")
    }

    /// The kind in the description of the name: for built-in kinds, that of the subresource.
    fn named_kind(&self) -> &str {
        let subresource = self.subresource.filter(|_| !self.is_custom());
        subresource.map_or(&self.resource.kind, |subresource| &subresource.kind)
    }

    fn body(&self, out: &mut Value, parameters: &mut Vec<Value>, definition: &str) {
        let (name, required) = match self.action {
            Action::Create | Action::Update => (definition.to_owned(), true),
            Action::Patch => (format!("{META}.Patch"), true),
            Action::Delete => (format!("{META}.DeleteOptions"), false),
            Action::DeleteCollection if !self.is_custom() => (format!("{META}.DeleteOptions"), false),
            _ => return,
        };
        let media = match self.action {
            Action::Patch => self.patches(),
            _ if self.is_custom() => vec!["application/json", YAML],
            _ => vec![ANYTHING],
        };
        let schema = reference(&name, self.form);
        match self.form {
            Form::V2 => {
                let body = json!({"name": "body", "in": "body", "schema": schema});
                parameters.push(body);
                if let Some(body) = parameters.last_mut().filter(|_| required) {
                    body["required"] = true.into();
                }
                out["consumes"] = json!(media);
            }
            Form::V3 => {
                out["requestBody"] = json!({"content": content(&media, &schema)});
                if required {
                    out["requestBody"]["required"] = true.into();
                }
            }
        }
    }

    fn patches(&self) -> Vec<&'static str> {
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
            Action::DeleteCollection => format!("{META}.Status"),
            Action::Delete if crate::http::handler::returns_object(self.resource) => definition.to_owned(),
            Action::Delete => format!("{META}.Status"),
            Action::Watch | Action::WatchList => format!("{META}.WatchEvent"),
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
        let schema = if definition.is_empty() { json!({"type": "string"}) } else { reference(definition, self.form) };
        if self.form == Form::V2 {
            return json!({"description": description, "schema": schema});
        }
        let streamed = matches!(self.action, Action::List | Action::Watch | Action::WatchList);
        let media: &[&str] = match self.action {
            Action::Connect => &[ANYTHING],
            _ if self.is_log() => &["application/json", PROTOBUF, YAML, "text/plain"],
            _ if self.is_custom() => &["application/json", YAML],
            _ if streamed => &[
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
    let plural = kind.ends_with('s') && !kind.ends_with("ss");
    match (plural, kind.starts_with(['A', 'E', 'I', 'O', 'U'])) {
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
