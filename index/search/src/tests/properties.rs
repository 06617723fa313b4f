//! Properties: for any corpus, query and permissions, the engine finds the same objects as direct evaluation.

use super::*;
use proptest::prelude::*;

fn word() -> impl Strategy<Value = String> {
    let words =
        ["web", "web-0", "api", "nginx:1.27", "shop", "Running", "a", "app=web", "member1", "x*", "?eb*", "/w.b/"];
    let fragments = ["op/we", "shop/", "/api", "shop/w*", "27", "0", "unn", "io/a/api", "e"];
    prop::sample::select([words.as_slice(), fragments.as_slice()].concat()).prop_map(str::to_owned)
}

fn term() -> impl Strategy<Value = String> {
    let fields = ["name", "ns", "kind", "status", "image", "label", "node", "cluster", "content", "reason"];
    let numbers =
        ["restarts:>1", "restarts:0..3", "ready:1", "age:<1d", "cpu.req:>100m", "image:*", "label:app", "label:!app"];
    prop_oneof![
        word(),
        (prop::sample::select(fields.to_vec()), word()).prop_map(|(field, word)| format!("{field}:{word}")),
        prop::sample::select(numbers.to_vec()).prop_map(str::to_owned),
    ]
}

pub(crate) fn query() -> impl Strategy<Value = String> {
    let leaf = term();
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| parts.join(" ")),
            prop::collection::vec(inner.clone(), 2..3).prop_map(|parts| format!("({})", parts.join(" OR "))),
            inner.prop_map(|part| format!("-({part})")),
        ]
    })
}

fn some_pod() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["web", "web-0", "api-x", "nginx"]);
    let app = prop::sample::select(vec!["web", "api", ""]);
    let image = prop::sample::select(vec!["nginx:1.27", "docker.io/library/nginx:1.27", "ghcr.io/a/api"]);
    (name, app, image, 0..4i64, any::<bool>()).prop_map(|(name, app, image, restarts, ready)| {
        let labels = if app.is_empty() { json!({}) } else { json!({"app": app}) };
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": "u",
            "labels": labels, "creationTimestamp": "2026-09-21T10:00:00Z"},
            "spec": {"nodeName": "a", "containers": [{"name": "c", "image": image,
                "resources": {"requests": {"cpu": "250m"}}}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "ready": ready,
                "restartCount": restarts, "state": {"running": {}}}]}})
    })
}

/// Relations among the objects of [`some_fleet`], alone or combined with other terms.
pub(crate) fn relation() -> impl Strategy<Value = String> {
    let relations = [
        "has.event(reason:BackOff)",
        "has.event()",
        "has.pod(restarts:>1)",
        "-has.event(count:>1)",
        "owner:deploy/up-* depth:3",
        "owner:rs/* depth:2",
        "uses:configmap/shop/app-* depth:2",
        "usedby:po/*",
        "related:deploy/up-* depth:2",
        "related:configmap/app-1",
        "select:deployment",
        "select:pod",
        "kind:event select:pod",
    ];
    let relations = prop::sample::select(relations.to_vec());
    (relations, prop::option::of(query())).prop_map(|(relation, rest)| match rest {
        Some(rest) => format!("{relation} ({rest})"),
        None => relation.to_owned(),
    })
}

/// Pods in two clusters, with the objects that own them or that they use, and their events.
pub(crate) fn some_fleet() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let pod = (some_pod(), any::<bool>(), prop::option::of(1..3i64), any::<bool>(), any::<bool>());
    prop::collection::vec(pod, 1..6).prop_map(|pods| {
        let mut fleet = Vec::new();
        for (cluster, nth) in [("member1", 0), ("member2", 1)] {
            let workload = |kind: &str, name: &str, owner: Value| {
                json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": format!("{name}-{nth}"), "namespace": "shop",
                    "uid": format!("{name}-uid"), "ownerReferences": owner}})
            };
            fleet.push((cluster, workload("Deployment", "up", json!([]))));
            let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("up-{nth}"), "uid": "up-uid"}]);
            fleet.push((cluster, workload("ReplicaSet", "middle", owner)));
            fleet.push((cluster, json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("app-{nth}"), "namespace": "shop", "uid": "app-uid"}})));
        }
        for (nth, (mut pod, is_owned, events, uses_config_map, in_other_namespace)) in pods.into_iter().enumerate() {
            let cluster = if nth % 2 == 0 { "member1" } else { "member2" };
            let name = format!("{}-{nth}", pod["metadata"]["name"].as_str().unwrap());
            let (namespace, uid) = (if in_other_namespace { "team" } else { "shop" }, format!("pod-{nth}"));
            pod["metadata"]["name"] = name.clone().into();
            pod["metadata"]["namespace"] = namespace.into();
            pod["metadata"]["uid"] = uid.clone().into();
            if is_owned {
                pod["metadata"]["ownerReferences"] =
                    json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("middle-{}", nth % 2), "uid": "middle-uid"}]);
            }
            if uses_config_map {
                pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": format!("app-{}", nth % 2)}}]);
            }
            fleet.push((cluster, pod));
            fleet.extend(events.map(|count| {
                let involved = json!({"kind": "Pod", "namespace": namespace, "name": name, "uid": uid});
                (cluster, json!({"apiVersion": "v1", "kind": "Event", "involvedObject": involved, "reason": "BackOff", "count": count,
                    "metadata": {"name": format!("event-{nth}"), "namespace": namespace, "uid": format!("event-{nth}")}}))
            }));
        }
        fleet
    })
}

/// Grants to list, to the user `ann`: (cluster, resource, namespace). An empty namespace grants all namespaces.
pub(crate) type ListGrants = BTreeSet<(&'static str, &'static str, &'static str)>;

pub(crate) fn some_grants() -> impl Strategy<Value = ListGrants> {
    let cluster = prop::sample::select(vec!["member1", "member2"]);
    let resource = prop::sample::select(vec!["pods", "events", "deployments", "replicasets", "configmaps"]);
    let namespace = prop::sample::select(vec!["shop", "team", ""]);
    prop::collection::btree_set((cluster, resource, namespace), 0..8)
}

pub(crate) fn rules_from(grants: &ListGrants) -> RbacRules {
    let (rbac_rules, group) = (RbacRules::default(), "rbac.authorization.k8s.io");
    for (nth, (cluster, resource, namespace)) in grants.iter().enumerate() {
        let (role, binding) = match *namespace {
            "" => ("ClusterRole", "ClusterRoleBinding"),
            _ => ("Role", "RoleBinding"),
        };
        let mut meta = json!({"name": format!("r{nth}")});
        if !namespace.is_empty() {
            meta["namespace"] = (*namespace).into();
        }
        let rules = json!([{"verbs": ["list"], "apiGroups": ["", "apps"], "resources": [resource]}]);
        for object in [
            json!({"apiVersion": format!("{group}/v1"), "kind": role, "metadata": meta, "rules": rules}),
            json!({"apiVersion": format!("{group}/v1"), "kind": binding, "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": role, "name": format!("r{nth}")},
                "subjects": [{"kind": "User", "name": "ann"}]}),
        ] {
            let object = stored(cluster, 1, &object);
            rbac_rules.apply(&object.record, &object.body, ChangeKind::Added);
        }
    }
    rbac_rules
}

fn allows(grants: &ListGrants, document: &Document) -> bool {
    let value_of = |searched_facet: Facet| {
        let value = document.facets.iter().find(|(facet, _)| *facet == searched_facet);
        value.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let kind = value_of(Facet::Kind).split('.').next().unwrap_or_default().to_lowercase();
    let resource = format!("{kind}s");
    let includes = |namespace: &str| namespace.is_empty() || namespace == value_of(Facet::Namespace);
    grants.iter().any(|(cluster, granted, namespace)| {
        *cluster == value_of(Facet::Cluster) && **granted == resource && includes(namespace)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The engine finds the same objects as direct evaluation, with all permissions and with those of a caller:
    /// relations traverse only objects that the caller may read.
    #[test]
    fn the_engine_agrees_with_the_model(
        fleet in some_fleet(),
        queries in prop::collection::vec(query(), 4),
        relations in prop::collection::vec(relation(), 4),
        grants in some_grants(),
    ) {
        let corpus = Corpus::new(&fleet);
        let ann = UserInfo::new("ann", ["system:authenticated"]);
        for query in queries.into_iter().chain(relations) {
            let found: BTreeSet<String> = corpus.search(&query, SortBy::Relevance, true).into_iter().collect();
            prop_assert_eq!(found, corpus.evaluate(&query), "{}", query);
            let readable: BTreeSet<String> =
                corpus.search_as(&query, rules_from(&grants), &ann, Sort::RELEVANCE).into_iter().collect();
            let expected = corpus.evaluate_readable(&query, &|document| allows(&grants, document));
            prop_assert_eq!(readable, expected, "{} with {:?}", query, grants);
        }
    }
}
