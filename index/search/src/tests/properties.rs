//! For any corpus, query and permissions, the engine finds what direct evaluation finds.

use super::*;
use proptest::prelude::*;

fn word() -> impl Strategy<Value = String> {
    let words =
        ["web", "web-0", "api", "nginx:1.27", "shop", "Running", "a", "app=web", "member1", "x*", "?eb*", "/w.b/"];
    let cut = ["op/we", "shop/", "/api", "shop/w*", "27", "0", "unn", "io/a/api", "e"];
    prop::sample::select([words.as_slice(), cut.as_slice()].concat()).prop_map(str::to_owned)
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

/// Pods with their owners, used objects, and events.
pub(crate) fn some_fleet() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let pod = (some_pod(), any::<bool>(), prop::option::of(1..3i64), any::<bool>(), any::<bool>());
    prop::collection::vec(pod, 1..6).prop_map(|pods| {
        let mut fleet = Vec::new();
        for (cluster, nth) in [("member1", 0), ("member2", 1)] {
            let owned = |kind: &str, name: &str, owner: Value| {
                json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": format!("{name}-{nth}"), "namespace": "shop",
                    "uid": format!("{name}-uid"), "ownerReferences": owner}})
            };
            fleet.push((cluster, owned("Deployment", "up", json!([]))));
            let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("up-{nth}"), "uid": "up-uid"}]);
            fleet.push((cluster, owned("ReplicaSet", "middle", owner)));
            fleet.push((cluster, json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("app-{nth}"), "namespace": "shop", "uid": "app-uid"}})));
        }
        for (nth, (mut pod, is_owned, events, uses, elsewhere)) in pods.into_iter().enumerate() {
            let cluster = if nth % 2 == 0 { "member1" } else { "member2" };
            let name = format!("{}-{nth}", pod["metadata"]["name"].as_str().unwrap());
            let (namespace, uid) = (if elsewhere { "team" } else { "shop" }, format!("pod-{nth}"));
            pod["metadata"]["name"] = name.clone().into();
            pod["metadata"]["namespace"] = namespace.into();
            pod["metadata"]["uid"] = uid.clone().into();
            if is_owned {
                pod["metadata"]["ownerReferences"] =
                    json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("middle-{}", nth % 2), "uid": "middle-uid"}]);
            }
            if uses {
                pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": format!("app-{}", nth % 2)}}]);
            }
            fleet.push((cluster, pod));
            fleet.extend(events.map(|count| {
                let about = json!({"kind": "Pod", "namespace": namespace, "name": name, "uid": uid});
                (cluster, json!({"apiVersion": "v1", "kind": "Event", "involvedObject": about, "reason": "BackOff", "count": count,
                    "metadata": {"name": format!("event-{nth}"), "namespace": namespace, "uid": format!("event-{nth}")}}))
            }));
        }
        fleet
    })
}

/// What `ann` may list: (cluster, resource, namespace), the latter empty for all of them.
pub(crate) type Allowed = BTreeSet<(&'static str, &'static str, &'static str)>;

pub(crate) fn some_rights() -> impl Strategy<Value = Allowed> {
    let cluster = prop::sample::select(vec!["member1", "member2"]);
    let resource = prop::sample::select(vec!["pods", "events", "deployments", "replicasets", "configmaps"]);
    let namespace = prop::sample::select(vec!["shop", "team", ""]);
    prop::collection::btree_set((cluster, resource, namespace), 0..8)
}

pub(crate) fn granted(allowed: &Allowed) -> Rights {
    let (rights, group) = (Rights::default(), "rbac.authorization.k8s.io");
    for (nth, (cluster, resource, namespace)) in allowed.iter().enumerate() {
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
            rights.apply(&object.record, &object.body, ChangeKind::Added);
        }
    }
    rights
}

fn allows(allowed: &Allowed, document: &Document) -> bool {
    let of = |wanted: Facet| {
        let value = document.facets.iter().find(|(facet, _)| *facet == wanted);
        value.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let kind = of(Facet::Kind).split('.').next().unwrap_or_default().to_lowercase();
    let resource = format!("{kind}s");
    let in_it = |namespace: &str| namespace.is_empty() || namespace == of(Facet::Namespace);
    allowed
        .iter()
        .any(|(cluster, listed, namespace)| *cluster == of(Facet::Cluster) && **listed == resource && in_it(namespace))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// For any corpus and query, the engine equals direct evaluation, also within a caller's permissions: relations
    /// only traverse objects that the caller may read.
    #[test]
    fn the_engine_agrees_with_the_model(
        fleet in some_fleet(),
        queries in prop::collection::vec(query(), 4),
        relations in prop::collection::vec(relation(), 4),
        allowed in some_rights(),
    ) {
        let corpus = Corpus::new(&fleet);
        let ann = UserInfo::new("ann", ["system:authenticated"]);
        for query in queries.into_iter().chain(relations) {
            let found: BTreeSet<String> = corpus.engine(&query, SortBy::Relevance, true).into_iter().collect();
            prop_assert_eq!(found, corpus.model(&query), "{}", query);
            let seen: BTreeSet<String> =
                corpus.engine_as(&query, granted(&allowed), &ann, Sort::RELEVANCE).into_iter().collect();
            let expected = corpus.model_of(&query, &|document| allows(&allowed, document));
            prop_assert_eq!(seen, expected, "{} of {:?}", query, allowed);
        }
    }
}
