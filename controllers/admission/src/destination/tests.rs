//! Table and property tests: which changes of a Cluster redirect its tokens, and which permissions they require.

use super::*;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

fn cluster(spec: Value) -> Cluster {
    named_cluster("m1", spec)
}

fn named_cluster(name: &str, spec: Value) -> Cluster {
    serde_json::from_value(json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name}, "spec": spec}))
    .unwrap()
}

fn joined_spec() -> Value {
    json!({"syncMode": "Push", "apiEndpoint": "https://10.0.0.1:6443",
        "secretRef": {"namespace": "karmada-cluster", "name": "m1"},
        "impersonatorSecretRef": {"namespace": "karmada-cluster", "name": "m1-impersonator"}})
}

fn spec_with(change: Value) -> Value {
    let mut spec = joined_spec();
    json_patch::merge(&mut spec, &change);
    spec
}

/// The Secrets with their verbs, any one of which is sufficient.
fn uses(report: &RequiredPermissions) -> Vec<String> {
    let each = report.uses.iter();
    each.map(|used| format!("{}/{} {}", used.namespace, used.name, used.verbs.join("|"))).collect()
}

#[rstest]
#[case::as_written_by_join(json!({}), &["karmada-cluster/m1 get|patch", "karmada-cluster/m1-impersonator get|patch"])]
#[case::in_another_namespace(json!({"secretRef": {"namespace": "fleet"}}),
    &["fleet/m1 get|patch", "karmada-cluster/m1-impersonator get|patch"])]
#[case::of_another_cluster(json!({"secretRef": {"name": "m2"}}),
    &["karmada-cluster/m2 get", "karmada-cluster/m1-impersonator get|patch"])]
#[case::impersonator_of_another_cluster(json!({"impersonatorSecretRef": {"name": "m2-impersonator"}}),
    &["karmada-cluster/m1 get|patch", "karmada-cluster/m2-impersonator get"])]
#[case::own_impersonator_secret_as_secret_ref(json!({"secretRef": {"name": "m1-impersonator"}, "impersonatorSecretRef": null}),
    &["karmada-cluster/m1-impersonator get"])]
#[case::not_named_after_a_cluster(json!({"secretRef": {"namespace": "kube-system", "name": "admin"}, "impersonatorSecretRef": null}),
    &["kube-system/admin get"])]
#[case::none(json!({"secretRef": null, "impersonatorSecretRef": null}), &[])]
fn new_clusters_need_permission_for_their_secrets(#[case] change: Value, #[case] expected: &[&str]) {
    assert_eq!(uses(&required_permissions(PriorObject::Absent, &cluster(spec_with(change)))), expected);
}

#[test]
fn ambiguous_secret_name_is_not_own() {
    let spec = spec_with(json!({"secretRef": {"name": "a-impersonator"}, "impersonatorSecretRef": null}));
    assert_eq!(
        uses(&required_permissions(PriorObject::Absent, &named_cluster("a-impersonator", spec))),
        ["karmada-cluster/a-impersonator get"]
    );
}

#[test]
fn unnamed_cluster_has_no_own_secrets() {
    let mut unnamed =
        cluster(spec_with(json!({"secretRef": {"name": ""}, "impersonatorSecretRef": {"name": "-impersonator"}})));
    unnamed.metadata.name = None;
    assert_eq!(
        uses(&required_permissions(PriorObject::Absent, &unnamed)),
        ["karmada-cluster/ get", "karmada-cluster/-impersonator get"]
    );
}

#[test]
fn unseen_cluster_can_refer_to_its_own_secrets() {
    let expected = ["karmada-cluster/m1 get|patch", "karmada-cluster/m1-impersonator get|patch"];
    let without = cluster(spec_with(json!({"secretRef": null, "impersonatorSecretRef": null})));
    assert_eq!(uses(&required_permissions(PriorObject::Unseen, &without)), expected);
    assert_eq!(uses(&required_permissions(PriorObject::Unseen, &cluster(joined_spec()))), expected);
    assert!(required_permissions(PriorObject::Absent, &without).uses.is_empty());
}

#[rstest]
#[case::nothing(json!({}), None)]
#[case::location(json!({"region": "west", "zones": ["a"], "provider": "p"}), None)]
#[case::taints(json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}), None)]
#[case::endpoint(json!({"apiEndpoint": "https://10.0.0.2:6443"}), Some("spec.apiEndpoint"))]
#[case::proxy(json!({"proxyURL": "http://10.0.0.3:3128"}), Some("spec.proxyURL"))]
#[case::proxy_headers(json!({"proxyHeader": {"a": "b"}}), Some("spec.proxyHeader"))]
#[case::verification(json!({"insecureSkipTLSVerification": true}), Some("spec.insecureSkipTLSVerification"))]
#[case::secret(json!({"secretRef": {"name": "m2"}}), Some("spec.secretRef"))]
#[case::impersonator(json!({"impersonatorSecretRef": {"namespace": "other"}}), Some("spec.impersonatorSecretRef"))]
#[case::mode(json!({"syncMode": "Pull"}), Some("spec.syncMode"))]
fn changes_of_token_destinations_are_reviewed(#[case] change: Value, #[case] expected: Option<&str>) {
    let (before, after) = (cluster(joined_spec()), cluster(spec_with(change)));
    let report = required_permissions(PriorObject::Stored(&before), &after);
    assert_eq!(report.reasons, Vec::from_iter(expected));
    assert_eq!(report.uses.is_empty(), expected.is_none());
}

#[test]
fn leaving_the_tunnel_is_reviewed() {
    let before = cluster(joined_spec());
    let mut after = before.clone();
    after.metadata.annotations = Some([(REACHED_THROUGH.to_owned(), "agent".to_owned())].into());
    let report = required_permissions(PriorObject::Stored(&before), &after);
    assert_eq!(report.reasons, ["the annotation fleet.crowsnest.io/reached-through"]);
    assert_eq!(REACHED_THROUGH, "fleet.crowsnest.io/reached-through");
    let expected = "User \"eve\" cannot get or patch secret \"karmada-cluster\"/\"m1\" of spec.secretRef: deciding where a \
                    cluster's token is sent requires that permission (the annotation fleet.crowsnest.io/reached-through)";
    assert_eq!(report.refusal("eve", &report.uses[0]), expected);
}

#[rstest]
#[case("https://m1", &[])]
#[case("m1:6443", &[])]
#[case("http://m1", &["spec.apiEndpoint"])]
#[case("HTTP://m1", &["spec.apiEndpoint"])]
fn tokens_are_sent_over_https(#[case] endpoint: &str, #[case] expected: &[&str]) {
    let fields = |errors: Vec<FieldError>| errors.into_iter().map(|error| error.field).collect::<Vec<_>>();
    let after = cluster(spec_with(json!({"apiEndpoint": endpoint})));
    assert_eq!(fields(validate(None, &after, true)), expected);
    assert_eq!(fields(validate(Some(&cluster(joined_spec())), &after, true)), expected);
    // A Cluster stored before this rule can still be changed in all other fields.
    assert!(validate(Some(&after), &after, true).is_empty());
    let without_secrets =
        cluster(spec_with(json!({"apiEndpoint": endpoint, "secretRef": null, "impersonatorSecretRef": null})));
    assert!(validate(None, &without_secrets, true).is_empty());
    assert_eq!(fields(validate(Some(&without_secrets), &after, true)), expected);
}

#[rstest]
#[case::public(json!({}), &[])]
#[case::endpoint(json!({"apiEndpoint": "https://127.0.0.1:6443"}), &["spec.apiEndpoint"])]
#[case::without_a_scheme(json!({"apiEndpoint": "localhost:6443"}), &["spec.apiEndpoint"])]
#[case::v6(json!({"apiEndpoint": "https://[::1]"}), &["spec.apiEndpoint"])]
#[case::v6_with_a_port(json!({"apiEndpoint": "https://[fe80::1]:6443/base"}), &["spec.apiEndpoint"])]
#[case::parsed_differently_by_the_http_client(json!({"apiEndpoint": "https://[::1]a"}), &["spec.apiEndpoint"])]
#[case::metadata(json!({"proxyURL": "http://169.254.169.254:80"}), &["spec.proxyURL"])]
#[case::proxy_with_a_user(json!({"proxyURL": "socks5://me:secret@127.0.0.1:1080"}), &["spec.proxyURL"])]
#[case::pull(json!({"syncMode": "Pull", "apiEndpoint": "https://127.0.0.1:6443"}), &[])]
fn addresses_of_this_host_are_rejected(#[case] change: Value, #[case] expected: &[&str]) {
    let fields = |errors: Vec<FieldError>| errors.into_iter().map(|error| error.field).collect::<Vec<_>>();
    let after = cluster(spec_with(change));
    assert_eq!(fields(validate(None, &after, false)), expected);
    assert_eq!(fields(validate(Some(&cluster(joined_spec())), &after, false)), expected);
    assert!(validate(None, &after, true).is_empty());
    assert!(validate(Some(&after), &after, false).is_empty());
    let mut pulled = after.clone();
    pulled.spec.sync_mode = ClusterSyncMode::Pull;
    // An address that was not dialed is validated when the mode changes.
    assert_eq!(fields(validate(Some(&pulled), &after, false)), expected);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["m[1-3](-impersonator)?", "\\PC{0,12}", Just(String::new())]
}

fn reference() -> impl Strategy<Value = Option<LocalSecretReference>> {
    let namespace = prop_oneof![Just("karmada-cluster".to_owned()), text()];
    proptest::option::of((namespace, text()).prop_map(|(namespace, name)| LocalSecretReference { namespace, name }))
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    let endpoint = prop_oneof![text(), "https?://[a-z0-9.:\\[\\]]{0,20}(/[a-z]{0,3})?"];
    let mode = prop_oneof!["Push", "Pull", "\\PC{0,4}"];
    let headers = proptest::collection::btree_map(text(), text(), 0..2);
    let parts = (text(), mode, endpoint.clone(), endpoint, headers, any::<bool>(), reference(), reference());
    parts.prop_map(|(name, mode, endpoint, proxy, headers, insecure, secret, impersonator)| {
        let mut cluster = named_cluster(&name, json!({"syncMode": mode, "apiEndpoint": endpoint, "proxyURL": proxy}));
        cluster.spec.proxy_header = headers;
        cluster.spec.insecure_skip_tls_verification = insecure;
        (cluster.spec.secret_ref, cluster.spec.impersonator_secret_ref) = (secret, impersonator);
        cluster
    })
}

/// True if the Secret has the name that `join` gives it.
fn is_join_secret(cluster: &Cluster, used: &SecretUse) -> bool {
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let join_name = if used.field == SECRET_REF { name.clone() } else { format!("{name}-impersonator") };
    !name.is_empty() && used.name == join_name
}

proptest! {
    /// Without `get`, a writer cannot use Secrets of other clusters, whatever other permissions it has.
    #[test]
    fn secrets_of_other_clusters_require_get(after in any_cluster()) {
        let report = required_permissions(PriorObject::Absent, &after);
        let references = [&after.spec.secret_ref, &after.spec.impersonator_secret_ref];
        prop_assert_eq!(report.uses.len(), references.into_iter().flatten().count());
        for used in report.uses.iter().filter(|used| used.verbs != ["get"]) {
            prop_assert!(is_join_secret(&after, used), "{:?}", used);
        }
        prop_assert!(report.uses.iter().all(|used| used.verbs.contains(&"get")));
    }

    /// A change either does not affect where tokens are sent, or requires permission for each Secret of the resulting
    /// Cluster.
    #[test]
    fn redirections_are_reviewed(before in any_cluster(), after in any_cluster()) {
        let report = required_permissions(PriorObject::Stored(&before), &after);
        let same = ClusterSpec { region: before.spec.region.clone(), ..after.spec.clone() } == before.spec;
        let references = [&after.spec.secret_ref, &after.spec.impersonator_secret_ref].into_iter().flatten().count();
        prop_assert_eq!(report.uses.len(), if same { 0 } else { references });
    }

    /// An accepted Cluster never sends tokens over HTTP or to a local address.
    #[test]
    fn accepted_clusters_send_tokens_safely(after in any_cluster()) {
        let accepted = validate(None, &after, false).is_empty();
        let endpoint = after.spec.api_endpoint.to_ascii_lowercase();
        let sends = after.spec.secret_ref.is_some() || after.spec.impersonator_secret_ref.is_some();
        prop_assert!(!(accepted && sends && endpoint.starts_with("http://")));
        if let Ok(uri) = endpoint.parse::<http::Uri>() && after.spec.sync_mode != ClusterSyncMode::Pull {
            let local = uri.host().and_then(local_kind_of_host);
            prop_assert!(!(accepted && local.is_some()), "{endpoint}");
        }
    }
}
