//! Server-side apply compared with recorded responses of kube-apiserver 1.36 in `recorded/`, which must not be
//! edited: managers with different versions and changing schemas (`versions.json`), fields unknown to another
//! version (`unknown.json`), lists and maps that become empty (`parts.json`), duplicate elements (`doubles.json`).

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use crowsnest_apiserver::outbound::InProcessServer;
use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::client::InProcessService;
use crate::{ApiServer, Config, Data};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[derive(Deserialize)]
struct Scenario {
    name: String,
    group: String,
    kind: String,
    plural: String,
    definition: Option<Value>,
    /// `None` without a conversion webhook.
    conversion: Option<String>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Step {
    Apply {
        apply: String,
        by: String,
        #[serde(default)]
        force: bool,
        spec: Value,
        #[serde(rename = "answer")]
        response: RecordedResponse,
    },
    /// Replaces the spec, and changes the version of some managedFields entries.
    Put {
        put: String,
        by: String,
        spec: Value,
        #[serde(default)]
        renamed: BTreeMap<String, String>,
        #[serde(rename = "answer")]
        response: RecordedResponse,
    },
    /// Changes the schema, or removes versions.
    Versions { versions: Value },
}

#[derive(Debug, Clone, Deserialize, PartialEq)]
struct RecordedResponse {
    code: u16,
    message: Option<String>,
    spec: Option<Value>,
    #[serde(default)]
    managers: Vec<Manager>,
}

#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Manager {
    manager: String,
    operation: String,
    api_version: String,
    fields: Value,
}

impl RecordedResponse {
    /// Sorts managers, which are ordered by timestamp, and errors, which are in the order of a Go map.
    fn sorted(mut self) -> Self {
        let error_list = |text: &str| Some(text.split_once(": [")?.1.strip_suffix(']')?.to_owned());
        if let Some(errors) = self.message.as_deref().and_then(error_list) {
            let mut sorted: Vec<&str> = errors.split(", ").collect();
            sorted.sort_unstable();
            self.message = self.message.map(|message| message.replace(&errors, &sorted.join(", ")));
        }
        self.managers.sort_by(|a, b| (&a.manager, &a.operation).cmp(&(&b.manager, &b.operation)));
        self
    }

    fn from_body(code: u16, mut object: Value) -> Self {
        if object["kind"] == "Status" {
            let message = object["message"].as_str().map(str::to_owned);
            return Self { code, message, spec: None, managers: Vec::new() }.sorted();
        }
        let entries = object["metadata"]["managedFields"].take();
        let managers = entries.as_array().into_iter().flatten().map(|entry| Manager {
            manager: entry["manager"].as_str().unwrap().to_owned(),
            operation: entry["operation"].as_str().unwrap().to_owned(),
            api_version: entry["apiVersion"].as_str().unwrap().to_owned(),
            fields: entry["fieldsV1"].clone(),
        });
        Self { code, message: None, managers: managers.collect(), spec: Some(object["spec"].take()) }.sorted()
    }
}

/// Conversion webhook that renames fields, like the recorded one.
struct RenamingWebhook;

#[async_trait]
impl InProcessServer for RenamingWebhook {
    async fn serve(&self, request: Request<Body>) -> http::Response<Body> {
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let review: Value = serde_json::from_slice(&body).unwrap();
        let to = review["request"]["desiredAPIVersion"].as_str().unwrap();
        let mut objects = review["request"]["objects"].clone();
        for object in objects.as_array_mut().unwrap() {
            object["apiVersion"] = to.into();
            let Some(spec) = object["spec"].as_object_mut() else { continue };
            for (first, second) in [("size", "count"), ("tags", "labels"), ("ports", "doors")] {
                let (old, new) = if to.ends_with("/v2") { (first, second) } else { (second, first) };
                if let Some(value) = spec.remove(old) {
                    spec.insert(new.to_owned(), value);
                }
            }
        }
        let response =
            json!({"uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects});
        let review = json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response});
        http::Response::new(Body::from(review.to_string()))
    }
}

struct Client(InProcessService);

impl Client {
    async fn send(&self, method: &str, path: &str, media: &str, body: &Value) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", media);
        let request = request.header("user-agent", "test/1").body(Body::from(body.to_string())).unwrap();
        let response = self.0.clone().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        self.send("GET", path, "application/json", &json!({})).await.1
    }

    /// Sends the request of a step; `None` if the step changes the definition.
    async fn send_step(&self, scenario: &Scenario, step: &Step) -> Option<RecordedResponse> {
        let Scenario { group, kind, plural, .. } = scenario;
        let path = |version: &str| format!("/apis/{group}/{version}/namespaces/default/{plural}/o");
        let (code, object) = match step {
            Step::Apply { apply, by, force, spec, .. } => {
                let object = json!({"apiVersion": format!("{group}/{apply}"), "kind": kind, "metadata": {"name": "o"}, "spec": spec});
                let path = format!("{}?fieldManager={by}&force={force}", path(apply));
                self.send("PATCH", &path, "application/apply-patch+yaml", &object).await
            }
            Step::Put { put, by, spec, renamed, .. } => {
                let mut object = self.get(&path(put)).await;
                object["spec"] = spec.clone();
                for entry in object["metadata"]["managedFields"].as_array_mut().into_iter().flatten() {
                    if let Some(version) = renamed.get(entry["manager"].as_str().unwrap()) {
                        entry["apiVersion"] = version.as_str().into();
                    }
                }
                self.send("PUT", &format!("{}?fieldManager={by}", path(put)), "application/json", &object).await
            }
            Step::Versions { .. } => return None,
        };
        Some(RecordedResponse::from_body(code, object))
    }
}

/// Waits until the versions are served with the schemas of the CRD.
async fn wait_until_served(server: &ApiServer, group: &str, versions: &Value) {
    let mut changed = server.registry().catalog.subscribe();
    loop {
        let served = server.registry().catalog.snapshot();
        let resources: Vec<_> = served.iter().filter(|resource| *resource.gvr.group == *group).collect();
        let is_served = |version: &Value| {
            let resource = resources.iter().find(|resource| version["name"] == *resource.gvr.version);
            let schema = resource.and_then(|resource| resource.strategy.published_schema());
            schema.is_some_and(|schema| {
                schema.decode()["properties"]["spec"] == version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            })
        };
        let versions = versions.as_array().unwrap();
        if versions.len() == resources.len() && versions.iter().all(is_served) {
            return;
        }
        changed.changed().await.unwrap();
    }
}

async fn create_definition(server: &ApiServer, client: &Client, scenario: &Scenario) {
    let Some(mut definition) = scenario.definition.clone() else { return };
    if scenario.conversion.is_none() {
        definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": "default", "name": "convert", "path": "/convert"}}}});
    }
    let (code, response) = client.send("POST", DEFINITIONS, "application/json", &definition).await;
    assert_eq!(code, 201, "{response}");
    wait_until_served(server, &scenario.group, &definition["spec"]["versions"]).await;
}

async fn replace_versions(server: &ApiServer, client: &Client, scenario: &Scenario, versions: &Value) {
    let path = format!("{DEFINITIONS}/{}.{}", scenario.plural, scenario.group);
    let stored = json!({"status": {"storedVersions": ["v2"]}});
    client.send("PATCH", &format!("{path}/status"), "application/merge-patch+json", &stored).await;
    let mut definition = client.get(&path).await;
    definition["spec"]["versions"] = versions.clone();
    let (code, response) = client.send("PUT", &path, "application/json", &definition).await;
    assert_eq!(code, 200, "{response}");
    wait_until_served(server, &scenario.group, versions).await;
}

#[tokio::test]
async fn field_ownership_matches_kube_apiserver() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let admin = UserInfo { name: "admin".into(), groups: vec![MASTERS.to_owned()], ..UserInfo::default() };
    let client = Client(server.service(admin));
    client.send("POST", "/api/v1/namespaces", "application/json", &json!({"metadata": {"name": "default"}})).await;
    server.services().in_process.mount("default", "convert", Arc::new(RenamingWebhook));
    let recorded = [
        include_str!("recorded/versions.json"),
        include_str!("recorded/parts.json"),
        include_str!("recorded/doubles.json"),
        include_str!("recorded/unknown.json"),
    ];
    let scenarios = recorded.into_iter().flat_map(|text| serde_json::from_str::<Vec<Scenario>>(text).unwrap());
    let mut mismatches = Vec::new();
    for scenario in scenarios {
        create_definition(&server, &client, &scenario).await;
        for (number, step) in scenario.steps.iter().enumerate() {
            if let Step::Versions { versions } = step {
                replace_versions(&server, &client, &scenario, versions).await;
            }
            let actual = client.send_step(&scenario, step).await;
            let (Step::Apply { response, .. } | Step::Put { response, .. }) = step else { continue };
            let (actual, expected) = (actual.unwrap(), response.clone().sorted());
            if actual != expected {
                mismatches.push(format!("{} {number}:\n  {actual:?}\n  {expected:?}", scenario.name));
            }
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
    server.stop().await.unwrap();
}
