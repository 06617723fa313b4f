//! OpenAPI paths of served resources, with their operations.

use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_registry::resource::{ResourceRef, Subresource};
use serde_json::{Map, Value};

use super::definitions::SpecVersion;
use super::operation::{Action, Operation};

/// Verbs of a collection, with their actions and methods.
const COLLECTION: [(&str, Action, &str); 3] = [
    ("list", Action::List, "get"),
    ("create", Action::Create, "post"),
    ("deletecollection", Action::DeleteCollection, "delete"),
];
/// Verbs of an object and its subresources.
const OBJECT: [(&str, Action, &str); 5] = [
    ("get", Action::Get, "get"),
    ("update", Action::Update, "put"),
    ("patch", Action::Patch, "patch"),
    ("create", Action::Create, "post"),
    ("delete", Action::Delete, "delete"),
];

/// Verbs of a connection: those of an object. HEAD and OPTIONS requests are forwarded as well, with the verb of PUT.
fn connection_verbs() -> Vec<(&'static str, Action, &'static str)> {
    let forwarded = ["head", "options"].map(|method| ("update", method));
    let verbs = OBJECT.map(|(verb, _, method)| (verb, method)).into_iter().chain(forwarded);
    verbs.map(|(verb, method)| (verb, Action::Connect, method)).collect()
}

/// The paths of all resources.
pub(super) fn build_paths(resources: &[&ResourceRef], spec_version: SpecVersion) -> Map<String, Value> {
    let mut paths = Map::new();
    for resource in resources {
        let path = Path {
            resource,
            spec_version,
            subresource: None,
            is_namespaced: resource.namespaced,
            has_name: false,
            has_path: false,
        };
        add_resource_paths(path, &mut paths);
        if !resource.is_custom() && resource.verbs.contains(&"watch") {
            add_watch_paths(path, &mut paths);
        }
    }
    paths
}

/// Adds the paths of a resource and its subresources.
fn add_resource_paths(path: Path<'_>, paths: &mut Map<String, Value>) {
    let resource = path.resource;
    let (root, plural) = (super::group_version_path(resource), &resource.gvr.resource);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("/{root}{scope}/{plural}");
    let item = format!("{collection}/{{name}}");
    let mut insert = |name: String, path: Path<'_>, verbs: &[(&str, Action, &'static str)]| {
        if let Some(document) = path.to_json(verbs) {
            paths.insert(name, document);
        }
    };
    if resource.namespaced {
        insert(format!("/{root}/{plural}"), Path { is_namespaced: false, ..path }, &COLLECTION[..1]);
    }
    insert(collection, path, &COLLECTION);
    let object = Path { has_name: true, ..path };
    insert(item.clone(), object, &[OBJECT[0], OBJECT[1], OBJECT[2], OBJECT[4]]);
    for subresource in &resource.subresources {
        let path = Path { subresource: Some(subresource), ..object };
        let name = format!("{item}/{}", subresource.name);
        match subresource.name {
            "proxy" => {
                insert(name.clone(), path, &connection_verbs());
                insert(format!("{name}/{{path}}"), Path { has_path: true, ..path }, &connection_verbs());
            }
            "attach" | "exec" | "portforward" => insert(name, path, &connection_verbs()),
            _ => insert(name, path, &OBJECT),
        }
    }
}

/// Adds the paths of the deprecated watches of a built-in resource.
fn add_watch_paths(path: Path<'_>, paths: &mut Map<String, Value>) {
    let resource = path.resource;
    let (root, plural) = (super::group_version_path(resource), &resource.gvr.resource);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let list = [("watch", Action::WatchList, "get")];
    let mut insert = |name: String, path: Path<'_>, verbs: &[(&str, Action, &'static str)]| {
        if let Some(document) = path.to_json(verbs) {
            paths.insert(name, document);
        }
    };
    if resource.namespaced {
        insert(format!("/{root}/watch/{plural}"), Path { is_namespaced: false, ..path }, &list);
    }
    insert(format!("/{root}/watch{scope}/{plural}"), path, &list);
    let single = [("watch", Action::Watch, "get")];
    insert(format!("/{root}/watch{scope}/{plural}/{{name}}"), Path { has_name: true, ..path }, &single);
}

/// A path of a resource; the fields are those of [`Operation`].
#[derive(Clone, Copy)]
struct Path<'a> {
    resource: &'a ResourceRef,
    spec_version: SpecVersion,
    subresource: Option<&'a Subresource>,
    is_namespaced: bool,
    has_name: bool,
    has_path: bool,
}

impl Path<'_> {
    /// The path with the operations of those verbs that the resource serves; `None` if there is none.
    fn to_json(self, verbs: &[(&str, Action, &'static str)]) -> Option<Value> {
        let served = self.subresource.map_or(&self.resource.verbs, |s| &s.verbs);
        let mut methods = Map::new();
        for (_, action, method) in verbs.iter().filter(|(verb, ..)| served.contains(verb)) {
            let Self { resource, spec_version, subresource, is_namespaced, has_name, has_path } = self;
            let (action, method) = (*action, *method);
            let operation =
                Operation { resource, subresource, spec_version, action, method, is_namespaced, has_name, has_path };
            methods.insert(method.into(), operation.to_json());
        }
        (!methods.is_empty()).then(|| share_parameters(methods))
    }
}

/// Moves the parameters that all operations of a path have to the path. Bodies stay with their operations.
fn share_parameters(mut methods: Map<String, Value>) -> Value {
    let mut operations = methods.values().map(|operation| list(operation, "parameters"));
    let first = operations.next().unwrap_or_default();
    let others: Vec<&[Value]> = operations.collect();
    let is_shared = |parameter: &&Value| {
        parameter["in"] != "body" && others.iter().all(|parameters| parameters.contains(parameter))
    };
    let mut shared: Vec<Value> = first.iter().filter(is_shared).cloned().collect();
    for operation in methods.values_mut().filter_map(Value::as_object_mut) {
        if let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut) {
            parameters.retain(|parameter| !shared.contains(parameter));
            if parameters.is_empty() {
                operation.remove("parameters");
            }
        }
    }
    shared.sort_by(|left, right| text(left, "name").cmp(text(right, "name")));
    if !shared.is_empty() {
        methods.insert("parameters".into(), Value::Array(shared));
    }
    Value::Object(methods)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parameters_of_all_operations_belong_to_the_path() {
        let parameter = |name: &str| json!({"name": name, "in": "query"});
        let body = json!({"name": "body", "in": "body"});
        let methods = json!({
            "get": {"parameters": [parameter("b"), parameter("a")]},
            "put": {"parameters": [parameter("a"), parameter("b"), parameter("c"), body]},
        });
        let Value::Object(methods) = methods else { panic!("an object") };
        let expected = json!({
            "parameters": [parameter("a"), parameter("b")], "get": {}, "put": {"parameters": [parameter("c"), body]},
        });
        assert_eq!(share_parameters(methods), expected);
    }
}
