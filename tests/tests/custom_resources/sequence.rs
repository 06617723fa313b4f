//! The requests of a seed: an object is created, changed in several ways and deleted. A request depends on the seed and
//! on the stored object, which [`Sequence::record_response`] reads from responses.

use serde_json::{Value, json};

use super::definition::{Definition, Version};
use super::generate;
use super::literals::to_text;
use super::mutate::{Path, mutate, paths, pointer, remove};
use super::random::Random;
use super::server::Response;

/// Placeholder in a body for the resource version that the server returned last.
pub const RESOURCE_VERSION: &str = "@resourceVersion";
/// Placeholder in a body for the object's UID.
pub const UID: &str = "@uid";
/// Requests that try to create the object.
const CREATIONS: usize = 3;
/// Requests that change or read the object between its creation and its deletion.
const CHANGES: usize = 9;
pub const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const VALIDATIONS: [&str; 5] = ["", "", "Strict", "Warn", "Ignore"];

#[derive(Debug, Clone)]
pub struct Request {
    pub method: &'static str,
    pub path: String,
    pub content_type: &'static str,
    pub accept: &'static str,
    pub body: String,
}

/// Generates the requests of one seed.
pub struct Sequence<'a> {
    random: Random,
    definition: &'a Definition,
    name: String,
    /// Number of requests so far.
    count: usize,
    /// Version of the requests that create the object.
    first_version: usize,
    /// Version of the requests that delete the object.
    last_version: usize,
    /// The object as it was last stored, see [`stored_object`]; null before.
    base: Value,
}

/// Metadata of a stored object that a request may set. Other metadata, such as UIDs and times, differ between servers.
const OWN_METADATA: [&str; 5] = ["name", "labels", "annotations", "finalizers", "ownerReferences"];

/// The object `name` that a server has stored, according to its response; `None` if the response does not contain it.
pub fn stored_object(definition: &Definition, name: &str, request: &Request, response: &Response) -> Option<Value> {
    let body = &response.body;
    // Responses to other kinds of requests are statuses, scales, lists and tables.
    let is_object = body["kind"] == definition.kind.as_str() && body["metadata"]["name"] == name;
    let is_stored = response.code < 300 && request.method != "DELETE" && !request.path.contains("dryRun");
    if !is_object || !is_stored {
        return None;
    }
    let mut object = body.clone();
    object["metadata"].as_object_mut()?.retain(|field, _| OWN_METADATA.contains(&field.as_str()));
    Some(object)
}

impl<'a> Sequence<'a> {
    pub fn new(seed: u64, definition: &'a Definition) -> Self {
        let mut random = Random::new(seed);
        let mut version = || random.below(definition.versions.len());
        let (first_version, last_version) = (version(), version());
        let name = format!("seed-{seed}");
        Self { random, definition, name, count: 0, first_version, last_version, base: Value::Null }
    }

    /// The next request; `None` at the end. [`Self::record_response`] must know the response to the previous one.
    pub fn next_request(&mut self) -> Option<Request> {
        let at = self.count;
        self.count += 1;
        Some(match at {
            0..CREATIONS => self.create(at),
            CREATIONS => self.get(),
            _ if at <= CREATIONS + CHANGES => self.change(),
            _ => return self.delete(at - CREATIONS - CHANGES - 1),
        })
    }

    /// Updates the stored object from the response to the last request.
    pub fn record_response(&mut self, request: &Request, response: &Response) {
        if let Some(object) = stored_object(self.definition, &self.name, request, response) {
            self.base = object;
        }
    }

    /// The requests that remove the object, whatever is stored.
    pub fn cleanup(&self) -> [Request; 2] {
        let path = self.path(self.last_version, "");
        // Finalizers would keep the object for later runs.
        let body = json!({"metadata": {"finalizers": null}}).to_string();
        [request("PATCH", path.clone(), MERGE, body), request("DELETE", path, JSON, String::new())]
    }

    fn version(&mut self) -> usize {
        self.random.below(self.definition.versions.len())
    }

    fn definition_version(&self, version: usize) -> &Version {
        &self.definition.versions[version]
    }

    /// A new object. Each further fault has a probability of `faults` percent.
    fn object(&mut self, version: usize, faults: usize) -> Value {
        let Version { name, schema, .. } = &self.definition.versions[version];
        let group_version = format!("{}/{name}", self.definition.group);
        let random = &mut self.random;
        let mut object = generate::object(random, schema, &group_version, &self.definition.kind, &self.name);
        while random.chance(faults) {
            mutate(random, schema, &mut object);
        }
        object
    }

    /// The stored object; a new one if none is stored.
    fn base(&mut self, version: usize) -> Value {
        match self.base.is_null() {
            true => self.object(version, 0),
            false => self.base.clone(),
        }
    }

    /// The base object in a version, with a fault.
    fn changed_object(&mut self, version: usize) -> Value {
        let mut object = self.base(version);
        object["apiVersion"] = format!("{}/{}", self.definition.group, self.definition_version(version).name).into();
        mutate(&mut self.random, &self.definition.versions[version].schema, &mut object);
        object
    }

    fn path(&self, version: usize, subresource: &str) -> String {
        format!("{}/{}{subresource}", self.definition.collection(self.definition_version(version)), self.name)
    }

    /// Query parameters of a write.
    fn options(&mut self) -> String {
        let validation = self.random.pick(&VALIDATIONS);
        let mut query = if validation.is_empty() { String::new() } else { format!("&fieldValidation={validation}") };
        if self.random.chance(8) {
            query.push_str("&dryRun=All");
        }
        query
    }

    fn create(&mut self, at: usize) -> Request {
        let version = self.first_version;
        let object = self.object(version, if at == 0 { 50 } else { 0 });
        // Some generated objects are refused by formats, patterns and rules, so the last request is sent without options.
        let options = if at + 1 < CREATIONS { self.options() } else { String::new() };
        let path = self.definition.collection(self.definition_version(version));
        request("POST", format!("{path}?fieldManager=creator{options}"), JSON, to_text(&object))
    }

    fn change(&mut self) -> Request {
        match self.random.below(100) {
            0..10 => self.get(),
            10..25 => self.update(),
            25..33 => self.update_status(),
            33..40 => self.scale(),
            40..55 => self.merge_patch(),
            55..68 => self.json_patch(),
            68..70 => self.strategic_patch(),
            70..92 => self.apply(),
            _ => self.list(),
        }
    }

    fn get(&mut self) -> Request {
        let version = self.version();
        let accept = self.random.pick(&[JSON, JSON, TABLE, PARTIAL]);
        Request { accept, ..request("GET", self.path(version, ""), JSON, String::new()) }
    }

    fn update(&mut self) -> Request {
        let version = self.version();
        let mut object = if self.random.chance(60) { self.changed_object(version) } else { self.object(version, 30) };
        if object["metadata"].is_object() && object["metadata"]["resourceVersion"].is_null() && self.random.chance(90) {
            object["metadata"]["resourceVersion"] = RESOURCE_VERSION.into();
        }
        let query = format!("?fieldManager=updater{}", self.options());
        let path = self.path(version, &query);
        request("PUT", path, JSON, to_text(&object))
    }

    fn update_status(&mut self) -> Request {
        let version = self.version();
        let mut object = self.object(version, 30);
        if object["metadata"].is_object() {
            object["metadata"]["resourceVersion"] = RESOURCE_VERSION.into();
        }
        let options = self.options();
        if self.random.chance(60) {
            let path = self.path(version, &format!("/status?fieldManager=status{options}"));
            request("PUT", path, JSON, to_text(&object))
        } else {
            let patch = json!({"status": object["status"]});
            let path = self.path(version, &format!("/status?fieldManager=status{options}"));
            request("PATCH", path, MERGE, to_text(&patch))
        }
    }

    fn scale(&mut self) -> Request {
        let version = self.version();
        if self.definition_version(version).replicas.is_empty() && self.random.chance(80) {
            return self.get();
        }
        let replicas = self.random.pick(&[json!(3), json!(0), json!(-1), json!(2_147_483_648_i64), json!("x")]);
        let path = self.path(version, "/scale");
        match self.random.below(4) {
            0 => request("GET", path, JSON, String::new()),
            1 => request("PATCH", path, MERGE, json!({"spec": {"replicas": replicas}}).to_string()),
            2 => {
                let patch = json!([{"op": "replace", "path": "/spec/replicas", "value": replicas}]);
                request("PATCH", path, "application/json-patch+json", patch.to_string())
            }
            _ => {
                let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": replicas},
                    "metadata": {"name": self.name, "namespace": "default"}});
                request("PUT", path, JSON, scale.to_string())
            }
        }
    }

    /// The object without most of its fields.
    fn without_random_fields(&mut self, mut object: Value) -> Value {
        for _ in 0..self.random.below(6) {
            let all: Vec<Path> = paths(&object).into_iter().filter(|path| path.len() > 1).collect();
            if all.is_empty() {
                break;
            }
            remove(&mut object, &self.random.pick(&all));
        }
        object
    }

    fn merge_patch(&mut self) -> Request {
        let version = self.version();
        let object = if self.random.chance(50) { self.changed_object(version) } else { self.object(version, 50) };
        let mut patch = self.without_random_fields(object);
        if self.random.chance(30) {
            let all = paths(&patch);
            if let Some(target) = (!all.is_empty()).then(|| self.random.pick(&all)).map(|path| pointer(&path)) {
                patch.pointer_mut(&target).into_iter().for_each(|value| *value = Value::Null);
            }
        }
        let query = format!("?fieldManager=patcher{}", self.options());
        let path = self.path(version, &query);
        request("PATCH", path, MERGE, to_text(&patch))
    }

    fn json_patch(&mut self) -> Request {
        let version = self.version();
        let (base, donor) = (self.base(version), self.object(version, 0));
        let (own, others) = (paths(&base), paths(&donor));
        let mut operations = Vec::new();
        for _ in 0..=self.random.below(3) {
            operations.push(self.operation(&own, &others, (&base, &donor)));
        }
        let query = format!("?fieldManager=patcher{}", self.options());
        let path = self.path(version, &query);
        request("PATCH", path, "application/json-patch+json", to_text(&operations.into()))
    }

    fn operation(&mut self, own: &[Path], others: &[Path], (base, donor): (&Value, &Value)) -> Value {
        let bad =
            ["", "/", "/spec/none/deep", "/spec/-", "/metadata/labels/a~1b", "spec", "/spec/~2", "/metadata/name"];
        let mut place = |paths: &[Path]| {
            if paths.is_empty() || self.random.chance(12) {
                return self.random.pick(&bad).to_owned();
            }
            pointer(&self.random.pick(paths))
        };
        let (to, from, path) = (place(others), place(own), place(own));
        let donated = donor.pointer(&to).cloned().unwrap_or(Value::Null);
        match self.random.below(8) {
            0 | 1 => json!({"op": "add", "path": to, "value": donated}),
            2 => json!({"op": "replace", "path": path, "value": donated}),
            3 => json!({"op": "remove", "path": path}),
            4 => json!({"op": "test", "path": path, "value": base.pointer(&path)}),
            5 => json!({"op": "copy", "from": from, "path": path}),
            6 => json!({"op": "move", "from": from, "path": path}),
            _ => self.random.pick(&[
                json!({"op": "test", "path": path, "value": "other"}),
                json!({"op": "add", "path": format!("{path}/-"), "value": donated}),
                json!({"op": "paint", "path": path}),
                json!({"op": "add", "path": path}),
                json!({"path": path, "value": 1}),
                json!("text"),
            ]),
        }
    }

    fn strategic_patch(&mut self) -> Request {
        let version = self.version();
        let path = self.path(version, "");
        request("PATCH", path, "application/strategic-merge-patch+json", r#"{"spec": {}}"#.into())
    }

    fn apply(&mut self) -> Request {
        let version = self.version();
        let object = if self.random.chance(50) { self.changed_object(version) } else { self.object(version, 25) };
        let object = if self.random.chance(60) { self.without_random_fields(object) } else { object };
        let manager = self.random.pick(&["a", "b"]);
        let force = self.random.pick(&["", "&force=true", "&force=true", "&force=false"]);
        let subresource =
            if self.definition_version(version).has_status && self.random.chance(15) { "/status" } else { "" };
        let query = format!("{subresource}?fieldManager={manager}{force}{}", self.options());
        let path = self.path(version, &query);
        request("PATCH", path, APPLY, to_text(&object))
    }

    fn list(&mut self) -> Request {
        let version = self.version();
        let name = format!("metadata.name%3D{}", self.name);
        let mut selectors = Vec::new();
        for field in &self.definition_version(version).selectable {
            selectors.push(format!("fieldSelector={field}%3Da,{name}"));
            selectors.push(format!("fieldSelector={field}!%3Da,{name}"));
        }
        if selectors.is_empty() || self.random.chance(20) {
            selectors = vec![
                format!("labelSelector=tier%3Dweb&fieldSelector={name}"),
                format!("fieldSelector={name}"),
                "labelSelector=a%20b%20c".to_owned(),
                "fieldSelector=spec.none%3Da".to_owned(),
            ];
        }
        let query = self.random.pick(&selectors);
        let path = format!("{}?{query}", self.definition.collection(self.definition_version(version)));
        request("GET", path, JSON, String::new())
    }

    /// The request `at` of the deletion: one with faulty options, one with preconditions, then a check and the cleanup.
    fn delete(&mut self, at: usize) -> Option<Request> {
        let path = self.path(self.last_version, "");
        let conditions = [
            json!({"preconditions": {"uid": "other"}}),
            json!({"preconditions": {"resourceVersion": "1"}}),
            json!({"propagationPolicy": "Nowhere"}),
            json!({"gracePeriodSeconds": -1, "preconditions": {"uid": "other"}}),
            json!({"bogus": 1}),
        ];
        Some(match at {
            0 => request("DELETE", path, JSON, self.random.pick(&conditions).to_string()),
            1 => {
                let options = json!({"preconditions": {"uid": UID, "resourceVersion": RESOURCE_VERSION}});
                request("DELETE", path, JSON, options.to_string())
            }
            2 => request("GET", path, JSON, String::new()),
            _ => return self.cleanup().into_iter().nth(at - 3),
        })
    }
}

/// A request whose response is JSON. Tests of compression are elsewhere.
fn request(method: &'static str, path: String, content_type: &'static str, body: String) -> Request {
    Request { method, path, content_type, accept: JSON, body }
}
