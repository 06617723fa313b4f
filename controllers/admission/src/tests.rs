//! Data-driven cases: requests in `fixtures/*.yaml` with results as snapshots. Fields missing in a case are taken
//! from `base`.

use super::*;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_interpreter::customized::declarative;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    /// Webhook paths that are called one after another, each with the object that the previous one returned.
    paths: Vec<String>,
    #[serde(default)]
    operation: Option<Operation>,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
    #[serde(default)]
    quotas: Vec<FederatedResourceQuota>,
    #[serde(default)]
    customizations: Vec<ResourceInterpreterCustomization>,
}

fn compile(script: &str) -> Result<(), String> {
    declarative::compile(script).map_err(|problem| problem.to_string())
}

fn run_case(case: &Case) -> Value {
    let context = AdmissionContext {
        permanent_id: "the-id",
        gates: Gates::all(),
        allow_no_execute_taint_policy: false,
        customizations: &case.customizations,
        quotas: &case.quotas,
        compile_lua: &compile,
    };
    let mut object = case.object.clone();
    let mut usage = Vec::new();
    for path in &case.paths {
        let request = Request {
            uid: "uid".to_owned(),
            operation: case.operation.unwrap_or(Operation::Create),
            name: String::new(),
            namespace: case.namespace.clone(),
            object: object.clone(),
            old_object: case.old_object.clone(),
            dry_run: None,
        };
        let review = review(path, &request, &context).unwrap();
        match review.outcome {
            Ok(Outcome::Changed(changed)) => object = changed,
            Ok(Outcome::Unchanged) => {}
            Err(refusal) => {
                return json!({ "code": refusal.code, "reason": refusal.reason, "message": refusal.message });
            }
        }
        usage.extend(review.quota_usage.into_iter().map(|quota| json!(quota.status.overall_used)));
    }
    let mut result = json!({ "change": json_patch::diff(&case.object, &object) });
    if !usage.is_empty() {
        result["usage"] = usage.into();
    }
    result
}

fn snapshot(name: &str, cases: &str) {
    let cases: Vec<Case> = serde_saphyr::from_str(cases).unwrap();
    let results: Vec<Value> = cases.iter().map(|case| json!({ "case": case.name, "result": run_case(case) })).collect();
    insta::assert_yaml_snapshot!(name, results);
}

#[test]
fn policies() {
    snapshot("policies", include_str!("fixtures/policies.yaml"));
}

#[test]
fn bindings_and_quotas() {
    snapshot("bindings_and_quotas", include_str!("fixtures/bindings.yaml"));
}

#[test]
fn other_kinds() {
    snapshot("other_kinds", include_str!("fixtures/others.yaml"));
}

#[test]
fn clusters() {
    let clusters: Vec<crowsnest_api::cluster::Cluster> =
        serde_saphyr::from_str(include_str!("fixtures/clusters.yaml")).unwrap();
    let results: Vec<Value> = clusters
        .into_iter()
        .map(|mut cluster| {
            let modelled = !cluster.spec.resource_models.is_empty();
            cluster::prepare(&mut cluster, modelled);
            let errors = cluster::validate(&cluster);
            cluster::canonicalize(&mut cluster, &Time(jiff::Timestamp::UNIX_EPOCH));
            let name = cluster.metadata.name.clone().unwrap_or_default();
            let refused = || json!(ApiError::invalid("cluster.karmada.io", "Cluster", &name, errors.clone()).message);
            if errors.is_empty() { json!(cluster.spec) } else { refused() }
        })
        .collect();
    insta::assert_yaml_snapshot!(results);
}

#[test]
fn registries() {
    let registries: Vec<crowsnest_api::search::ResourceRegistry> =
        serde_saphyr::from_str(include_str!("fixtures/registries.yaml")).unwrap();
    let results: Vec<Value> = registries
        .iter()
        .map(|registry| match registry::validate(registry).as_slice() {
            [] => Value::Null,
            errors => {
                let name = registry.metadata.name.as_deref().unwrap_or_default();
                json!(ApiError::invalid("search.karmada.io", "ResourceRegistry", name, errors.to_vec()).message)
            }
        })
        .collect();
    insta::assert_yaml_snapshot!(results);
}

#[test]
fn wire_format_has_patches_and_statuses() {
    let mut request: Request = Request::from_review(&json!({ "request": {
        "uid": "u", "operation": "CREATE", "namespace": "n",
        "object": { "apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy",
            "metadata": { "name": "o" }, "spec": { "overrideRules": [], "resourceSelectors": [{ "apiVersion": "v1", "kind": "Pod" }] } },
    }}))
    .unwrap();
    let context = AdmissionContext {
        permanent_id: "the-id",
        gates: Gates::default(),
        allow_no_execute_taint_policy: false,
        customizations: &[],
        quotas: &[],
        compile_lua: &compile,
    };
    let wire = review("/mutate-overridepolicy", &request, &context).unwrap().to_wire(&request);
    assert_eq!(wire["response"]["allowed"], true);
    assert_eq!(wire["response"]["patchType"], "JSONPatch");
    request.object["spec"]["resourceSelectors"] = json!("x");
    let wire = review("/validate-overridepolicy", &request, &context).unwrap().to_wire(&request);
    assert_eq!(wire["response"]["status"]["code"], 400);
    assert!(review("/unknown", &request, &context).is_none());
}

#[test]
fn configured_paths_are_handled() {
    let request = Request {
        uid: String::new(),
        operation: Operation::Create,
        name: String::new(),
        namespace: String::new(),
        object: json!({}),
        old_object: Value::Null,
        dry_run: None,
    };
    let context = AdmissionContext {
        permanent_id: "the-id",
        gates: Gates::default(),
        allow_no_execute_taint_policy: false,
        customizations: &[],
        quotas: &[],
        compile_lua: &compile,
    };
    let configurations = webhook_configurations("Q0E=", "https://webhook.example");
    for hook in configurations.iter().flat_map(|configuration| configuration["webhooks"].as_array().unwrap()) {
        let url = hook["clientConfig"]["url"].as_str().unwrap();
        let path = url.strip_prefix("https://webhook.example").unwrap();
        assert!(review(path, &request, &context).is_some(), "{path}");
        assert_eq!(configurations::webhook_name(path), hook["name"].as_str());
    }
    insta::assert_yaml_snapshot!("configurations", configurations);
}

#[test]
fn bindings_convert_both_ways() {
    let old = json!({
        "apiVersion": "work.karmada.io/v1alpha1", "kind": "ResourceBinding", "metadata": { "name": "web-deployment" },
        "spec": {
            "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "n", "name": "web",
                "resourcePerReplicas": { "cpu": "100m" }, "replicas": 3 },
            "clusters": [{ "name": "m1", "replicas": 3 }],
        },
        "status": { "aggregatedStatus": [{ "clusterName": "m1", "applied": true, "status": { "replicas": 3 } }] },
    });
    let review = json!({ "request": {
        "uid": "u", "desiredAPIVersion": "work.karmada.io/v1alpha2", "objects": [old.clone()],
    }});
    let response = convert_review(&review);
    assert_eq!(response["response"]["result"]["status"], "Success");
    let new = &response["response"]["convertedObjects"][0];
    assert_eq!(new["spec"]["replicas"], 3);
    assert_eq!(new["spec"]["replicaRequirements"]["resourceRequest"]["cpu"], "100m");
    assert_eq!(convert::convert(new, "work.karmada.io/v1alpha1").unwrap(), old);
    assert!(convert::convert(new, "work.karmada.io/v9").is_err());
}
