//! One object, named by cluster, kind, namespace and name.

use crowsnest_apimachinery::unstructured::{list, text};
use serde_json::{Value, json};

use super::{Call, ToolError};
use crate::api::{Api, SEARCH_API, get, uri};
use crate::output::{Row, row};

/// Maximum number of candidates that are compared with the name.
const MAX_CANDIDATES: &str = "50";

/// An object, identified by a hit of a search.
pub(super) struct Object {
    pub hit: Value,
    /// True if the object was deleted, so that only its revisions exist.
    pub is_deleted: bool,
}

/// JSON Schema of the arguments that name an object.
pub(super) fn properties() -> Value {
    json!({
        "cluster": {"type": "string", "description": "Member cluster; @control-plane for the control plane. May be omitted if one cluster has the object."},
        "kind": {"type": "string", "description": "Kind, plural or short name, with a group if ambiguous: pod, deploy, deployments.apps."},
        "namespace": {"type": "string", "description": "Omit for cluster-scoped objects."},
        "name": {"type": "string"},
    })
}

/// [`properties`] and further ones.
pub(super) fn properties_with(extra: Value) -> Value {
    let mut all = properties();
    if let (Some(all), Value::Object(extra)) = (all.as_object_mut(), extra) {
        all.extend(extra);
    }
    all
}

/// Quotes a text as a value of the query language, if necessary.
pub(super) fn quote(text: &str) -> String {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/' | '@'));
    match is_plain {
        true => text.to_owned(),
        false => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

/// Finds the object that the arguments name. A deleted object is found only if no current one matches. Fails if none or
/// several match.
pub(super) async fn find(call: &Call<'_>) -> Result<Object, ToolError> {
    find_in(call, call.arguments.text_or_empty("cluster")?).await
}

/// Finds the object in this cluster, or in any cluster if the name is empty.
pub(super) async fn find_in(call: &Call<'_>, cluster: &str) -> Result<Object, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let kind = argument("kind")?;
    let (namespace, name) = (argument("namespace")?, argument("name")?);
    let mut query = format!("kind:{} name:={}", quote(kind), quote(name));
    for (field, value) in [("cluster", cluster), ("namespace", namespace)] {
        if !value.is_empty() {
            query.push_str(&format!(" {field}:={}", quote(value)));
        }
    }
    for suffix in ["", " is:deleted"] {
        let response = search_candidates(call.api, &format!("{query}{suffix}")).await?;
        let is_exact_match = |hit: &&Value| {
            text(hit, "name") == name
                && (cluster.is_empty() || text(hit, "cluster") == cluster)
                && (namespace.is_empty() || text(hit, "namespace") == namespace)
        };
        let found: Vec<&Value> = list(&response, "hits").iter().filter(is_exact_match).collect();
        match found.as_slice() {
            [] => {}
            [hit] => return Ok(Object { hit: (*hit).clone(), is_deleted: !suffix.is_empty() }),
            several => return Err(ambiguity_error(several)),
        }
    }
    let scope = if cluster.is_empty() { "any cluster".to_owned() } else { format!("cluster {cluster}") };
    Err(ToolError::Input(format!(
        "{kind} {name:?} not found in {scope}, or you cannot read it there; use `search` to find it"
    )))
}

async fn search_candidates(api: &dyn Api, query: &str) -> Result<Value, ToolError> {
    Ok(get(api, uri(&format!("{SEARCH_API}/query"), &[("q", query), ("limit", MAX_CANDIDATES), ("facets", "kind")]))
        .await?)
}

fn ambiguity_error(hits: &[&Value]) -> ToolError {
    let candidates: Vec<String> = hits
        .iter()
        .take(10)
        .map(|hit| {
            let [cluster, kind, namespace] = ["cluster", "kind", "namespace"].map(|field| text(hit, field));
            format!("{cluster} {kind} ({}) {namespace}", text(hit, "apiVersion"))
        })
        .collect();
    let count = hits.len();
    ToolError::Input(format!(
        "{count} objects have this name; set cluster, namespace, or kind with its group: {}",
        candidates.join("; ")
    ))
}

impl Object {
    /// URI of an operation of the search API about the object.
    pub fn uri(&self, operation: &str, parameters: &[(&str, &str)]) -> String {
        let identity =
            ["cluster", "apiVersion", "resource", "namespace", "name"].map(|field| (field, self.text(field)));
        uri(&format!("{SEARCH_API}/{operation}"), &[&identity[..], parameters].concat())
    }

    /// A text field of the hit; empty if it is missing.
    pub fn text(&self, field: &str) -> &str {
        text(&self.hit, field)
    }

    /// The object as a value of `about:` and `usedby:` in the query language, such as `Pod/shop/web-0`.
    pub fn query_reference(&self) -> String {
        let namespace = match self.text("namespace") {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        };
        quote(&format!("{}/{namespace}{}", self.text("kind"), self.text("name")))
    }

    /// The row that identifies the object.
    pub fn identity_row(&self) -> Row {
        let namespace = self.text("namespace");
        let slash = if namespace.is_empty() { "" } else { "/" };
        let name = format!("{namespace}{slash}{}", self.text("name"));
        let deleted = if self.is_deleted { "deleted" } else { "" };
        row([
            "object",
            self.text("cluster"),
            &format!("{} {}", self.text("apiVersion"), self.text("kind")),
            &name,
            deleted,
        ])
    }
}
