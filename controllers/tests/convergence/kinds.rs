//! Objects of all built-in kinds, with dependencies, overrides and a namespace, are propagated to every member, and
//! their status is collected.

use std::collections::BTreeSet;

use crowsnest_api::names::binding_name;
use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{resource_of, text};
use crate::test_env::{TestEnv, custom, definition};
use crate::{binding, condition_is, propagation_policy};

const MEMBERS: [&str; 2] = ["m1", "m2"];
const IMPORTS: &str = "serviceimports.multicluster.x-k8s.io";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    object: Value,
    /// True for a cluster-scoped object.
    #[serde(default)]
    cluster: bool,
    /// Status of the copy in every member.
    status: Option<Value>,
    /// True if the status has an observedGeneration.
    #[serde(default)]
    observed: bool,
}

impl Entry {
    fn namespace(&self) -> &'static str {
        if self.cluster { "" } else { "default" }
    }

    fn resource(&self) -> Resource {
        Resource { namespaced: !self.cluster, ..resource_of(&self.object) }
    }

    fn name(&self) -> &str {
        text(&self.object, "/metadata/name")
    }

    /// Name of the policy that selects it.
    fn policy_label(&self) -> Option<&str> {
        self.object["metadata"]["labels"]["to"].as_str()
    }

    /// Resource and name of its binding.
    fn binding(&self) -> (Resource, String) {
        let name = binding_name(text(&self.object, "/kind"), self.name());
        match self.cluster {
            true => (
                custom("work.karmada.io", "v1alpha2", "clusterresourcebindings", "ClusterResourceBinding", false),
                name,
            ),
            false => (binding(), name),
        }
    }
}

fn entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = serde_saphyr::from_str(include_str!("kinds.yaml")).unwrap();
    for entry in entries.iter_mut().filter(|entry| !entry.cluster) {
        entry.object["metadata"]["namespace"] = json!("default");
    }
    entries
}

/// Propagates all objects to the members, and waits until their status has been collected.
pub async fn propagate(env: &TestEnv) {
    let control_plane = env.objects();
    for member in MEMBERS {
        env.serve_definitions(member).await;
        let definitions = crowsnest_api::crd::crds(None);
        let imports = definitions.iter().find(|manifest| manifest["metadata"]["name"] == IMPORTS).unwrap();
        env.member(member).create(&definition(), "", imports).await.unwrap();
    }
    let entries = entries();
    create_policies(&control_plane, &entries).await;
    for entry in &entries {
        control_plane.create(&entry.resource(), entry.namespace(), &entry.object).await.unwrap();
    }
    for entry in entries.iter().filter(|entry| entry.policy_label().is_some()) {
        let (resource, name) = entry.binding();
        let applied = |binding: &Value| condition_is(binding, "FullyApplied", "True");
        env.wait_for(&control_plane, &resource, entry.namespace(), &name, applied).await;
    }
    for entry in &entries {
        report_status(env, entry).await;
    }
    let team = resource_of(&json!({"apiVersion": "v1", "kind": "Namespace"}));
    for member in MEMBERS {
        env.wait_for(&env.member(member), &team, "", "team", |_| true).await;
    }
    // The replicas of the autoscaler's target are retained from the members.
    let marked = |web: &Value| web["metadata"]["labels"]["resourcetemplate.karmada.io/retain-replicas"] == "true";
    let deployments =
        resource_of(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": ""}}));
    env.wait_for(&control_plane, &deployments, "default", "web", marked).await;
}

/// Creates policies and overrides.
async fn create_policies(control_plane: &DynamicClient, entries: &[Entry]) {
    let selectors = |cluster: bool| -> Vec<Value> {
        let selected =
            entries.iter().filter(|entry| entry.cluster == cluster && entry.policy_label() == Some("members"));
        let kinds: BTreeSet<(&str, &str)> =
            selected.map(|entry| (text(&entry.object, "/apiVersion"), text(&entry.object, "/kind"))).collect();
        let selector = |(api_version, kind)| json!({"apiVersion": api_version, "kind": kind, "labelSelector": {"matchLabels": {"to": "members"}}});
        kinds.into_iter().map(selector).collect()
    };
    let everywhere = json!({"clusterAffinity": {"clusterNames": MEMBERS}});
    let mut all = crate::policy("members", "", "", everywhere.clone());
    all["spec"]["resourceSelectors"] = json!(selectors(false));
    all["spec"]["propagateDeps"] = json!(true);
    let weight = |(name, weight): (&str, i64)| json!({"targetCluster": {"clusterNames": [name]}, "weight": weight});
    let mut shares = crate::policy(
        "shares",
        "Deployment",
        "apps/v1",
        json!({"replicaScheduling": {
            "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
            "weightPreference": {"staticWeightList": [weight(("m1", 1)), weight(("m2", 2))]},
        }}),
    );
    shares["spec"]["resourceSelectors"][0]["labelSelector"] = json!({"matchLabels": {"to": "shares"}});
    for policy in [all, shares] {
        control_plane.create(&propagation_policy(), "default", &policy).await.unwrap();
    }
    let cluster_wide = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy",
        "metadata": {"name": "members", "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": "id-of-all"}},
        "spec": {"resourceSelectors": selectors(true), "placement": everywhere},
    });
    let rule = |overriders: Value| json!([{"targetCluster": {"clusterNames": ["m2"]}, "overriders": overriders}]);
    let data = json!({"plaintext": [{"path": "/data/where", "operator": "add", "value": "m2"}]});
    let override_policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy",
        "metadata": {"name": "where", "namespace": "default"},
        "spec": {"resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "plain"}],
            "overrideRules": rule(data)},
    });
    let labels = json!({"labelsOverrider": [{"operator": "add", "value": {"where": "m2"}}]});
    let cluster_override_policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterOverridePolicy", "metadata": {"name": "where"},
        "spec": {"overrideRules": rule(labels), "resourceSelectors": [
            {"apiVersion": "v1", "kind": "Namespace", "name": "team"},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "reader"},
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        ]},
    });
    for object in [cluster_wide, override_policy, cluster_override_policy] {
        let resource = resource_of(&object);
        control_plane.create(&resource, text(&object, "/metadata/namespace"), &object).await.unwrap();
    }
}

/// Sets the status of the copies in all members, and waits until it is in the binding.
async fn report_status(env: &TestEnv, entry: &Entry) {
    let Some(status) = &entry.status else { return };
    let resource = entry.resource();
    let target = Target::new(&resource, entry.namespace(), entry.name());
    for member in MEMBERS {
        let member = env.member(member);
        let copy = member.get(target).await.unwrap().unwrap();
        let mut status = status.clone();
        if entry.observed {
            status["observedGeneration"] = copy["metadata"]["generation"].clone();
        }
        member.merge(target.status(), &json!({"status": status})).await.unwrap();
    }
    let (resource, name) = entry.binding();
    let is_reported = |binding: &Value| {
        let items = binding["status"]["aggregatedStatus"].as_array().cloned().unwrap_or_default();
        items.len() == MEMBERS.len() && items.iter().all(|item| !item["status"].is_null())
    };
    env.wait_for(&env.objects(), &resource, entry.namespace(), &name, is_reported).await;
}
