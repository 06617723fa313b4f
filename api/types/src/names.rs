//! Names that Karmada derives from other names. They must be identical byte for byte, because tools and existing
//! objects depend on them.

/// Leases of the Karmada components that the controllers replace.
pub const LEASES: [&str; 3] = ["karmada-controller-manager", "karmada-scheduler", "karmada-descheduler"];

/// Prefix of execution namespaces.
const EXECUTION_NAMESPACE_PREFIX: &str = "karmada-es-";
/// Namespace of the control plane's components.
pub const NAMESPACE_KARMADA_SYSTEM: &str = "karmada-system";
/// Namespace of the members' credentials.
pub const NAMESPACE_KARMADA_CLUSTER: &str = "karmada-cluster";

/// Characters of Kubernetes' generated suffixes (`SafeEncodeString`): without vowels, so that they form no words.
const SAFE_CHARACTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// FNV-1a of 32 bits.
pub(crate) fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// FNV-1a over the text, as decimal digits mapped to safe characters.
fn safe_hash(text: &str) -> String {
    fnv1a(text)
        .to_string()
        .bytes()
        .map(|digit| char::from(SAFE_CHARACTERS[usize::from(digit) % SAFE_CHARACTERS.len()]))
        .collect()
}

/// Replaces colons, which names of RBAC objects may contain but names of custom resources must not.
fn replace_colons(name: &str) -> String {
    name.replace(':', ".")
}

/// The execution namespace of a cluster, which contains its Works.
pub fn execution_namespace(cluster: impl AsRef<str>) -> String {
    format!("{EXECUTION_NAMESPACE_PREFIX}{}", cluster.as_ref())
}

/// The cluster of an execution namespace; None for any other namespace.
pub fn cluster_of_execution_namespace(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(EXECUTION_NAMESPACE_PREFIX).filter(|cluster| !cluster.is_empty())
}

/// True if a namespace is reserved for the control plane: users' templates in it are not propagated.
pub fn is_reserved_namespace(namespace: &str) -> bool {
    namespace == NAMESPACE_KARMADA_SYSTEM
        || namespace == NAMESPACE_KARMADA_CLUSTER
        || namespace.starts_with(EXECUTION_NAMESPACE_PREFIX)
}

/// Karmada's name of the binding of a template. It is not unique: see [`crate::object_identity`].
pub fn binding_name(kind: &str, name: &str) -> String {
    format!("{}-{kind}", replace_colons(name)).to_lowercase()
}

/// Hash of a binding's namespace and name, for the label `resourcebinding.karmada.io/depended-by-<hash>` of the
/// bindings on which it depends.
pub fn binding_reference_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { safe_hash(name) } else { safe_hash(&format!("{namespace}/{name}")) }
}

/// Name of the Work for a template. `namespace` is empty for cluster-scoped templates.
pub fn work_name(kind: &str, name: &str, namespace: &str) -> String {
    let name = replace_colons(name).to_lowercase();
    let full_name = if namespace.is_empty() { format!("{name}-{kind}") } else { format!("{namespace}-{name}-{kind}") };
    format!("{name}-{}", safe_hash(&full_name.to_lowercase()))
}

/// Name of the policy that `karmadactl promote` creates for an object; `gvk` is its kind as Go prints it
/// (`apps/v1, Kind=Deployment`).
pub fn policy_name(namespace: &str, name: &str, gvk: &str) -> String {
    format!("{}-{}", replace_colons(name), safe_hash(&format!("{namespace}{gvk}"))).to_lowercase()
}

/// Name of the service account with which the control plane accesses a member.
pub fn service_account_name(cluster: &str) -> String {
    format!("karmada-{cluster}")
}

/// Name of the ClusterRole of the service account with which the control plane accesses a member.
pub fn cluster_role_name(service_account: &str) -> String {
    format!("karmada-controller-manager:{service_account}")
}

/// Name of an EndpointSlice imported from a cluster.
pub fn imported_endpoint_slice_name(slice: &str, cluster: &str) -> String {
    format!("imported-{cluster}-{slice}")
}

/// Name of the service derived from a ServiceImport.
pub fn derived_service_name(service: &str) -> String {
    format!("derived-{service}")
}

/// Name of a cluster's scheduler estimator. `prefix` is `karmada-scheduler-estimator` unless configured.
pub fn estimator_service_name(prefix: &str, cluster: &str) -> String {
    format!("{prefix}-{cluster}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn execution_namespaces_round_trip() {
        assert_eq!(execution_namespace("member-1"), "karmada-es-member-1");
        assert_eq!(cluster_of_execution_namespace("karmada-es-member-1"), Some("member-1"));
        assert_eq!(["", "karmada-system", "karmada-es-"].map(cluster_of_execution_namespace), [None; 3]);
    }

    #[rstest]
    #[case("Pods", "pod", "pod-pods")]
    #[case("pods", "Pod", "pod-pods")]
    #[case("Role", "system:controller:tom", "system.controller.tom-role")]
    #[case("ClusterRole", "system::tom", "system..tom-clusterrole")]
    fn binding_names(#[case] kind: &str, #[case] name: &str, #[case] expected: &str) {
        assert_eq!(binding_name(kind, name), expected);
    }

    #[test]
    fn names_equal_those_of_karmada() {
        assert_eq!(policy_name("ns-foo", "foo", "rand"), "foo-b4978784");
        assert_eq!(policy_name("ns-foo", "system:foo", "rand"), "system.foo-b4978784");
        assert_eq!(work_name("ConfigMap", "app", "fl-cm-basic"), "app-7754cdb794");
        assert_eq!(work_name("Namespace", "fl-namespace-sync", ""), "fl-namespace-sync-5f5968664f");
        assert_eq!(work_name("ClusterRole", "fl-clusterrole-cpp", ""), "fl-clusterrole-cpp-75c494f95f");
    }

    #[test]
    fn work_names_ignore_case_and_colons() {
        assert_eq!(work_name("Pods", "Work:Pod", "default"), work_name("pods", "work.pod", "default"));
        assert_ne!(binding_reference_key("", "a"), binding_reference_key("n", "a"));
    }

    #[rstest]
    #[case("karmada-system", true)]
    #[case("karmada-cluster", true)]
    #[case("karmada-es-m1", true)]
    #[case("default", false)]
    #[case("karmada", false)]
    fn reserved_namespaces(#[case] namespace: &str, #[case] is_reserved: bool) {
        assert_eq!(is_reserved_namespace(namespace), is_reserved);
    }
}
