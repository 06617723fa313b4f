//! OpenAPI paths of served resources with the parts of operations that clients use: actions, kinds, parameters,
//! media types.

use serde_json::{Map, Value, json};

pub(super) use super::definitions::Form;
use super::definitions::{self, reference};
use crowsnest_registry::resource::{ResourceRef, Subresource};

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// The paths of all resources.
pub(super) fn all(resources: &[&ResourceRef], form: Form) -> Map<String, Value> {
    let mut paths = Map::new();
    for resource in resources {
        let root = super::served_at(resource);
        let plural = &resource.gvr.resource;
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("/{root}{scope}/{plural}");
        let item = format!("{collection}/{{name}}");
        if resource.namespaced && resource.verbs.contains(&"list") {
            let path = Path { resource, form, subresource: None };
            paths.insert(format!("/{root}/{plural}"), path.of(&["list"], false, false));
        }
        let path = Path { resource, form, subresource: None };
        let whole = path.of(&["list", "create", "deletecollection"], resource.namespaced, false);
        paths.insert(collection, whole);
        let single = path.of(&["get", "update", "patch", "delete"], resource.namespaced, true);
        if single.as_object().is_some_and(|methods| methods.len() > 1) {
            paths.insert(item.clone(), single);
        }
        for subresource in &resource.subresources {
            let path = Path { resource, form, subresource: Some(subresource) };
            let verbs = ["get", "update", "patch", "create", "delete"];
            paths.insert(format!("{item}/{}", subresource.name), path.of(&verbs, resource.namespaced, true));
        }
    }
    paths
}

struct Path<'a> {
    resource: &'a ResourceRef,
    form: Form,
    subresource: Option<&'a Subresource>,
}

impl Path<'_> {
    /// The operations for the given verbs that the resource serves.
    fn of(&self, verbs: &[&str], namespaced: bool, named: bool) -> Value {
        let served = self.subresource.map_or(&self.resource.verbs, |s| &s.verbs);
        let mut methods = Map::new();
        for verb in verbs.iter().filter(|verb| served.contains(verb)) {
            let method = match *verb {
                "list" | "get" => "get",
                "create" => "post",
                "update" => "put",
                "patch" => "patch",
                _ => "delete",
            };
            methods.insert(method.into(), self.operation(verb, method, namespaced));
        }
        let mut shared = vec![self.parameter("pretty", "query", "string")];
        if namespaced {
            shared.push(self.parameter("namespace", "path", "string"));
        }
        if named {
            shared.push(self.parameter("name", "path", "string"));
        }
        methods.insert("parameters".into(), Value::Array(shared));
        Value::Object(methods)
    }

    fn parameter(&self, name: &str, place: &str, kind: &str) -> Value {
        let mut out = json!({"name": name, "in": place});
        if place == "path" {
            out["required"] = json!(true);
        }
        match self.form {
            Form::V2 => {
                out["type"] = json!(kind);
                out["uniqueItems"] = json!(true);
            }
            Form::V3 => out["schema"] = json!({"type": kind, "uniqueItems": true}),
        }
        out
    }

    fn kind(&self) -> (String, Value) {
        let resource = self.resource;
        let own = || {
            let gvk = json!({"group": resource.gvr.group, "version": resource.gvr.version, "kind": resource.kind});
            (definitions::name(resource), gvk)
        };
        match self.subresource {
            Some(sub) if sub.kind != resource.kind => {
                let gvk = json!({"group": sub.group, "version": sub.version, "kind": sub.kind});
                let schema = crowsnest_schema::set::SchemaSet::builtin().kind(&sub.group, &sub.version, &sub.kind);
                (schema.and_then(|s| s.name.as_deref().map(str::to_owned)).unwrap_or_default(), gvk)
            }
            _ => own(),
        }
    }

    fn operation(&self, verb: &str, method: &str, namespaced: bool) -> Value {
        let (definition, gvk) = self.kind();
        let action = match verb {
            "create" => "post",
            "update" => "put",
            other => other,
        };
        let tag = identifier(self.group(), false);
        let mut out = json!({
            "tags": [format!("{tag}_{}", identifier(&self.resource.gvr.version, false))],
            "operationId": self.operation_id(action, namespaced),
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
        });
        let answer = match verb {
            "list" => format!("{definition}List"),
            "delete" | "deletecollection" => STATUS.to_owned(),
            _ => definition.clone(),
        };
        let success = if method == "post" { "201" } else { "200" };
        out["responses"] = json!({success: self.response(&answer), "401": {"description": "Unauthorized"}});
        let mut parameters = Vec::new();
        match method {
            "post" | "put" | "patch" => {
                for name in ["dryRun", "fieldManager", "fieldValidation"] {
                    parameters.push(self.parameter(name, "query", "string"));
                }
                if method == "patch" {
                    parameters.push(self.parameter("force", "query", "boolean"));
                }
            }
            "delete" => {
                for (name, kind) in
                    [("dryRun", "string"), ("gracePeriodSeconds", "integer"), ("propagationPolicy", "string")]
                {
                    parameters.push(self.parameter(name, "query", kind));
                }
            }
            _ if verb == "list" => {
                for (name, kind) in [
                    ("allowWatchBookmarks", "boolean"),
                    ("continue", "string"),
                    ("fieldSelector", "string"),
                    ("labelSelector", "string"),
                    ("limit", "integer"),
                    ("resourceVersion", "string"),
                    ("resourceVersionMatch", "string"),
                    ("sendInitialEvents", "boolean"),
                    ("timeoutSeconds", "integer"),
                    ("watch", "boolean"),
                ] {
                    parameters.push(self.parameter(name, "query", kind));
                }
            }
            _ => {}
        }
        let body = match method {
            "post" | "put" => Some(definition.as_str()),
            "patch" => Some(PATCH),
            "delete" => Some(DELETE_OPTIONS),
            _ => None,
        };
        if let Some(body) = body {
            self.body(&mut out, &mut parameters, body, method);
        }
        if !parameters.is_empty() {
            out["parameters"] = Value::Array(parameters);
        }
        out
    }

    fn body(&self, out: &mut Value, parameters: &mut Vec<Value>, definition: &str, method: &str) {
        let mut media = vec!["application/json", "application/yaml"];
        if method == "patch" {
            media = vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
            if self.resource.strategy.open_api().is_none() {
                media.push("application/strategic-merge-patch+json");
            }
        }
        let schema = reference(definition, self.form);
        match self.form {
            Form::V2 => {
                parameters.push(json!({"name": "body", "in": "body", "required": true, "schema": schema}));
                if method == "patch" {
                    out["consumes"] = json!(media);
                }
            }
            Form::V3 => {
                let content: Map<String, Value> =
                    media.iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema.clone()}))).collect();
                out["requestBody"] = json!({"content": content, "required": method != "delete"});
            }
        }
    }

    fn response(&self, definition: &str) -> Value {
        if definition.is_empty() {
            return json!({"description": "OK"});
        }
        let schema = reference(definition, self.form);
        match self.form {
            Form::V2 => json!({"description": "OK", "schema": schema}),
            Form::V3 => json!({"description": "OK", "content": {
                "application/json": {"schema": schema.clone()}, "application/yaml": {"schema": schema},
            }}),
        }
    }

    /// The group in tags and operation IDs.
    fn group(&self) -> &str {
        match &*self.resource.gvr.group {
            "" => "core",
            group => group.strip_suffix(".k8s.io").unwrap_or(group),
        }
    }

    /// Operation ID such as `readAppsV1NamespacedDeploymentStatus`. The list of a namespaced resource in all namespaces
    /// has an ID of its own.
    fn operation_id(&self, action: &str, namespaced: bool) -> String {
        let (verb, collection) = match action {
            "get" => ("read", ""),
            "post" => ("create", ""),
            "put" => ("replace", ""),
            "deletecollection" => ("delete", "Collection"),
            other => (other, ""),
        };
        let (scope, everywhere) = match (self.resource.namespaced, namespaced) {
            (false, _) => ("", ""),
            (true, true) => ("Namespaced", ""),
            (true, false) => ("", "ForAllNamespaces"),
        };
        let (group, version) = (identifier(self.group(), true), identifier(&self.resource.gvr.version, true));
        let subresource = self.subresource.map(|subresource| identifier(subresource.name, true)).unwrap_or_default();
        format!("{verb}{group}{version}{collection}{scope}{}{subresource}{everywhere}", self.resource.kind)
    }
}

/// The letters and digits of a text in camel case, as in Kubernetes' operation IDs.
fn identifier(text: &str, begins_upper_case: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_next_upper_case = begins_upper_case;
    for (at, c) in text.char_indices() {
        if !(c.is_alphabetic() || c == '_' || at != 0 && c.is_numeric()) {
            is_next_upper_case = true;
        } else if std::mem::take(&mut is_next_upper_case) {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("core", true, "Core")]
    #[case("rbac.authorization", false, "rbacAuthorization")]
    #[case("acme.cert-manager.io", true, "AcmeCertManagerIo")]
    #[case("v1beta1", true, "V1beta1")]
    #[case("ephemeralcontainers", true, "Ephemeralcontainers")]
    #[case("3scale.net", true, "ScaleNet")]
    fn identifiers_are_camel_case(#[case] text: &str, #[case] upper: bool, #[case] expected: &str) {
        assert_eq!(identifier(text, upper), expected);
    }
}
