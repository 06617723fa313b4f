//! From a template to the Work of a cluster, and from its manifest to the object in the member.

use crowsnest_api::work::ResourceBindingSpec;
use crowsnest_plan::overriding;
use crowsnest_plan::work::construct::{
    BindingIdentity, WorkPlan, directly_purged_clusters, is_expected_in, is_suspended, job_completions, targets,
    work_for_binding,
};
use crowsnest_plan::work::{apply, managed, prune};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{case_results, value_or_error};

fn spec(mut spec: Value) -> ResourceBindingSpec {
    if spec.is_null() {
        spec = json!({});
    }
    spec["resource"] = json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "n", "name": "d"});
    serde_json::from_value(spec).expect("a binding's spec")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WorkCase {
    #[serde(default)]
    spec: Value,
    template: Value,
    /// A ClusterResourceBinding.
    #[serde(default)]
    cluster_scoped: bool,
    #[serde(default)]
    inject_state: bool,
    /// A Work that already exists.
    #[serde(default)]
    existing: Value,
    /// Changes of an existing Work that was created from the template.
    #[serde(default)]
    merged: Value,
}

#[test]
fn works() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/works.yaml"), |case: WorkCase| {
        let spec = spec(case.spec);
        let binding = BindingIdentity {
            namespace: if case.cluster_scoped { "" } else { "n" },
            name: "d-deployment",
            permanent_id: "binding-id",
        };
        let report = overriding::AppliedOverrides::default();
        let single = targets(&spec).len() == 1;
        let desired = work_for_binding(&spec, binding, "m1", case.template, &report, single, case.inject_state);
        let plan = |existing: Option<&Value>| match desired.plan(existing, "work-id") {
            WorkPlan::Keep => json!("keep"),
            WorkPlan::WaitForDeletion => json!("wait"),
            WorkPlan::Create(work) => json!({"create": work}),
            WorkPlan::Update(work) => json!({"update": json_patch::diff(existing.unwrap_or(&Value::Null), &work)}),
        };
        if !case.existing.is_null() {
            return plan(Some(&case.existing));
        }
        match (&case.merged, desired.plan(None, "work-id")) {
            (Value::Null, _) => plan(None),
            (changes, WorkPlan::Create(mut work)) => {
                json_patch::merge(&mut work, changes);
                plan(Some(&work))
            }
            (_, other) => panic!("{other:?}"),
        }
    }));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Clusters {
    spec: Value,
    #[serde(default)]
    template: Value,
}

/// Targets of a binding, and the replicas and completions of each.
#[test]
fn clusters_of_a_binding() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/clusters.yaml"), |case: Clusters| {
        let spec = spec(case.spec);
        let targets = targets(&spec);
        let of_each = |predicate: &dyn Fn(&str) -> bool| -> Vec<&str> {
            ["m1", "m2", "m3"].into_iter().filter(|cluster| predicate(cluster)).collect()
        };
        json!({
            "targets": targets,
            "expected": of_each(&|cluster| is_expected_in(&spec, cluster)),
            "suspended": of_each(&|cluster| is_suspended(spec.suspension.as_ref(), cluster)),
            "purgedDirectly": directly_purged_clusters(&spec),
            "completions": job_completions(&spec, &case.template, &targets),
        })
    }));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectCase {
    object: Value,
}

#[test]
fn pruning() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/pruning.yaml"), |case: ObjectCase| {
        let mut pruned = case.object.clone();
        prune::prune(&mut pruned);
        prune::prune_job_ttl(&mut pruned);
        json!(json_patch::diff(&case.object, &pruned))
    }));
}

#[test]
fn disowning() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/disowning.yaml"), |case: ObjectCase| {
        let mut disowned = case.object.clone();
        managed::remove_ownership_metadata(&mut disowned);
        disowned
    }));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApplyCase {
    manifest: Value,
    #[serde(default)]
    observed: Value,
}

/// Retention by kind is tested in `native`. Here, replicas are retained.
#[test]
fn applying() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/applying.yaml"), |case: ApplyCase| {
        let observed = Some(&case.observed).filter(|observed| !observed.is_null());
        let keep_replicas = |desired: &mut Value, observed: &Value| -> Result<(), String> {
            match observed["spec"].get("broken") {
                Some(_) => Err("the rule failed".to_owned()),
                None if observed["spec"]["replicas"].is_null() => Ok(()),
                None => {
                    desired["spec"]["replicas"] = observed["spec"]["replicas"].clone();
                    Ok(())
                }
            }
        };
        let planned = match apply::compare_with_member("m1", &case.manifest, observed) {
            apply::ManifestComparison::Planned(plan) => Ok(plan),
            apply::ManifestComparison::NeedsRetention { mut desired, observed } => {
                keep_replicas(&mut desired, observed).map(|()| apply::finish(desired, observed, None))
            }
        };
        value_or_error(planned.map(|plan| match plan {
            apply::ApplyPlan::Keep => json!("keep"),
            apply::ApplyPlan::Conflict(message) => json!({"conflict": message}),
            apply::ApplyPlan::Create(object) => json!({"create": object}),
            apply::ApplyPlan::Update(object) => json!({"update": json_patch::diff(&case.observed, &object)}),
        }))
    }));
}
